"""``repgraph demo``: a small RGNet and the same network without the layer, trained on the embedded scenes, compared."""
