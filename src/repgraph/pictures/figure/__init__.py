"""Figures for papers, drawn with Matplotlib."""
