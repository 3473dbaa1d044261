import pytest
import torch
from tests.engine.training import tiny


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
