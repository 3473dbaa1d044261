"""Detections: found in images, collected over processes, written as COCO's results files, scored by its protocol."""

from repgraph.engine.detection.evaluation import CocoEvaluation
from repgraph.engine.detection.found import Found
from repgraph.engine.detection.network import detect
from repgraph.engine.detection.scores import DetectionScores, Precision, Recall
from repgraph.engine.detection.split import Detected, evaluate

__all__ = ["CocoEvaluation", "Detected", "DetectionScores", "Found", "Precision", "Recall", "detect", "evaluate"]
