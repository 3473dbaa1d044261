"""Importing repgraph does no work, and the base install works without the extras. Each in a fresh process."""

import json
import statistics
import subprocess
import sys

import pytest
from tests.absent import run_without

LAZY = (
    "numba",
    "llvmlite",
    "triton",
    "matplotlib",
    "rich",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "torchvision",
)
EXTRAS = ("rich", "matplotlib", "onnx", "onnxruntime", "onnxscript", "pytest", "hypothesis")


def fresh(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", script], capture_output=True, text=True)


def test_import_loads_nothing_heavy_and_does_not_touch_cuda():
    done = fresh(f"""
import json, sys, torch
before = set(sys.modules)
import repgraph
new = set(sys.modules) - before
print(json.dumps(dict(
    heavy=[name for name in {LAZY!r} if name in new],
    outside=sorted(n for n in new if n.split(".")[0] not in (*sys.stdlib_module_names, "torch", "repgraph")),
    cuda=torch.cuda.is_initialized(),
)))
""")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"heavy": [], "outside": [], "cuda": False}


def test_import_warns_of_nothing():
    # torch first: its own warnings are not ours
    done = fresh("import warnings, torch; warnings.simplefilter('error'); import repgraph")
    assert (done.returncode, done.stderr) == (0, "")


def test_import_takes_no_time_beyond_torch():
    script = """
import time, torch
start = time.perf_counter()
import repgraph
print(time.perf_counter() - start)
"""
    assert statistics.median(float(fresh(script).stdout) for _ in range(3)) < 0.2


def test_the_operator_runs_without_triton_and_extras():
    done = run_without(
        ("triton", *EXTRAS),
        """
        import torch, repgraph
        x, offsets = torch.randn(1, 4, 5, 6), torch.zeros(1, 6, 5, 6)
        assert torch.allclose(repgraph.representative_attention(x, x, x, offsets, backend="reference"), x)
        try:
            repgraph.representative_attention(x, x, x, offsets, backend="triton")
        except RuntimeError as error:
            print(error)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "triton is not installed" in done.stdout


@pytest.mark.parametrize(
    ("hidden", "named"),
    [(EXTRAS, "rich and matplotlib"), (("rich",), "rich"), (("matplotlib",), "matplotlib")],
)
def test_bench_without_its_extra_says_what_to_install(hidden, named):
    script = "import sys; from repgraph.cli import main; sys.exit(main(['bench', 'operator', '--quick']))"
    done = run_without(hidden, script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"repgraph bench operator needs {named}: pip install 'repgraph[bench]'\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["bench"], ["bench", "operator", "--help"]])
def test_help_needs_no_extra(arguments):
    done = run_without(EXTRAS, f"import sys; from repgraph.cli import main; sys.exit(main({arguments!r}))")
    assert done.returncode == 0, done.stderr
    assert "repgraph" in done.stdout


def test_help_of_every_command_needs_no_extra():
    networks = ("joblib", "lightning", "tensorboard", "timm", "torchvision", "huggingface_hub", "safetensors", "PIL")
    done = run_without(
        (*EXTRAS, *networks),
        """
        from repgraph.cli import COMMANDS, main
        for command in COMMANDS:
            try:
                code = main([*command.words.split(), "--help"])
            except SystemExit as end:
                code = end.code
            assert code in (0, None), command.words
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "usage: repgraph ablate" in done.stdout and "usage: repgraph train" in done.stdout


@pytest.mark.parametrize("name", ["timm", "safetensors"])
def test_models_without_their_extra_say_what_to_install(name):
    done = run_without((name,), "import repgraph.models")
    assert done.returncode == 1
    assert f"repgraph.models needs {name}: pip install 'repgraph[train]'" in done.stderr.splitlines()[-1]
