import pytest
from tests.train import shapes, tiny

from repgraph.train import train


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return tiny.make_data(tmp_path_factory.mktemp("tiny") / "data")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder and the outcome of an uninterrupted run: 10 iterations in periods of 4."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, train(tiny.recipe(data), run)


@pytest.fixture(autouse=True, scope="module")
def small_detectors():
    """An iteration with the usual heads takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        shapes.shrink_detectors(patch)
        yield


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    return shapes.make_data(tmp_path_factory.mktemp("shapes") / "data")
