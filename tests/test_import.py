"""Importing repgraph does no work, and the base install works without the extras. Each in a fresh process."""

import importlib

import pytest
from tests.absent import run_without

import repgraph

EXTRAS = ("matplotlib", "onnx", "onnxruntime", "onnxscript", "pytest", "hypothesis", "timm", "torchvision")


def test_import_is_lazy_and_silent():
    script = """
        import sys
        before = set(sys.modules)
        import repgraph.cli  # Ctrl-C is a traceback until then
        print(sorted(set(sys.modules) - before))
        """
    done = run_without((), script, "-W", "error")
    assert (done.returncode, done.stdout, done.stderr) == (0, "['repgraph', 'repgraph.cli']\n", "")


def test_layers_and_operator_need_neither_triton_nor_extras():
    """The first use of a layer imports torch, but no kernels."""
    done = run_without(
        ("triton", *EXTRAS),
        """
        import sys, repgraph
        repgraph.SimpleRepGraph
        import torch
        assert not torch.cuda.is_initialized() and "numba" not in sys.modules
        x, offsets = torch.randn(1, 4, 5, 6, requires_grad=True), torch.zeros(1, 6, 5, 6)
        for backend in ("auto", "cpu", "reference"):
            y = repgraph.representative_attention(x, x, x, offsets, backend=backend)
            assert torch.allclose(y, x, atol=1e-6)
            y.sum().backward()
        try:
            repgraph.representative_attention(x, x, x, offsets, backend="triton")
        except RuntimeError as error:
            print(error)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "backend 'triton' cannot run here: triton is not installed" in done.stdout


def test_every_public_name_resolves():
    packages = ("data", "evaluation", "inference", "layers", "models", "ops", "recipes", "train", "visualize")
    assert {*packages, "NonLocal", "__version__"} <= set(dir(repgraph))
    for name in dir(repgraph):
        getattr(repgraph, name)
    for module in (repgraph, *(importlib.import_module(f"repgraph.{name}") for name in packages)):
        for name in getattr(module, "__all__", ()):
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(repgraph, "nothing")  # noqa: B009


def test_models_without_their_extra():
    done = run_without(("timm",), "import repgraph.models")
    assert done.returncode == 1
    assert "repgraph.models needs timm: pip install '.[train]' in a clone" in done.stderr.splitlines()[-1]
