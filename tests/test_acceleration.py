"""repgraph.accelerate: outputs of Hugging Face models do not change, and neither does anything else."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed")

from tests.families import FAMILIES, build, inputs
from tests.layers.mechanics import save_and_load

import repgraph
from repgraph.acceleration import MODULE, Accelerated
from repgraph.errors import UsageError

FORMS = ["deformable_detr", "mask2former", "rt_detr_v2", "d_fine"]  # each form of the call in transformers
Results = dict[str, Tensor]
accelerate = repgraph.accelerate


def outputs(model: nn.Module, family: str, dtype: torch.dtype = torch.float32) -> Results:
    given = {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs(family).items()}
    found = {}
    for name, value in model(**given).items():
        for index, t in enumerate(value if isinstance(value, tuple | list) else [value]):
            if isinstance(t, Tensor) and t.is_floating_point() and t.isfinite().all():  # padded logits are -inf
                found[f"{name} {index}"] = t
    return found


def run(model: nn.Module, family: str, dtype: torch.dtype = torch.float32) -> tuple[Results, Results]:
    """Return outputs and the gradients of all parameters."""
    model.zero_grad()
    found = outputs(model, family, dtype)
    wanted = [t for t in found.values() if t.requires_grad]
    sum(
        (t * torch.linspace(-1, 1, t.numel(), dtype=dtype).view_as(t)).sum() / t.numel() ** 0.5 for t in wanted
    ).backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: t.detach() for name, t in found.items()}, grads


def difference(ours: Results, theirs: Results) -> float:
    assert ours.keys() >= theirs.keys()
    return max(((ours[n] - t).abs().max() / t.abs().max().clamp_min(1e-30)).item() for n, t in theirs.items())


def is_accelerated(model: nn.Module) -> bool:
    return any(isinstance(module, Accelerated) for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_results_and_gradients_stay(family):
    model, other = build(family), build(family)
    classes, keys = [type(module) for module in model.modules()], list(model.state_dict())
    theirs, their_grads = run(model, family)
    # The gradient of the bias of a key, or before a norm, is zero but for rounding.
    _, exact = run(build(family).double(), family, torch.float64)
    largest = max(t.abs().max() for t in exact.values())
    their_grads = {name: t for name, t in their_grads.items() if exact[name].abs().max() > 1e-10 * largest}
    assert len(their_grads) > 0.9 * len(exact)
    assert all(name in their_grads for name in exact if "sampling_offsets" in name)

    names = accelerate(model)
    assert names and all(isinstance(model.get_submodule(name), Accelerated) for name in names)
    assert sum(isinstance(module, Accelerated) for module in model.modules()) == len(names)
    ours, our_grads = run(model, family)
    assert difference(ours, theirs) < 1e-4
    assert difference(our_grads, their_grads) < 1e-4
    assert list(model.state_dict()) == keys and str(model) == str(other)
    assert accelerate(model) == names

    assert [type(module) for module in other.modules()] == classes and not is_accelerated(other)
    assert accelerate(model, undo=True) == names and accelerate(model, undo=True) == []
    assert [type(module) for module in model.modules()] == classes
    assert difference(outputs(model, family), theirs) == 0


COPIES = [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), save_and_load]


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle", "save"])
@pytest.mark.parametrize("family", FORMS)
def test_copies_use_their_own_parameters(family, duplicate):
    model = build(family)
    # Mask2Former itself cannot be pickled: it has hooks that are local functions.
    part = attention(model) if family == "mask2former" else model
    names = accelerate(part)
    other, given = duplicate(part), problem(family, attention(part))
    wanted = gradients(attention(part), given)
    assert all(map(torch.equal, gradients(attention(other), given), wanted))
    with torch.no_grad():
        attention(other).sampling_offsets.bias.add_(1)
    assert not torch.equal(gradients(attention(other), given)[0], wanted[0])
    assert torch.equal(gradients(attention(part), given)[0], wanted[0])
    assert accelerate(other, undo=True) == names and not is_accelerated(other) and is_accelerated(part)


@pytest.mark.parametrize("family", FORMS)
def test_save_pretrained(family, tmp_path):
    model = build(family)
    wanted = outputs(model, family)
    with torch.inference_mode():
        names = accelerate(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert not is_accelerated(loaded)
    assert difference(outputs(loaded, family), wanted) == 0
    assert accelerate(loaded) == names


@pytest.mark.parametrize("family", FORMS)
def test_attention_weights_are_still_recorded(family):
    model, given = build(family), inputs(family)
    theirs = model(**given, output_attentions=True)
    accelerate(model)
    ours = model(**given, output_attentions=True)
    names = [name for name in theirs if "attention" in name]
    assert names
    for name in names:
        for a, b in zip(ours[name], theirs[name], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def attention(model: nn.Module) -> nn.Module:
    """Return the first deformable attention, with its projections."""
    return next(module for module in model.modules() if hasattr(module, "sampling_offsets"))


def problem(family: str, layer: nn.Module, dtype: torch.dtype = torch.float32) -> dict:
    generator = torch.Generator().manual_seed(2)
    sizes = [(6, 5), (3, 4), (2, 2), (1, 1)][: layer.n_levels]
    total = sum(h * w for h, w in sizes)
    width, levels = layer.d_model, 1 if family in ("rt_detr_v2", "d_fine") else layer.n_levels
    options = dict(generator=generator, dtype=torch.float32)
    boxes = torch.rand(2, 9, levels, 4, **options)
    given = dict(
        hidden_states=torch.randn(2, 9, width, **options).to(dtype).requires_grad_(),
        encoder_hidden_states=torch.randn(2, total, width, **options).to(dtype).requires_grad_(),
        reference_points=boxes.to(dtype),
        spatial_shapes_list=sizes,
    )
    return given if family == "mask2former" else given | dict(spatial_shapes=torch.tensor(sizes))


def gradients(layer: nn.Module, given: dict, call=None) -> list[Tensor]:
    y = (layer if call is None else call)(**given)[0]
    leaves = [given["hidden_states"], given["encoder_hidden_states"], *layer.parameters()]
    g = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.slow
def test_bfloat16_is_as_exact_as_before(family):
    layer = attention(build(family)).bfloat16()
    given = problem(family, layer, torch.bfloat16)
    wide = {
        n: t.detach().double().requires_grad_() if isinstance(t, Tensor) and t.is_floating_point() else t
        for n, t in given.items()
    }
    exact = gradients(copy.deepcopy(layer).double(), wide)
    theirs = gradients(layer, given)
    accelerate(layer)
    ours = gradients(layer, given)
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a - c).norm() <= 1.5 * (b - c).norm() + 1e-6 * c.norm()


@pytest.mark.slow
@pytest.mark.parametrize("family", FORMS)
def test_compiles_without_graph_breaks(family):
    layer = attention(build(family))
    assert accelerate(layer)
    given = problem(family, layer)
    wanted = gradients(layer, given)
    torch.compiler.reset()

    class Parent(nn.Module):  # so that the layer's forward is inlined
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, **given):
            return self.layer(**given)

    for module in (layer, Parent()):
        found = gradients(layer, given, torch.compile(module, fullgraph=True, backend="aot_eager"))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exports_to_onnx(tmp_path):
    model = build("deformable_detr")
    wanted = outputs(model, "deformable_detr")["logits 0"]
    accelerate(model)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Tensor) -> Tensor:
            return self.model(pixel_values=pixel_values).logits

    images = inputs("deformable_detr")["pixel_values"]
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(Logits().eval(), (images,), path, dynamo=True, verbose=False)
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-3, atol=1e-4)


def test_nearest_neighbours_are_left_alone():
    discrete, bilinear = build("rt_detr_v2", decoder_method="discrete"), build("rt_detr_v2")
    with pytest.raises(UsageError, match=r"cannot accelerate model\.decoder.*'discrete'"):
        accelerate(discrete)
    with pytest.raises(UsageError, match="discrete"):
        accelerate(build("d_fine", decoder_method="discrete"))
    with pytest.warns(UserWarning, match=r"cannot accelerate 0\.model\.decoder\.layers\.0\.encoder_attn, 0\.model"):
        names = accelerate(nn.ModuleList([discrete, bilinear]))
    assert len(names) == 2 and all(name.startswith("1.") for name in names)
    assert not is_accelerated(discrete)
    attention(bilinear).method = "discrete"
    with pytest.raises(UsageError, match=r"cannot compute the method 'discrete'"):
        outputs(bilinear, "rt_detr_v2")
    with pytest.warns(UserWarning, match="encoder_attn: only bilinear"):
        assert accelerate(bilinear) == ["model.decoder.layers.1.encoder_attn"]
    outputs(bilinear, "rt_detr_v2")


@pytest.mark.slow
def test_kernels_are_compiled_at_once(tmp_path):
    script = """
import repgraph
from repgraph.ops.cpu import jit
from tests.families import build, inputs

model = build("deformable_detr")
repgraph.accelerate(model)
jit._Cache.save_overload = lambda *arguments: print("compiled in the first call")
model(**inputs("deformable_detr")).last_hidden_state.sum().backward()
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "compiling kernels for the CPU, once for this machine" in done.stderr and done.stdout == ""


def test_errors():
    for other in (nn.Linear(2, 2), {}):
        with pytest.raises(UsageError, match=f"found no deformable attention of .* in {type(other).__name__}"):
            accelerate(other)
    with pytest.raises(UsageError, match="backend is 'cuda'"):
        accelerate(build("deformable_detr"), backend="cuda")


def test_other_versions_of_transformers():
    def fake(forward) -> nn.Module:
        members = {"forward": forward, "__module__": "transformers.models.fake.modeling_fake"}
        return type(MODULE, (nn.Module,), members)()

    original = next(m for m in build("deformable_detr").modules() if type(m).__name__ == MODULE)
    plain = type(original).forward

    def without_list(self, value, value_spatial_shapes, sampling_locations, attention_weights):
        return value

    def scaled(
        self, value, value_spatial_shapes, value_spatial_shapes_list, level_start_index, sampling_locations,
        attention_weights, im2col_step,
    ):  # fmt: skip
        args = (value_spatial_shapes_list, level_start_index, sampling_locations, attention_weights, im2col_step)
        return 2 * plain(self, value, value_spatial_shapes, *args)

    assert accelerate(fake(plain)) == [""]
    model = nn.ModuleList([fake(plain), fake(without_list)])
    with pytest.raises(UsageError, match="has another signature"):
        accelerate(model)
    assert not is_accelerated(model)
    with pytest.raises(UsageError, match="gives other results"):
        accelerate(fake(scaled))
    for family in ("deformable_detr", "mask2former"):
        replaced = build(family)
        for module in replaced.modules():
            if type(module).__name__ == MODULE or hasattr(module, "sampling_offsets"):
                module.forward = lambda *_: None
        with pytest.raises(UsageError, match="was replaced"):
            accelerate(replaced)
