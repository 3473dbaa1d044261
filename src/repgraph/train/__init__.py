"""Training. :mod:`repgraph.train.loop` has the loop; a task defines batches, losses and scores."""

from repgraph.train.loop import Outcome, resume, train

__all__ = ["Outcome", "resume", "train"]
