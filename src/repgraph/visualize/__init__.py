"""Figures and pages that show what the layers of a network attend to."""
