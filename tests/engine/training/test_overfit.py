"""A small network learns four real images by heart."""

from PIL import Image
from tests.shared_data import shared

from repgraph import data, recipes
from repgraph.engine.train import train


def test_four_real_images(tmp_path):
    voc = data.load("voc", shared("data/VOC2012"), "train")
    for item in voc.items[:4]:  # at half their size, for time
        for kind, path, way in (("images", item.image, Image.BILINEAR), ("masks", item.mask, Image.NEAREST)):
            (tmp_path / "data" / kind / "train").mkdir(parents=True, exist_ok=True)
            with Image.open(path) as picture:
                small = picture.resize((picture.width // 2, picture.height // 2), way)
            small.save(tmp_path / "data" / kind / "train" / f"{item.name}.png")
    (tmp_path / "data" / "classes.txt").write_text("\n".join(voc.labels.names))
    settings = [
        f"data.root={tmp_path / 'data'}",
        "data.val_split=train",
        "data.crop=160",
        "data.scales=1",
        "data.flip=false",
        "data.cache=true",
        "data.workers=0",
        "model.backbone=test_resnet",
        "model.weights=none",
        "model.channels=64",
        "model.dropout=0",
        "optim.lr=0.05",
        "optim.head=1",
        "optim.offset=1",
        "train.batch=4",
        "train.iterations=60",
        "train.precision=fp32",
        "train.accelerator=cpu",
        "test.mode=whole",
    ]
    outcome = train(recipes.with_settings(recipes.get("folder-r50-rgnet"), settings), tmp_path / "run")
    assert outcome.scores.pixel_accuracy > 0.95
