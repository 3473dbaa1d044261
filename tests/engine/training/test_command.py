"""``repgraph train`` as it is typed."""

import json
import os
import signal

import pytest
from tests.absent import run_without
from tests.engine.training.tiny import settings

from repgraph import recipes
from repgraph.cli import main
from repgraph.engine.training.module import Training


def typed(capsys, *arguments):
    code = main(["train", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list(capsys):
    code, out, _ = typed(capsys, "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(recipes.NAMES)
    assert "RGNet, ResNet-101, on ADE20K. The paper: 45.8 mIoU, 81.76 pixel accuracy, on val." in out


def test_print_gives_a_file_that_can_be_trained(capsys, tmp_path):
    code, out, _ = typed(
        capsys, "voc-r50-rgnet", "--data", "here", "--weights", "w", "--seed", 3, "--devices", 2, "--precision", "fp32",
        "--workers", 4, "--iterations", 7, "--batch", 8, "--compile", "--set", "optim.lr=0.5", "data.crop=64",
        "--set", "train.norm=local", "--print",
    )  # fmt: skip
    assert code == 0
    (tmp_path / "mine.json").write_text(out)
    found = recipes.load(tmp_path / "mine.json")
    assert (found.data.root, found.model.weights, found.data.workers, found.data.crop) == ("here", "w", 4, (64, 64))
    train = found.train
    assert (train.seed, train.devices, train.precision, train.iterations, train.batch) == (3, 2, "fp32", 7, 8)
    assert (train.compile, train.norm, found.optim.lr) == (True, "local", 0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a recipe's name (repgraph train --list shows all) or file, or --resume RUN"),
        (("voc-r50-rgent",), "did you mean 'voc-r50-rgnet'?"),
        (("none.json",), "none.json: No such file"),
        (("runs/none",), "runs/none: No such file"),
        (("voc-r50-rgnet", "--set", "optim.lrr=1"), "there is no setting 'optim.lrr'; did you mean 'optim.lr'?"),
        (("voc-r50-rgnet", "--set", "optim.lr=fast"), "optim.lr is 'fast'; a number is needed"),
        (("voc-r50-rgnet",), "where is voc? Give its folder: --data ROOT"),
        (("voc-r50-rgnet", "--data", "none"), "none"),
        (("--resume", "none"), "none is not the folder of a run"),
        (("voc-r50-rgnet", "--resume", "none"), "--resume takes recipe and folder from the run"),
    ],
)
def test_mistakes(capsys, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = typed(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("repgraph train: ") and words in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--iteration", "5"), "unknown argument '--iteration'; did you mean '--iterations'?"),
        (("--batch", "0"), "'0' is not a whole number of at least 1"),
        (("--precision", "fp8"), "invalid choice: 'fp8'"),
    ],
)
def test_mistyped_options(capsys, arguments, words):
    with pytest.raises(SystemExit) as caught:
        main(["train", "voc-r50-rgnet", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_run_from_a_file_in_the_default_folder(capsys, tmp_path, monkeypatch, pictures):
    monkeypatch.chdir(tmp_path)
    recipe = recipes.with_settings(recipes.get("folder-r50-rgnet"), settings(pictures, "train.iterations=2"))
    (tmp_path / "mine.json").write_text(json.dumps(recipes.to_dict(recipe) | {"name": "mine"}))
    code, out, err = typed(capsys, "mine.json")
    assert code == 0
    assert out.splitlines()[0].startswith("val mIoU ") and out.splitlines()[1].startswith("runs/mine/model: ")
    assert "2/2  loss " in err and " images/s  0 s left" in err
    code, out, err = typed(capsys, "mine.json")
    assert (code, out) == (2, "") and "--resume runs/mine" in err
    assert typed(capsys, "--resume", "runs/mine")[0] == 0


def stop_at(monkeypatch, iteration, act):
    note = Training._note

    def noted(self, losses):
        note(self, losses * float("nan") if act == "nan" and self.iteration == iteration else losses)
        if act != "nan" and self.iteration == iteration:
            os.kill(os.getpid(), act)

    monkeypatch.setattr(Training, "_note", noted)


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        (signal.SIGINT, 130, "stopped by SIGINT after iteration 2; go on with: repgraph train --resume"),
        (signal.SIGTERM, 143, "stopped by SIGTERM after iteration 2; go on with: repgraph train --resume"),
        ("nan", 3, "repgraph train: the loss of iteration 2 is not finite"),
    ],
)
def test_runs_that_stop(capsys, tmp_path, monkeypatch, pictures, act, code, words):
    stop_at(monkeypatch, 1, act)
    found, out, err = typed(
        capsys, "folder-r50-rgnet", "--out", tmp_path / "run", "--set", *settings(pictures, "data.val_split=")
    )
    assert (found, out) == (code, "")
    assert words in err.splitlines()[-1]


def test_measure(capsys, tmp_path, monkeypatch, pictures):
    from repgraph.engine import throughput

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(throughput.throughput, "__kwdefaults__", {"iterations": 3, "warm": 1, "show": None})
    code, out, err = typed(capsys, "folder-r50-rgnet", "--measure", "--set", *settings(pictures))
    assert code == 0
    assert "images/s with the data" in out and "images/s with one batch in memory" in out
    assert err.splitlines() == ["4 iterations with one batch in memory", "4 iterations with the data"]
    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_extra_and_training_names_it():
    extras = ("lightning", "timm", "torchvision", "tensorboard", "rich", "huggingface_hub", "safetensors", "PIL")
    script = "import sys; from repgraph.cli import main; sys.exit(main(['train', *{!r}]))"
    done = run_without(extras, script.format(["--help"]))
    assert done.returncode == 0 and "torchrun --nproc-per-node 8 -m repgraph train" in done.stdout
    done = run_without(("lightning",), script.format(["scenes-rgnet"]))
    assert done.returncode == 2
    assert done.stderr == "repgraph train needs lightning: pip install 'repgraph[train]'\n"
