"""What differs between training a segmentation and a detection: images, network, losses and scores."""

from repgraph.engine.tasks.task import Task, Tested
from repgraph.recipes import AnyRecipe, Recipe

__all__ = ["Task", "Tested", "of"]


def of(recipe: AnyRecipe) -> Task:
    """The task of a recipe.

    >>> from repgraph import recipes
    >>> of(recipes.get("voc-r50-rgnet")).best, of(recipes.get("coco-r50-nl")).best
    ('miou', 'mask_ap')
    """
    if isinstance(recipe, Recipe):
        from repgraph.engine.tasks.segmentation import Segmentation

        return Segmentation(recipe)
    from repgraph.engine.tasks.detection import Detection

    return Detection(recipe)
