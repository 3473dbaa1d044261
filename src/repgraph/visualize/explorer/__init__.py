"""The explorer: an HTML page that shows the nodes of any position of an image under the pointer."""

from repgraph.visualize.explorer.page import ExplorerImage, explore

__all__ = ["ExplorerImage", "explore"]
