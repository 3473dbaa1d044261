"""Training. :mod:`repgraph.train.loop` has the loop; a task defines batches, losses and scores."""

from repgraph.train.loop import Outcome, resume, train
from repgraph.train.throughput import Throughput, measure

__all__ = ["Outcome", "Throughput", "measure", "resume", "train"]
