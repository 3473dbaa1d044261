"""Trained networks from disk."""

import pytest

from repgraph.engine.trained import recipe_of
from repgraph.errors import UsageError


@pytest.mark.parametrize("content", ["{", '{"name": "x", "data": {"name": "voc"}, "later": {}}'])
def test_a_recipe_that_cannot_be_read_is_no_end(tmp_path, content):
    assert recipe_of(tmp_path) is None
    path = tmp_path / "recipe.json"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        recipe_of(tmp_path / "model")
    assert str(path) in str(caught.value) and f"move {path} away" in str(caught.value)
