"""Evaluation of networks on data sets: mIoU of segmentations, COCO's average precision of detections."""

from repgraph.evaluation.detection import CocoEvaluation, DetectionEvaluation, DetectionScores, evaluate_detection
from repgraph.evaluation.segmentation import Confusion, Evaluation, Scores, evaluate

__all__ = [
    "CocoEvaluation",
    "Confusion",
    "DetectionEvaluation",
    "DetectionScores",
    "Evaluation",
    "Scores",
    "evaluate",
    "evaluate_detection",
]
