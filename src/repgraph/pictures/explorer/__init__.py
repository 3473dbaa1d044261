"""The explorer: one HTML file in which each position of an image shows its representative nodes when pointed at."""

from repgraph.pictures.explorer.assemble import Picture, page
from repgraph.pictures.explorer.underlay import Box, Entry, Underlay, of_labels, of_objects

__all__ = ["Box", "Entry", "Picture", "Underlay", "of_labels", "of_objects", "page"]
