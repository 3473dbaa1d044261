import pytest
import torch
from tests.engine.training import tiny

from repgraph.engine.train import train


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """The root of the tiny data set."""
    return tiny.make_data(tmp_path_factory.mktemp("tiny") / "data")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks this small are no faster with more, and much slower where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """A run that nothing happened to: 10 iterations in periods of 4."""
    run = tmp_path_factory.mktemp("whole") / "run"
    outcome = train(tiny.recipe(pictures), run)
    return run, outcome
