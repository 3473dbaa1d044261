"""A small detector from beginning to end, and where it does not get there."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.engine.tasks.shapes import entry, make_data, outline, recipe
from tests.engine.training.tiny import at_iteration

from repgraph import recipes
from repgraph.data.coco import load
from repgraph.engine import tasks
from repgraph.engine.detection import evaluation
from repgraph.engine.tasks.detection import Detection
from repgraph.engine.tasks.objects import Objects
from repgraph.engine.throughput import throughput
from repgraph.engine.train import resume, train
from repgraph.engine.training import checkpoint
from repgraph.errors import UsageError

pytestmark = pytest.mark.usefixtures("small")


def rows(run):
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def last(run):
    return checkpoint.read(run / "checkpoints" / "last.ckpt")


def assert_same(left, right):
    """Weights and momenta, bit for bit."""
    ours, theirs = last(left), last(right)
    assert ours["iteration"] == theirs["iteration"] and ours["state_dict"].keys() == theirs["state_dict"].keys()
    assert [n for n, value in ours["state_dict"].items() if not torch.equal(value, theirs["state_dict"][n])] == []
    states = [found["optimizer_states"][0]["state"] for found in (ours, theirs)]
    assert states[0].keys() == states[1].keys() and states[0]
    assert all(torch.equal(states[0][k]["momentum_buffer"], states[1][k]["momentum_buffer"]) for k in states[0])
    assert torch.equal(ours["sums"], theirs["sums"])


def test_a_run_leaves_all_that_is_needed_to_know_it(whole, drawn):
    run, outcome = whole
    assert sorted(p.name for p in run.iterdir()) == [
        "checkpoints", "metrics.csv", "model", "recipe.json", "tensorboard", "versions.json",
    ]  # fmt: skip
    assert recipes.load(run / "recipe.json") == recipe(drawn)
    assert (outcome.iteration, outcome.stop, outcome.code) == (6, None, 0)
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["context"] == "repgraph" and config["min_size"] == [64] and config["detections"] == 5
    assert config["labels"]["names"] == ["box", "disc"]
    found = last(run)
    assert found["recipe"]["task"] == "detection" and set(found["best"]) == {"mask_ap", "iteration"}


def test_what_is_noted(whole):
    noted = rows(whole[0])
    assert [int(row["iteration"]) for row in noted] == [2, 4, 6]
    parts = ("classifier", "box_reg", "mask", "objectness", "rpn_box_reg")
    for row in noted:
        each = [float(row[f"loss_{name}"]) for name in parts]
        assert float(row["loss"]) == pytest.approx(sum(each), rel=1e-4) and min(each) >= 0
    assert [row["rate"] for row in noted] == ["0.0025025", "0.005", "5e-05"]  # warmed up, and after both steps
    reach = [name for name in noted[0] if name.startswith("reach_")]
    assert len(reach) == 2 and all(float(noted[-1][name]) > 0 for name in reach)
    scores = [name for name in noted[0] if name.startswith("val_")]
    assert len(scores) == 12 and [name for name in scores if noted[0][name]] == []
    assert float(noted[-1]["val_mask_ap"]) == whole[1].scores.mask.ap


def test_images_from_memory_give_the_same(whole, drawn, tmp_path):
    train(recipe(drawn, "data.cache=true", "train.period=6"), tmp_path / "run")
    assert_same(whole[0], tmp_path / "run")


def test_a_run_that_was_killed_goes_on_exactly(whole, drawn, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("power cut")

    run = tmp_path / "run"
    at_iteration(monkeypatch, 4, fail)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe(drawn), run)
    monkeypatch.undo()
    assert last(run)["iteration"] == 3
    torch.manual_seed(99)
    assert resume(run).code == 0
    assert_same(whole[0], run)
    unmeasured = ("images_per_second", "peak_memory_mib")
    told = [[{k: v for k, v in row.items() if k not in unmeasured} for row in rows(r)] for r in (run, whole[0])]
    assert told[0] == told[1]


def test_a_signal_stops_after_the_iteration(whole, drawn, tmp_path, monkeypatch):
    run = tmp_path / "run"
    at_iteration(monkeypatch, 1, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert train(recipe(drawn), run).code == 143 and last(run)["iteration"] == 2
    monkeypatch.undo()
    resume(run, [f"data.root={drawn}/."])
    assert_same(whole[0], run)


@pytest.mark.parametrize("part", ["roi_heads.mask_predictor.mask_fcn_logits", "backbone.fpn", "rpn.head"])
def test_numbers_that_are_not_finite_stop_the_run(drawn, tmp_path, monkeypatch, part):
    def poison(module):
        with torch.no_grad():
            next(module.model.detector.get_submodule(part).parameters()).fill_(torch.nan)

    run = tmp_path / "run"
    at_iteration(monkeypatch, 3, poison)
    outcome = train(recipe(drawn), run)
    assert outcome.code == 3 and outcome.stop.reason.startswith("the loss of iteration 5 is not finite")
    assert outcome.stop.reason.endswith(f"the last good checkpoint is {run / 'checkpoints' / 'last.ckpt'}")
    assert last(run)["iteration"] == 3 and not (run / "model").exists()


def test_a_test_that_is_not_finite_stops_the_run(drawn, tmp_path, monkeypatch):
    def blow_up(module):
        with torch.no_grad():
            module.model.detector.roi_heads.box_predictor.cls_score.weight.fill_(3e38)

    at_iteration(monkeypatch, 5, blow_up)
    outcome = train(recipe(drawn), tmp_path / "run")
    assert outcome.code == 3 and outcome.stop.reason.startswith("the logits in the test after iteration 6 are not")
    assert last(tmp_path / "run")["iteration"] == 3


ONE = ("train.iterations=1", "optim.warmup=0", "optim.weight_decay=0", "optim.steps=[]", "train.log_every=1")


def test_without_the_package_for_scores_what_was_found_is_written(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "available", lambda: False)
    shown = io.StringIO()
    outcome = train(recipe(drawn, *ONE, "test.score_threshold=0"), tmp_path / "run", show=shown)
    assert outcome.code == 0 and outcome.scores is None and outcome.best.iteration == 0
    assert "1/1  no score: scores need pycocotools: pip install 'repgraph[detection]'" in shown.getvalue()
    for kind, key in (("bbox", "bbox"), ("segm", "segmentation")):
        found = json.loads((tmp_path / "run" / "predictions" / f"1-{kind}.json").read_text())
        assert found and all(key in each and each["category_id"] in (7, 12) for each in found)
    assert rows(tmp_path / "run")[0]["val_mask_ap"] == ""


def test_images_that_are_held_out(drawn, tmp_path):
    task = tasks.of(recipe(drawn, "data.hold_out=2", "data.val_split=nowhere"))
    images, tests = task.splits()
    assert [item.name for item in images.items] == ["train-0.png", "train-2.png", "train-4.png"]
    assert [item.name for item in tests.items] == ["train-1.png", "train-3.png"]
    assert len(task.pick(images, range(2))) == 2 and len(images) == 3
    outcome = train(recipe(drawn, *ONE, "data.hold_out=2", "data.limit=2"), tmp_path / "run")
    assert outcome.scores.images == 2


CROWD = {"size": [60, 72], "counts": [0, 60 * 72]}
EXTRA = (
    entry(0, 1, 7, outline(7, 10.2, 10.2, 0.1)),  # no pixel's centre is in it
    entry(0, 1, 7, outline(7, 5, 5, 9), bbox=[5, 5, 0.01, 9]),  # nothing of its box would be left
    entry(0, 1, 7, outline(7, 5, 5, 9), bbox=[5, 5, 0, 9]),
    entry(0, 2, 99, outline(7, 5, 5, 9)),
    {"image_id": 1, "category_id": 7, "iscrowd": 1, "segmentation": CROWD, "bbox": [0, 0, 72, 60], "area": 4320},
)


@pytest.fixture
def spoilt(tmp_path):
    """Data in which there is all that can be wrong with objects, an image without any, and one that is none."""
    root = make_data(tmp_path / "data", extra=EXTRA)
    path = root / "annotations" / "train.json"
    content = json.loads(path.read_text())
    content["annotations"] = [each for each in content["annotations"] if each["image_id"] != 4]
    path.write_text(json.dumps(content))
    (root / "images" / "train-4.png").write_text("nothing")
    return root


def test_objects_that_cannot_be_used_end_no_run(spoilt, tmp_path):
    shown = io.StringIO()
    outcome = train(recipe(spoilt, "train.iterations=3", "train.batch=3"), tmp_path / "run", show=shown)
    assert outcome.code == 0
    left_out = next(line for line in shown.getvalue().splitlines() if "left out" in line)
    assert left_out.startswith("coco train: left out are images without objects: 1, ")
    assert "images that cannot be read: 1" in left_out and "unknown categories: 1" in left_out
    assert "3 images, 3 to test on" in shown.getvalue()


def test_crowds_and_slivers_are_not_learned_from(spoilt):
    task = tasks.of(recipe(spoilt, "data.flip=false"))
    images, _ = task.splits()
    image, target = task.transform(None)(*images[0], torch.Generator().manual_seed(0))
    assert len(target["boxes"]) == 2 and len(load(spoilt)[0][1]["boxes"]) == 4
    batch = task.collate(0, [(image, target)])
    assert batch.targets()[0]["masks"].shape == (2, 60, 72)


def test_an_image_whose_objects_vanish_is_learned_from(tmp_path):
    """All that is left of it is background."""
    root = make_data(tmp_path / "data", 2)
    path = root / "annotations" / "train.json"
    content = json.loads(path.read_text())
    content["annotations"] = [e | {"bbox": [5, 5, 0.01, 0.01]} for e in content["annotations"]]
    path.write_text(json.dumps(content))
    shown = io.StringIO()
    outcome = train(recipe(root, *ONE, "data.val_split="), tmp_path / "run", show=shown)
    assert outcome.code == 0 and float(rows(tmp_path / "run")[0]["loss_mask"]) == 0
    assert "warning: up to iteration 1, there was not one object since the last checkpoint" in shown.getvalue()


@pytest.mark.parametrize(
    "more",
    [
        ("train.precision=bf16", "model.context=non_local", "train.accumulate=2", "model.min_size=48,64"),
        ("model.context=none", "model.norm=batch", "model.trainable_stages=5", "optim.clip=0.5", "data.flip=false"),
    ],
    ids=["bf16", "no layer"],
)
def test_other_settings(drawn, tmp_path, more):
    outcome = train(recipe(drawn, *ONE, *more), tmp_path / "run")
    assert outcome.code == 0 and outcome.scores.images == 3
    if "optim.clip=0.5" in more:  # after one iteration without decay the momentum is the gradient
        states = last(tmp_path / "run")["optimizer_states"][0]["state"].values()
        length = torch.stack([state["momentum_buffer"].norm() for state in states]).norm()
        assert float(length) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.root=", "where are the images and annotations"),
        ("data.root=/nowhere", "/nowhere"),
        ("data.name=voc", "data.name is 'voc', which has no objects; for detection there is coco"),
        ("data.split=none", "none2017.json: there is no such file"),
        ("data.options.pictures=x", "coco has no option 'pictures'"),
        ("data.hold_out=9", "data.hold_out is 9, and there are only 5 images"),
        ("model.weights=", "say where the backbone resnet18 starts"),
        ("model.backbone=resnet19", "resnet19"),
        ("model.context_options.nods=3", "nods"),
        ("model.caffe_style=yes", "caffe_style is for ResNets of bottlenecks"),
        ("train.compile=true", "train.compile is for images of one size"),
        ("train.devices=3", "train.batch is 2, which 3 devices cannot share"),
    ],
)
def test_a_mistake_leaves_no_folder(drawn, tmp_path, setting, words):
    with pytest.raises(UsageError, match=words):
        train(recipe(drawn, setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("categories", "words"),
    [
        ([{"id": 7, "name": "disc"}, {"id": 12, "name": "box"}], "class 0 is 'disc' and 'box'; both need the same"),
        ([{"id": 7, "name": "box"}], "there are 1 and 2; both need the same"),
    ],
)
def test_tests_of_other_classes_are_refused_before_training(tmp_path, categories, words):
    root = make_data(tmp_path / "data", 2, 1)
    path = root / "annotations" / "val.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"categories": categories}))
    with pytest.raises(UsageError, match=f"'val' has other classes than data.split 'train': {words}"):
        train(recipe(root), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_too_narrow_for_the_network_end_no_run(tmp_path):
    """At a longer side of 96, nothing would be left of a line of 300 pixels."""
    root = make_data(tmp_path / "data", 2, 1)
    path = root / "annotations" / "train.json"
    content = json.loads(path.read_text())
    for image, size in zip(content["images"], [(300, 1), (1, 300)], strict=True):
        Image.new("RGB", size).save(root / "images" / image["file_name"])
        image |= {"width": size[0], "height": size[1]}
    shapes = {1: [20, 0, 90, 0, 90, 1, 20, 1], 2: [0, 20, 1, 20, 1, 90, 0, 90]}
    content["annotations"] = [entry(number, number, 7, shape) for number, shape in shapes.items()]
    path.write_text(json.dumps(content))
    assert train(recipe(root, *ONE, "data.val_split=", "data.by_orientation=false"), tmp_path / "run").code == 0


def test_splits_without_annotations_are_refused(tmp_path):
    root = make_data(tmp_path / "data", 2, 1)
    content = json.loads((root / "annotations" / "train.json").read_text())
    del content["annotations"]
    (root / "annotations" / "bare.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"data\.val_split is 'bare', which has no labels"):
        train(recipe(root, "data.val_split=bare"), tmp_path / "run")
    with pytest.raises(UsageError, match=r"bare\.json: no image in it has an object"):
        train(recipe(root, "data.split=bare"), tmp_path / "run")


def test_every_part_of_a_batch_counts_alike(drawn):
    """torchvision's losses are means over the images that it is called with."""
    task = tasks.of(recipe(drawn, "train.accumulate=2"))

    def model(images, targets):
        return {name: torch.tensor(float(len(images))) for name in Detection.losses[1:]}

    batch = Objects(0, torch.zeros(0), torch.zeros(0), torch.zeros(0, 4), torch.zeros(0), ((0, 0, 0),) * 3)
    whole, noted = task.loss(model, batch, task.amount(batch), 4)
    assert float(whole) == float(noted[0]) == 5 * 3 / 4 and [float(each) for each in noted[1:]] == [0.75] * 5


def test_measured_with_data_and_without(drawn):
    found = throughput(recipe(drawn, "data.cache=true"), iterations=2, warm=1)
    assert found.real > 0 and found.fixed > 0


TWO = """
import os
import sys
from pathlib import Path
import torch
from tests.engine.tasks import shapes
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.tasks.detection import Detection
from repgraph.engine.tasks.task import Where
from repgraph.engine.train import train

bind = Detection.bind
Detection.bind = lambda self, model: bind(self, shapes.shrink(model))
torch.set_num_threads(1)
kept = []
loss = Detection.loss
Detection.loss = lambda self, model, *more: kept.append(model) or loss(self, model, *more)
recipe, rank = shapes.recipe(sys.argv[1], *sys.argv[3:]), int(os.environ["RANK"])
outcome = train(recipe, sys.argv[2])
model = kept[-1]
total = float(sum(value.detach().double().sum() for value in model.parameters()))
sys.stdout.write(f"weights {total} {outcome.scores.images}\\n")  # at once: two processes write
if rank == 1:  # what it makes of its images is not finite
    spoil = lambda module, given, maps: {name: value * torch.nan for name, value in maps.items()}
    model.detector.backbone.register_forward_hook(spoil)
task = Detection(recipe)
assert torch.distributed.is_initialized()
try:
    task.test(model, task.splits()[1], Where(rank, 2, 1, Path(sys.argv[2])))
except NotFinite as error:
    sys.stdout.write(f"told: {error}\\n")
torch.distributed.destroy_process_group()
"""


def test_two_processes_learn_one_network(spoilt, tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
    given = [sys.executable, *launcher, str(spoilt), str(tmp_path / "run"), *ONE, "train.batch=4"]
    more = {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(given, capture_output=True, text=True, timeout=300, env=os.environ | more)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("weights")]
    assert len(told) == 2 and told[0] == told[1] and told[0].endswith(" 3")
    assert "Warning" not in done.stderr, done.stderr
    bad = sorted(line for line in done.stdout.splitlines() if line.startswith("told"))
    assert len(bad) == 2 and "val-1.png: the backbone gives numbers that are not finite" in bad[0]
    assert bad[1] == "told: the network gives numbers that are not finite"
    assert float(rows(tmp_path / "run")[0]["loss_mask"]) > 0
