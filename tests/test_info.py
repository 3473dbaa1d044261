"""``repgraph info``: true, complete, and there when everything else is missing."""

import json
import sys

import pytest
import torch
from tests.absent import run_without

import repgraph
from repgraph import cli, info
from repgraph.ops import backends


def test_every_backend_and_dtype_is_listed(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    for word in (
        "repgraph",
        "python",
        "torch",
        "numba",
        "numpy",
        "triton",
        "cuda",
        "threads",
        repgraph.__version__,
    ):
        assert word in out
    for backend in ("reference", "cpu", "triton"):
        assert f"cpu      {backend}" in out
    assert "yes  float64, float32, bfloat16, float16" in out  # the reference


def test_json_agrees_with_why_not(capsys):
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["repgraph"] == repgraph.__version__
    assert facts["devices"][0]["threads"] == torch.get_num_threads()
    seen = {(entry["backend"], entry["dtype"]) for entry in facts["backends"] if entry["device"] == "cpu"}
    assert len(seen) == 3 * 4
    for entry in facts["backends"]:
        device, dtype = torch.device(entry["device"]), getattr(torch, entry["dtype"])
        assert entry["reason"] == info.why_not(entry["backend"], device, dtype)
        assert entry["runs"] == (entry["reason"] is None)


def test_a_package_that_cannot_be_imported_is_a_reason(monkeypatch):
    info._import_error.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)  # makes its import fail
    try:
        reason = info.why_not("cpu", torch.device("cpu"), torch.float32)
        assert reason is not None and "importing it fails" in reason
        assert backends.why_not("cpu", torch.device("cpu"), torch.float16) == info.why_not(
            "cpu", torch.device("cpu"), torch.float16
        )
    finally:
        info._import_error.cache_clear()


def test_devices_of_a_gpu_machine(monkeypatch):
    class Properties:
        name, total_memory, major, minor, multi_processor_count = "Some GPU", 2**34, 9, 0, 132

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    monkeypatch.setattr(backends, "_capability", lambda index: (7, 5))
    text = info.render(info.gather())
    assert "cuda:0   Some GPU (16.0 GiB, capability 9.0, multiprocessors 132)" in text
    if backends._missing("triton") is None:
        assert "bfloat16: bfloat16 needs a GPU of compute capability 8.0, this one has 7.5" in text


@pytest.mark.parametrize("blocked", [("triton",), ("numba",), ("triton", "numba", "rich", "matplotlib", "onnx")])
def test_info_runs_with_packages_missing(blocked):
    done = run_without(blocked, "import sys; from repgraph.cli import main; sys.exit(main(['info', '--json']))")
    assert done.returncode == 0, done.stderr
    for entry in json.loads(done.stdout)["backends"]:
        needs = {"cpu": "numba", "triton": "triton"}.get(entry["backend"])
        if needs in blocked:
            assert not entry["runs"] and entry["reason"]
