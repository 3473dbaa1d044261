"""What the layers of a network look at in an image: their representative nodes, or whom they attend to most."""

from repgraph.engine.sight.collect import look, look_and_run
from repgraph.engine.sight.find import layers
from repgraph.pictures.sight import LayerSight, Sight

__all__ = ["LayerSight", "Sight", "layers", "look", "look_and_run"]
