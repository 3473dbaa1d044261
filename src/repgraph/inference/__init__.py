"""Inference: from a network and an image to labels or objects."""

from repgraph.inference.detection import Detections, detect
from repgraph.inference.network import NotFinite, Trained, load
from repgraph.inference.sliding_window import Settings, predict

__all__ = ["Detections", "NotFinite", "Settings", "Trained", "detect", "load", "predict"]
