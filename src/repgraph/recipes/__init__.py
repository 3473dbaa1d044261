"""Recipes: what to train on what, and how, as typed values. See :mod:`repgraph.recipes.table` for the named ones."""

from repgraph.recipes.detection import DetectionData, DetectionModel, DetectionOptim, DetectionRecipe, DetectionTest
from repgraph.recipes.recipe import Data, Model, Optim, Recipe, Test
from repgraph.recipes.sections import Train
from repgraph.recipes.settings import AnyRecipe, from_dict, load, to_dict, to_json, with_settings
from repgraph.recipes.table import NAMES, get

__all__ = [
    "NAMES",
    "AnyRecipe",
    "Data",
    "DetectionData",
    "DetectionModel",
    "DetectionOptim",
    "DetectionRecipe",
    "DetectionTest",
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
