"""Recipes: what to train on what, and how, as typed values. See :mod:`repgraph.recipes.table` for the named ones."""

from repgraph.recipes.recipe import Data, Model, Optim, Recipe, Test, Train
from repgraph.recipes.settings import from_dict, load, to_dict, to_json, with_settings
from repgraph.recipes.table import NAMES, get

__all__ = [
    "NAMES",
    "Data",
    "Model",
    "Optim",
    "Recipe",
    "Test",
    "Train",
    "from_dict",
    "get",
    "load",
    "to_dict",
    "to_json",
    "with_settings",
]
