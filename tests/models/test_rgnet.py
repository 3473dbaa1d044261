"""RGNet with each of its context layers: any size, training and evaluation, and PyTorch's features."""

import copy

import pytest
import torch
from tests.layers import mechanics
from tests.layers.mechanics import CHANNELS_LAST, DYNAMIC
from tests.models.networks import FAST, SIZES, assert_same_state, images, network, offline  # noqa: F401

import repgraph
from repgraph.errors import UsageError
from repgraph.models import RGNet, context, param_groups, register_context

# A warning from the compiler of PyTorch 2.11 about autograd functions.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

CONFIGS = {
    "repgraph": {},
    "simple, grid": dict(context="simple", context_options=dict(nodes=5, grid=2), fusion="sum"),
    "rounds": dict(context_options=dict(nodes=5, rounds=2, radius=[3.0, 1.0], node_view=1)),
    "non_local": dict(context="non_local", output_stride=16),
    "dual": dict(context="dual"),
    "control": dict(context="control"),
    "psp": dict(context="psp"),
    "pyramid": dict(decoder="pyramid", context_options=dict(rounds=2, nodes=2, groups=4)),
    "pyramid, non_local": dict(decoder="pyramid", context="non_local"),
    "none, inserted": dict(context="none", auxiliary=False, inserted={"layer2": 1, "layer4": 1}),
}


@pytest.fixture(scope="module", params=CONFIGS)
def options(request: pytest.FixtureRequest) -> dict:
    return CONFIGS[request.param]


class TestEveryNetwork:
    def test_any_size(self, options: dict) -> None:
        model = network(**options)
        for size in SIZES:
            with torch.no_grad():
                logits = model.eval()(images(*size))
            assert logits.shape == (1, 5, *size) and logits.dtype == torch.float32
            assert logits.isfinite().all() and (size == (1, 1) or logits.std() > 0)
            result = model.train()(images(*size, batch=2))
            results = (result,) if model.auxiliary is None else result
            assert isinstance(results, tuple) and len(results) == (1 if model.auxiliary is None else 2)
            assert all(logits.shape == (2, 5, *size) for logits in results)
            sum(logits.square().mean() for logits in results).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    def test_copies_formats_and_config(self, options: dict) -> None:
        model, x = network(**options), images(33, 47, batch=2)
        mechanics.assert_copies_compute_the_same(model, network(seed=1, **options), x)
        want = model(x)
        last = copy.deepcopy(model).to(memory_format=CHANNELS_LAST)(x.to(memory_format=CHANNELS_LAST))
        assert last.is_contiguous(memory_format=CHANNELS_LAST) and want.is_contiguous()
        torch.testing.assert_close(last, want, rtol=1e-3, atol=1e-4)
        twin = RGNet(**model.config)
        twin.load_state_dict(model.state_dict())
        assert twin.config == model.config and torch.equal(twin.eval()(x), want)

    @pytest.mark.parametrize(
        "options",
        ["repgraph", *(pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS if n != "repgraph")],
        indirect=True,
    )
    @pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated")
    def test_traces_for_all_sizes_without_warnings(self, options: dict) -> None:
        model = network(**options)
        traced = torch.jit.trace(model, images(33, 47))
        for size in ((33, 47), (65, 81), (9, 12)):
            torch.testing.assert_close(traced(images(*size)), model(images(*size)), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripting_is_refused() -> None:
    with pytest.raises(UsageError, match=r"torch.jit.script is not supported; use torch.export, torch.compile"):
        torch.jit.script(network())


@pytest.mark.slow
def test_one_program_for_all_sizes() -> None:
    """Compiled and exported. In PyTorch 2.11 every other size is another program of max pooling; these share one."""
    torch._dynamo.reset()
    model = network(dropout=0.0).train()
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, dynamic=True, backend="aot_eager")
    for index, (batch, size) in enumerate([(2, (33, 49)), (3, (65, 97)), (4, (41, 25))]):
        x = images(*size, batch=batch)
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(x)
        for ours, theirs in zip(got, model(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    model.eval()
    program = torch.export.export(model, (images(65, 97, batch=2),), dynamic_shapes=(DYNAMIC,)).module()
    for batch, size in [(1, (33, 66)), (3, (129, 41))]:
        x = images(*size, batch=batch)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


def test_inserted_layers_start_as_the_identity() -> None:
    plain, x = network(backbone="resnet18"), images(33, 47)
    where = {"layer2": 1, "layer3": 1, "layer4": 1}
    for layer in ("repgraph", "paper", "non_local"):
        model = RGNet(5, "resnet18", channels=16, inserted=where, inserted_options={"layer": layer}).eval()
        found = model.load_state_dict(plain.state_dict(), strict=False)
        assert found.unexpected_keys == [] and all(".repgraph." in name for name in found.missing_keys)
        assert len(repgraph.inserted(model)) == 3
        assert torch.equal(model(x), plain(x))


def test_nodes_of_a_pyramid_are_in_pixels_of_the_image() -> None:
    model = network(decoder="pyramid", context_options=dict(rounds=2, nodes=3, groups=4))
    nodes, weights = model.nodes(images(64, 96))
    assert [n.shape for n in nodes] == [(1, 4, 6, 2, 4, 6)] * 2
    assert [w.shape for w in weights] == [(1, 4, 6, 4, 6)] * 2
    # Group 0 looks to the right, 1, 2 and 3 pixels of the maps of strides 16 and 32; rays shrink on small maps.
    right = torch.tensor([stride * step for stride in (16.0, 32.0) for step in (1, 2, 3)])
    centre = torch.tensor([7.5 + 16 * 3, 7.5 + 16 * 2])
    torch.testing.assert_close(nodes[0][0, 0, :, 0, 2, 3], centre[0] + right * (3 / 6))
    torch.testing.assert_close(nodes[0][0, 0, :, 1, 2, 3], centre[1].expand(6))
    with_finest = network(decoder="pyramid", context_options=dict(maps=3, nodes=1, groups=4))
    assert with_finest.nodes(images(64, 96))[0][0].shape == (1, 4, 3, 2, 8, 12)
    with pytest.raises(UsageError, match="maps is 4; the head has 3 maps"):
        network(decoder="pyramid", context_options=dict(maps=4))
    with pytest.raises(UsageError, match="NonLocal has no nodes on the pyramid's maps"):
        network(decoder="pyramid", context="non_local").nodes(images(33, 33))


SWIN = pytest.param("swin_tiny_patch4_window7_224", marks=pytest.mark.slow)


@pytest.mark.parametrize("backbone", ["test_convnext", SWIN])
def test_backbones_of_a_pyramid(backbone: str) -> None:
    model = RGNet(5, backbone, decoder="pyramid", channels=16).eval()
    assert model.backbone.strides == (4, 8, 16, 32)
    with torch.no_grad():
        assert model(images(65, 97)).shape == (1, 5, 65, 97)


def test_custom_context_layers(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LAYERS", dict(context.LAYERS))

    class Shift(torch.nn.Module):
        def __init__(self, channels: int, by: float = 1.0) -> None:
            super().__init__()
            self.out_channels, self.by = channels, by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.by

    model = network(context=Shift, context_options={"by": 2.0})
    assert model.config["context"] == "Shift" and model.config["context_options"] == {"by": 2.0}
    assert model.head.context.by == 2.0
    model.save_pretrained(tmp_path)
    assert RGNet.from_pretrained(tmp_path).head.context.by == 2.0
    assert register_context("shift")(Shift) is Shift and network(context="shift", decoder="pyramid")
    with pytest.raises(UsageError, match="context 'non_local' is already registered"):
        register_context("non_local", Shift)
    with pytest.raises(UsageError, match="has no attribute out_channels"):
        network(context=lambda channels: torch.nn.Identity())
    monkeypatch.setattr(context, "LAYERS", {"none": context.NoContext})
    with pytest.raises(UsageError, match="context is 'Shift'; choose one of none, or register it"):
        RGNet.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("backbone", "stages"),
    [
        ("test_resnet", ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]),
        ("convnext_atto", ["stem_0", "stem_1", "stages_0", "stages_1", "stages_2", "stages_3"]),
    ],
)
def test_rates_of_stages(backbone: str, stages: list[str]) -> None:
    inserted = {"layer3": 1} if backbone == "test_resnet" else {"stages_2": 1}  # these layers are new
    model = RGNet(5, backbone, output_stride=32, channels=8, inserted=inserted)
    groups = param_groups(model, 0.01, new_lr=0.1, offset_lr=0.05, layer_decay=0.5)
    rates = {id(p): (group["lr"], group.get("weight_decay")) for group in groups for p in group["params"]}
    expected = dict(zip(stages, (0.01 * 0.5**k for k in (4, 4, 3, 2, 1, 0)), strict=True))
    for name, parameter in model.named_parameters():
        old = name.startswith("backbone.") and ".repgraph." not in name
        rate = expected[name.split(".")[2]] if old else 0.05 if "offset" in name else 0.1
        assert rates.pop(id(parameter)) == (pytest.approx(rate), 0.0 if parameter.dim() == 1 else None), name
    assert not rates


def test_rates_of_stages_need_stages() -> None:
    with pytest.raises(UsageError, match=r"layer_decay needs a backbone with stages; .* finds \['model'\]"):
        param_groups(RGNet(5, "test_vit", output_stride=16, channels=8), 0.01, layer_decay=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(context="nonlocal"), "context is 'nonlocal'; did you mean 'non_local'?"),
        (dict(context="pyramid"), "context 'pyramid' attends to several maps; it needs decoder='pyramid'"),
        (dict(decoder="pyramid", output_stride=8), "output_stride is 8; a pyramid needs 32"),
        (dict(decoder="pyramid", backbone="test_vit"), "output_stride is 32; timm's 'test_vit' supports 16"),
        (dict(context_options={"node": 9}), "of 'repgraph' has no option 'node'; did you mean 'nodes'?"),
        (dict(context_options={"nodes": 0}), "context 'repgraph': nodes is 0; expected an integer from 1"),
        (dict(context="dual", fusion="concat"), "context 'dual': fusion is 'concat'; dual attention supports"),
        (dict(inserted={"layer9": 1}), "inserted layers: 'layer9' is not a module; did you mean"),
        (dict(inserted={"layer3": 1}, inserted_options={"layer": "control"}), "layer in inserted_options is 'control'"),
        (dict(inserted_options={"nodes": 3}), "inserted_options needs inserted"),
        (dict(mean=(0.5, 0.5)), "mean is [0.5, 0.5]; expected three numbers"),
        (dict(labels={"names": ["a", "b"]}), "labels has the names ['a', 'b']; expected one for each of 5 classes"),
        (dict(labels={"names": {1, 2}}), "labels cannot be written to config.json"),
    ],
    ids=str,
)
def test_invalid_arguments(options: dict, message: str) -> None:
    with pytest.raises(UsageError) as error:
        RGNet(5, **{**FAST, **options})
    assert message in str(error.value)


def test_reach_of_training_is_kept_on_larger_images(tmp_path) -> None:
    options = dict(context_options={"rounds": 2, "radius": [8.0, 4.5]}, inserted_options={"radius": 6.0})
    model = network(inserted={"layer4": 1}, **options).eval()
    before = model.nodes(images(64, 64))[0]
    assert model.keep_reach(640, 640) == {} and "map_sizes" not in model.config  # large enough for all rings
    sizes = model.keep_reach(64, 64)
    assert set(sizes.values()) == {(8, 8)} and len(sizes) == 2
    assert all(map(torch.equal, model.nodes(images(64, 64))[0], before))
    model.save_pretrained(tmp_path)
    model = RGNet.from_pretrained(tmp_path)
    small, large = (model.nodes(images(side, side))[0] for side in (64, 640))
    for one, other in zip(large, small, strict=True):  # the offsets of the first position, in pixels of the image
        torch.testing.assert_close(one[0, :, :, 0, 0], other[0, :, :, 0, 0], rtol=0, atol=1e-3)
    with pytest.raises(UsageError, match="map_sizes has 'head', which is not a RepGraph layer"):
        network(map_sizes={"head": (8, 8)})
    model = network(decoder="pyramid").eval()  # with nodes up to 4 pixels away, on maps of strides 16 and 32
    before = model.nodes(images(128, 128))[0][0]
    assert model.keep_reach(288, 288) == {}
    assert model.keep_reach(128, 128) == {"head.context.rounds.0.0": (8, 8), "head.context.rounds.0.1": (4, 4)}
    assert torch.equal(model.nodes(images(128, 128))[0][0], before)
    torch.testing.assert_close(model.nodes(images(640, 640))[0][0][..., 0, 0], before[..., 0, 0], rtol=0, atol=1e-3)
