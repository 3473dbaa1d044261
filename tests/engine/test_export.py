"""``repgraph export``: each format computes what the network does, and mistakes leave no file."""

import io
import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from tests.absent import run_without
from tests.models.networks import assert_same_state, images, network, no_space, offline, one_thread  # noqa: F401

from repgraph import cli
from repgraph.engine.export import formats
from repgraph.models import load

LABELS = {"names": list("abcde")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    network(labels=LABELS, inserted={"layer3": 1}, backbone="resnet18").save_pretrained(folder / "model")
    return folder


def export(*arguments: object) -> int:
    try:
        return cli.main(["export", *map(str, arguments)])
    except SystemExit as end:  # argparse ends this way
        return int(end.code or 0)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("dynamic", [False, True])
def test_onnx(run: Path, tmp_path: Path, dynamic: bool, capsys: pytest.CaptureFixture[str]) -> None:
    out, more = tmp_path / "new" / "net.onnx", ["--dynamic"] if dynamic else []
    assert export(run, "--to", "onnx", "--out", out, "--size", "33x47", *more) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{out} (")
    assert "onnxruntime against the network: logits differ by at most" in captured.err
    model, program = load(run), session(out)
    (given,), (result,) = program.get_inputs(), program.get_outputs()
    assert (given.name, result.name) == ("images", "logits")
    assert given.shape == (["batch", 3, "height", "width"] if dynamic else [1, 3, 33, 47])
    for batch, size in [(1, (33, 47)), (2, (64, 97)), (3, (7, 13)), (1, (1, 1))] if dynamic else [(1, (33, 47))]:
        x = images(*size, batch=batch)
        (got,) = program.run(None, {"images": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), model(x).detach(), rtol=1e-4, atol=1e-4)
    proto = onnx.load(str(out))
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    assert json.loads({p.key: p.value for p in proto.metadata_props}["config"])["labels"] == LABELS


def test_a_backbone_that_cannot_be_exported_is_named(tmp_path: Path, capsys) -> None:
    """timm's average pooling rounds sizes in a way that a dynamic program cannot be saved with."""
    network().save_pretrained(tmp_path / "model")
    out = tmp_path / "net.pt2"
    assert export(tmp_path, "--to", "torch", "--out", out, "--size", "33x47", "--dynamic") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "torch.export cannot do 'resnet10t': " in last and "leave out --dynamic" in last
    assert not out.exists()


@pytest.mark.parametrize("options", [[], ["--dynamic", "--plain"]], ids=str)
def test_torch(run: Path, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "net.pt2"
    code = export(run / "model", "--to", "torch", "--out", out, "--size", "40x56", *options)
    said = capsys.readouterr().err
    if code == 2 and options and "torch.export cannot do 'resnet18': Guard failed" in said and not out.exists():
        pytest.skip("this PyTorch cannot export max pooling for all sizes")
    assert code == 0 and "the program against the network: logits differ by at most" in said
    extra = {"config.json": ""}
    program, model = torch.export.load(out, extra_files=extra), load(run)
    assert json.loads(extra["config.json"]) == model.config
    assert not any(name.startswith("auxiliary") for name in program.state_dict)
    for batch, size in [(1, (40, 56)), (3, (33, 97))] if options else [(1, (40, 56))]:
        x = images(*size, batch=batch)
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-4)
    ours = [node for node in program.graph.nodes if str(node.target).startswith("repgraph.")]
    assert bool(ours) == (not options)  # plain operators need nothing of ours


def test_a_plain_program_runs_without_repgraph(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "net.pt2"
    assert export(run, "--to", "torch", "--out", out, "--size", "24x24", "--plain") == 0
    script = f"""
    import torch
    print(tuple(torch.export.load({str(out)!r}).module()(torch.zeros(1, 3, 24, 24)).shape))
    """
    done = run_without(("repgraph",), script, "-W", "ignore")
    assert done.stdout == "(1, 5, 24, 24)\n", done.stderr


def test_safetensors_come_back_as_a_network(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "net.safetensors"
    assert export(run, "--to", "safetensors", "--out", out) == 0
    assert_same_state(load(out), load(run))
    assert load(out).labels == LABELS
    assert export(out, "--to", "safetensors", "--out", tmp_path / "again.safetensors") == 0
    assert out.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_names_of_files(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(run, "--to", "safetensors") == 0
    model = load(run)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"config": model.config, "state_dict": state}, tmp_path / "best.ckpt")
    assert export("best.ckpt", "--to", "safetensors") == 0
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["best.safetensors", "small.safetensors"]
    monkeypatch.chdir(run / "model")
    assert export(".", "--to", "safetensors") == 0  # the run's name
    (run / "model" / "small.safetensors").unlink()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["~no such user/run", "--to", "onnx"], "repgraph export: ~no such user/run is not there"),
        (["nowhere", "--to", "onnx"], "repgraph export: nowhere is not there; the folder of a run"),
        (["RUN", "--to", "onnx", "--out", "net.pt2"], "--out net.pt2 has to end in .onnx for --to onnx"),
        (["RUN", "--to", "onnx", "--size", "512"], "--size '512' is not a size; give height and width"),
        (["RUN", "--to", "onnx", "--size", "0x8"], "--size '0x8' is not a size"),
        (["RUN", "--to", "onnx", "--plain"], "--plain is for --to torch"),
        (["RUN", "--to", "safetensors", "--dynamic"], "--dynamic is for --to torch and onnx"),
        (["RUN", "--to", "onnx", "--tolerance", "2"], "--tolerance 2.0 is not a share"),
        (["RUN", "--to", "onnx", "--out", "FILE/net.onnx"], "net.onnx: Not a directory"),
        (["RUN", "--to", "jpeg"], "invalid choice: 'jpeg'"),
        (["RUN"], "the following arguments are required: --to"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(run: Path, tmp_path: Path, arguments: list[str], message: str, capsys) -> None:
    file = tmp_path / "file"
    file.write_text("")
    places = {"RUN": str(run), "FILE/net.onnx": str(file / "net.onnx")}
    assert export(*(places.get(argument, argument) for argument in arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err.splitlines()[-1]


def test_a_difference_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out, wrong = tmp_path / "net.safetensors", formats.Difference(0.5, 10.0)
    monkeypatch.setattr(formats, "to_onnx", lambda *arguments: formats.Exported(b"", wrong))
    assert export(run, "--to", "onnx", "--out", tmp_path / "net.onnx") == 1
    captured = capsys.readouterr()
    assert captured.out == "" and not list(tmp_path.iterdir())
    assert "differ by at most 0.5 (5.0e-02 of the largest, 10)" in captured.err
    assert "more than --tolerance 0.0001 allows" in captured.err and "net.onnx is not written" in captured.err
    assert export(run, "--to", "onnx", "--out", tmp_path / "net.onnx", "--tolerance", "0.1") == 0
    assert not out.exists()


def test_what_counts_as_a_difference(run: Path) -> None:
    model = load(run)
    same = formats.compare(model, model, (33, 33), True)
    assert same.absolute == 0 and same.largest > 0 and same.relative == 0
    off = formats.compare(lambda x: model(x) + 0.25, model, (33, 33), False)
    assert off.absolute == pytest.approx(0.25, rel=1e-3)
    assert formats.compare(lambda x: model(x)[:, :4], model, (33, 33), False).relative == float("inf")
    assert formats.compare(lambda x: model(x) * float("nan"), model, (33, 33), False).relative == float("inf")
    # A program that is wrong at other sizes only.
    wrong = formats.compare(lambda x: model(x) + (x.shape[0] == 3), model, (33, 33), True)
    assert wrong.absolute == pytest.approx(1, rel=1e-3)


def test_a_full_disk_leaves_no_file(run: Path, tmp_path: Path, no_space: None, capsys) -> None:  # noqa: F811
    out = tmp_path / "net.safetensors"
    assert export(run, "--to", "safetensors", "--out", out) == 2
    assert "net.safetensors: File too large" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_network_is_left_as_it_was(run: Path) -> None:
    model = load(run)
    before = io.BytesIO(model.to_bytes()).getvalue()
    formats.to_torch(model, (24, 24), plain=True)
    assert model.to_bytes() == before and model.head.context.backend == "auto" and model.auxiliary is not None


@pytest.mark.parametrize(
    ("hidden", "to", "message"),
    [
        (("timm",), "onnx", "repgraph export needs timm: pip install 'repgraph[train]'"),
        (
            ("onnxruntime", "onnxscript"),
            "onnx",
            "--to onnx needs onnxruntime and onnxscript: pip install 'repgraph[onnx]'",
        ),
    ],
)
def test_missing_packages_are_named(hidden: tuple[str, ...], to: str, message: str) -> None:
    script = f"import sys; from repgraph.cli import main; sys.exit(main(['export', 'run', '--to', {to!r}]))"
    done = run_without(hidden, script)
    assert done.returncode == 2 and done.stdout == "" and message in done.stderr
    assert run_without(("timm",), script.replace("'run', '--to'", "'--help', '--to'")).returncode == 0
