"""Data sets for semantic segmentation: readers, transforms, and a check of the files."""

from repgraph.data.labels import IGNORE, DataError, Labels

NAMES = ("ade20k", "camvid", "cityscapes", "folder", "pascal_context", "scenes", "stanford", "voc")
__all__ = ["IGNORE", "NAMES", "DataError", "Labels"]
