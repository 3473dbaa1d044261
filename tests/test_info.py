"""``repgraph info`` lists versions, devices and backends, also if packages are missing."""

import itertools
import re
from types import SimpleNamespace

import torch
from tests.absent import run_without

import repgraph
from repgraph import cli, info
from repgraph.ops import backends


def test_text(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"repgraph   {repgraph.__version__}" in out and f"torch      {torch.__version__}" in out
    assert "cpu      reference  yes  float64, float32, bfloat16, float16" in out
    lines = out.partition("backends\n")[2].splitlines()
    for backend, dtype in itertools.product(info.BACKENDS, info.DTYPES):
        reason = backends.why_not(backend, torch.device("cpu"), getattr(torch, dtype))
        own = (line for line in lines if line.split()[:2] == ["cpu", backend])
        (line,) = (line for line in own if dtype in re.split("[ ,]+", line.partition(":")[0]))
        assert line.split()[2] == ("no" if reason else "yes") and line.endswith(reason or "")


def test_command_line(monkeypatch):
    for program in ("/opt/bin/repgraph", "/opt/site-packages/repgraph/__main__.py"):  # the second: python -m repgraph
        monkeypatch.setattr("sys.argv", [program, "demo", "--out", "a b", "\udcff"])
        assert info.command_line() == "repgraph demo --out 'a b' '?'"


def test_gpu(monkeypatch):
    values = dict(name="Some GPU", total_memory=2**34, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**values))
    assert info.devices()["cuda:0"] == "Some GPU (16.0 GiB, capability 9.0, multiprocessors 132)"


def test_missing_packages():
    hidden = ("triton", "numba", "matplotlib", "onnx", "timm")
    done = run_without(hidden, "import sys; from repgraph.cli import main; sys.exit(main(['info']))")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.partition("backends\n")[2].splitlines()
    assert {line.split()[1] for line in lines if line.split()[2] == "yes"} == {"reference"}
