"""From a network and an image to labels: whole or in windows, at several scales, flipped, in bounded memory."""

from repgraph.engine.inference.predictor import predict
from repgraph.engine.inference.settings import Settings

__all__ = ["Settings", "predict"]
