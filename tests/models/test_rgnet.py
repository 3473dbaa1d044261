"""RGNet with each of its contexts: any size, training and evaluation, and all that PyTorch does with a network."""

import copy
import io

import pytest
import torch
from tests.layers import mechanics
from tests.layers.mechanics import CHANNELS_LAST, DYNAMIC
from tests.models.networks import FAST, SIZES, assert_same_state, images, network, offline, one_thread, stir  # noqa: F401
from torch import nn

import repgraph
from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, DualAttention, NonLocal, SimpleRepGraph
from repgraph.models import Control, RGNet, rgnet

# What the compiler of PyTorch 2.11 itself does with functions of autograd.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

CONFIGS = {
    "repgraph": {},
    "simple, grid": dict(context="simple", context_options=dict(nodes=5, grid=2), fusion="sum"),
    "non_local": dict(context="non_local", output_stride=16),
    "dual": dict(context="dual"),
    "control": dict(context="control"),
    "none, inserted": dict(context="none", auxiliary=False, inserted={"layer2": 1, "layer4": 1}),
}


@pytest.fixture(scope="module", params=CONFIGS)
def options(request: pytest.FixtureRequest) -> dict:
    return CONFIGS[request.param]


class TestEveryNetwork:
    def test_any_size_in_evaluation(self, options: dict) -> None:
        model = network(**options)
        for size in SIZES:
            with torch.no_grad():
                logits = model(images(*size))
            assert logits.shape == (1, 5, *size) and logits.dtype == torch.float32
            assert logits.isfinite().all() and (size == (1, 1) or logits.std() > 0)

    def test_any_size_in_training(self, options: dict) -> None:
        model = network(**options).train()
        for size in SIZES:
            result = model(images(*size, batch=2))
            results = (result,) if model.auxiliary is None else result
            assert isinstance(results, tuple) and len(results) == (1 if model.auxiliary is None else 2)
            assert all(logits.shape == (2, 5, *size) for logits in results)
            sum(logits.square().mean() for logits in results).backward()
        dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert dead == []

    def test_copies(self, options: dict) -> None:
        mechanics.assert_copies_compute_the_same(network(**options), network(seed=1, **options), images(33, 47))

    def test_memory_formats(self, options: dict) -> None:
        model, x = network(**options), images(33, 47, batch=2)
        want = model(x)
        last = copy.deepcopy(model).to(memory_format=CHANNELS_LAST)(x.to(memory_format=CHANNELS_LAST))
        assert last.is_contiguous(memory_format=CHANNELS_LAST) and want.is_contiguous()
        torch.testing.assert_close(last, want, rtol=1e-3, atol=1e-4)

    def test_autocast(self, options: dict) -> None:
        model, x = network(**options), images(33, 47)
        want = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            got = model(x)
            result = model.train()(images(33, 47, batch=2))
        assert got.dtype == torch.float32
        assert (got - want).abs().max() < 0.1 * want.abs().max()
        first = result[0] if isinstance(result, tuple) else result
        assert first.dtype == torch.float32
        first.square().mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

    def test_config_makes_the_same_network(self, options: dict) -> None:
        model = network(**options)
        twin = RGNet(**model.config)
        twin.load_state_dict(model.state_dict())
        assert twin.config == model.config
        x = images(7, 13)
        assert torch.equal(twin.eval()(x), model(x))


def test_compiles_once_for_all_sizes() -> None:
    torch._dynamo.reset()
    model = network(dropout=0.0).train()
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, dynamic=True, backend="aot_eager")
    # In PyTorch 2.11 every other size is another program of max pooling: these are of one kind.
    for index, (batch, size) in enumerate([(2, (33, 49)), (3, (65, 97)), (4, (41, 25))]):
        x = images(*size, batch=batch)
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(x)
        for ours, theirs in zip(got, model(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_gradients_reach_every_parameter(training: bool) -> None:
    model = stir(RGNet(5, **FAST)).train(training)
    result = model(images(64, 64, batch=2))
    loss = sum(logits.square().mean() for logits in result) if training else result.square().mean()
    loss.backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == (set() if training else {n for n, _ in model.named_parameters() if n.startswith("auxiliary.")})


def test_one_pixel_alone_in_training_has_no_statistics() -> None:
    """PyTorch's own error; with frozen normalisations it works."""
    model = RGNet(5, **FAST).train()
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        model(images(1, 1))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    logits, auxiliary = model(images(1, 1))
    assert logits.shape == auxiliary.shape == (1, 5, 1, 1)


def test_the_defaults_are_the_papers() -> None:
    with torch.device("meta"):
        model = RGNet(150)
    layer = model.head.context
    assert type(layer) is BottleneckRepGraph
    assert (layer.channels, layer.mid_channels, layer.nodes, layer.fusion) == (512, 256, 9, "concat")
    assert model.backbone.name == "resnet50" and model.backbone.output_stride == 8
    assert model.head.project.weight.shape == (512, 2048, 3, 3)
    assert model.auxiliary.project.weight.shape == (512, 1024, 3, 3)
    assert model.head.classifier.weight.shape == (150, 1024, 1, 1)
    assert model.head.dropout.p == model.auxiliary.dropout.p == 0.1
    assert "150 classes" in repr(model) and "M parameters" in repr(model)


@pytest.mark.parametrize(
    ("context", "kind", "out"),
    [
        ("repgraph", BottleneckRepGraph, 32),
        ("paper", BottleneckRepGraph, 32),
        ("simple", SimpleRepGraph, 32),
        ("non_local", NonLocal, 32),
        ("dual", DualAttention, 16),
        ("control", Control, 32),
    ],
)
def test_contexts(context: str, kind: type, out: int) -> None:
    model = RGNet(5, context=context, **FAST)
    assert type(model.head.context) is kind
    assert model.head.classifier.in_channels == out
    scales = {"repgraph": 1 / 8, "paper": 1.0, "simple": 8**-0.5, "non_local": 8**-0.5}
    if context in scales:
        assert model.head.context.scale == pytest.approx(scales[context])
    if context == "paper":  # by name, and what is given on top of it
        assert model.head.context.spread.name == "default"
        more = RGNet(5, context="paper", context_options={"spread": "ring"}, **FAST).head.context
        assert (more.scale, more.spread.name) == (1.0, "ring")


def test_inserted_layers_change_nothing_at_first() -> None:
    plain = network(backbone="resnet18")
    where = {"layer2": 1, "layer3": 1, "layer4": 1}
    for layer in ("repgraph", "paper", "non_local"):
        model = RGNet(5, "resnet18", channels=16, inserted=where, inserted_options={"layer": layer}).eval()
        found = model.load_state_dict(plain.state_dict(), strict=False)
        assert found.unexpected_keys == [] and all(".repgraph." in name for name in found.missing_keys)
        assert len(repgraph.inserted(model)) == 3
        x = images(33, 47)
        assert torch.equal(model(x), plain(x))


def test_an_exported_program_is_right_for_all_sizes() -> None:
    model = network()
    program = torch.export.export(model, (images(65, 97, batch=2),), dynamic_shapes=(DYNAMIC,)).module()
    for batch, size in [(1, (33, 66)), (3, (129, 41))]:  # of one kind for PyTorch 2.11, see above
        x = images(*size, batch=batch)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


class TestNodes:
    def test_nodes_are_in_pixels_of_the_image(self) -> None:
        model = network()
        nodes, weights = model.nodes(images(64, 96))
        assert nodes.shape == (1, 9, 2, 8, 12) and weights.shape == (1, 1, 9, 8, 12)
        torch.testing.assert_close(weights.sum(2), torch.ones(1, 1, 8, 12))
        # The first node of a ring is its query.
        torch.testing.assert_close(nodes[0, 0, 0], (8 * torch.arange(12.0) + 3.5).expand(8, 12))
        torch.testing.assert_close(nodes[0, 0, 1], (8 * torch.arange(8.0) + 3.5)[:, None].expand(8, 12))
        away = (nodes[0, 1:] - nodes[0, :1]).norm(dim=1)
        torch.testing.assert_close(away, torch.full_like(away, 8 * 3.5))  # 4 px of the map, which is 8 high: 3.5

    def test_a_head_without_them_says_so(self) -> None:
        with pytest.raises(UsageError, match="context is a NonLocal has no representative nodes"):
            network(context="non_local").nodes(images(33, 33))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(context="rep_graph"), "unknown context 'rep_graph'; did you mean 'repgraph'?"),
        (
            dict(context="xyz"),
            "unknown context 'xyz'; choose one of 'repgraph', 'paper', 'simple', 'non_local'",
        ),
        (dict(context_options={"node": 9}), "context_options of 'repgraph': there is no option 'node'; did you mean"),
        (dict(context_options={"fusion": "sum"}), "there is no option 'fusion'"),
        (dict(context_options=[9]), "context_options of 'repgraph' is [9]; a dict"),
        (dict(context="none", context_options={"nodes": 9}), "there is no option 'nodes'; it has none"),
        (dict(context_options={"nodes": 0}), "context 'repgraph': nodes is 0; at least 1 is needed"),
        (dict(context="dual", fusion="concat"), "context 'dual': fusion is 'concat'; dual attention has no other"),
        (dict(fusion="add"), "context 'repgraph': unknown fusion 'add'"),
        (dict(inserted={"layer9": 1}), "inserted layers: the model has no module 'layer9'; did you mean"),
        (dict(inserted={"layer3": 1}, inserted_options={"layer": "control"}), "unknown layer in inserted_options"),
        (dict(inserted={"layer3": 1}, inserted_options={"nods": 3}), "inserted_options of 'repgraph': there is no"),
        (dict(inserted_options={"nodes": 3}), "inserted does not say where"),
        (dict(dropout=1.0), "dropout is 1.0; a number from 0 to below 1"),
        (dict(auxiliary="no"), "auxiliary is 'no'; True or False"),
        (dict(caffe_style=1), "caffe_style is 1; True or False"),
        (dict(mean=(0.5, 0.5)), "mean is (0.5, 0.5); three numbers are needed"),
        (dict(std=(0.5, 0.5, 0.0)), "std is (0.5, 0.5, 0.0); three positive numbers"),
        (dict(labels=["a"]), "labels is a list; a dict is needed"),
        (dict(labels={"names": ["a", "b"]}), "labels has 2 names for 5 classes"),
        (dict(labels={"names": {1, 2}}), "labels cannot be written to config.json"),
        (dict(context_options={"radius": float("nan")}), "context_options cannot be written to config.json"),
        (dict(backbone="resnet2"), "has no model 'resnet2'"),
    ],
    ids=str,
)
def test_mistakes_are_named(options: dict, message: str) -> None:
    with pytest.raises(UsageError) as error:
        RGNet(5, **{**FAST, **options})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("x", "kind", "message"),
    [
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), TypeError, "the images are torch.uint8; normalised ones"),
        (torch.zeros(1, 4, 8, 8), ValueError, r"has shape \(1, 4, 8, 8\); \(B, 3, H, W\) is needed"),
        (torch.zeros(3, 8, 8), ValueError, r"has shape \(3, 8, 8\)"),
        ("image", TypeError, "the input is a str"),
    ],
    ids=str,
)
def test_inputs_are_checked(x: object, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        network()(x)


def test_the_builder_without_weights_is_the_class() -> None:
    torch.manual_seed(3)
    one = rgnet(5, "resnet10t", channels=16, context="none", labels={"names": list("abcde")})
    torch.manual_seed(3)
    other = RGNet(5, "resnet10t", channels=16, context="none", labels={"names": list("abcde")})
    assert_same_state(one, other)
    assert one.config == other.config and one.labels == {"names": list("abcde")}


def test_a_state_goes_through_a_file() -> None:
    model, file = network(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin = network(seed=1)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert_same_state(model, twin)
