import pytest
from tests.engine import trained


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """The folder of a small network of three classes."""
    return trained.save_network(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The folder of five images and masks."""
    return trained.save_data(tmp_path_factory.mktemp("data"))
