"""``repgraph info`` lists versions, devices and backends, also if packages are missing."""

import json
from types import SimpleNamespace

import torch
from tests.absent import run_without

import repgraph
from repgraph import cli, info
from repgraph.ops import backends


def test_text_and_json(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"repgraph   {repgraph.__version__}" in out and f"torch      {torch.__version__}" in out
    assert "cpu      reference  yes  float64, float32, bfloat16, float16" in out
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len({(row["backend"], row["dtype"]) for row in facts["backends"] if row["device"] == "cpu"}) == 3 * 4
    for row in facts["backends"]:
        device, dtype = torch.device(row["device"]), getattr(torch, row["dtype"])
        assert row["reason"] == backends.why_not(row["backend"], device, dtype)
        assert row["runs"] == (row["reason"] is None)


def test_command_line(monkeypatch):
    for program in ("/opt/bin/repgraph", "/opt/site-packages/repgraph/__main__.py"):  # the second: python -m repgraph
        monkeypatch.setattr("sys.argv", [program, "demo", "--out", "a b", "\udcff"])
        assert info.command_line() == "repgraph demo --out 'a b' '?'"


def test_gpu(monkeypatch):
    values = dict(name="Some GPU", total_memory=2**34, major=9, minor=0, multi_processor_count=132)
    facts = info.gather()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**values))
    text = info.render(facts | {"devices": info.devices()})
    assert "cuda:0   Some GPU (16.0 GiB, capability 9.0, multiprocessors 132)" in text


def test_missing_packages():
    hidden = ("triton", "numba", "matplotlib", "onnx", "timm")
    done = run_without(hidden, "import sys; from repgraph.cli import main; sys.exit(main(['info', '--json']))")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["backends"]
    assert {row["backend"] for row in rows if row["runs"]} == {"reference"}
