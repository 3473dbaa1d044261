"""Recipes: data, network, optimization and schedule of a run. :mod:`repgraph.recipes.named` has the named ones."""

from repgraph.recipes.named import NAMES, PYRAMID_OPTIMIZER, get
from repgraph.recipes.schema import RESUMABLE, AnyRecipe, Data, DetectionData, DetectionRecipe, Recipe, Test, Train
from repgraph.recipes.settings import explain, from_dict, load, to_dict, to_json, with_settings, with_values

__all__ = [
    "NAMES", "PYRAMID_OPTIMIZER", "RESUMABLE", "AnyRecipe", "Data", "DetectionData", "DetectionRecipe", "Recipe",
    "Test", "Train", "explain", "from_dict", "get", "load", "to_dict", "to_json", "with_settings", "with_values",
]  # fmt: skip
