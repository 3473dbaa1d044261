"""Pictures of predictions: label overlays and detected objects."""
