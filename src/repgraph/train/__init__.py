"""Training. :mod:`repgraph.train.loop` has the loop; a task says what a batch, a loss and a score are."""

from repgraph.train.loop import Outcome, resume, train
from repgraph.train.throughput import Throughput, measure

__all__ = ["Outcome", "Throughput", "measure", "resume", "train"]
