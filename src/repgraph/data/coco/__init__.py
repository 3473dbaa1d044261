"""Objects in images: annotation files in COCO's format, with polygons, run lengths and crowds.

``load("data/coco", "train")`` opens a split; :class:`~repgraph.data.coco.dataset.InstanceData` says what it is.
"""

from pathlib import Path

from repgraph.data.coco.dataset import InstanceData
from repgraph.data.coco.layout import open_split
from repgraph.data.coco.transforms import RandomFlip
from repgraph.data.listing import need_all

__all__ = ["InstanceData", "RandomFlip", "load", "open_split"]


def load(
    root: str | Path,
    split: str = "train",
    *,
    images: str | None = None,
    annotations: str | None = None,
    crowds: bool = True,
    empty: bool = True,
) -> InstanceData:
    """One split of a set with COCO's annotation format.

    Args:
        root: the folder of the set.
        split: "train", "val", "test" or any other that has an annotation file.
        images: the folder with the images, in ``root``; default: COCO's ``train2017``, or ``train``, ``images``, VOC's
            ``JPEGImages`` and the like, whichever is there. ``{split}`` in it stands for the split.
        annotations: the annotation file, in ``root``; default: ``annotations/instances_train2017.json``, or without the
            year. ``{split}`` in it stands for the split.
        crowds: whether crowds are among the objects; training is done without them.
        empty: whether images without objects are kept.

    A file that cannot be read and images that are missing are errors here. Objects that cannot be used are left out,
    and counted in the set's ``skipped``.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        repgraph.data.listing.Missing: nowhere: there is no such folder; expected is annotations/instances_SPLIT2017...
    """
    return need_all(open_split(root, split, images=images, annotations=annotations, crowds=crowds, empty=empty))
