"""Detections: collected over processes, written as COCO's results files, and scored by COCO's own protocol."""

from repgraph.engine.detection.evaluation import CocoEvaluation
from repgraph.engine.detection.scores import DetectionScores, Precision

__all__ = ["CocoEvaluation", "DetectionScores", "Precision"]
