import pytest
from tests.engine.tasks import shapes
from tests.engine.training.conftest import one_thread, pictures  # noqa: F401

from repgraph.engine.tasks.detection import Detection
from repgraph.engine.train import train


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """The root of pictures with drawn objects."""
    return shapes.make_data(tmp_path_factory.mktemp("drawn") / "data")


@pytest.fixture(scope="module")
def small():
    """Detectors with small heads that look at few boxes: those of the paper take seconds for an iteration."""
    bind = Detection.bind

    def bound(self, model):
        bind(self, shapes.shrink(model))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Detection, "bind", bound)
        yield


@pytest.fixture(scope="module")
def whole(drawn, small, tmp_path_factory):
    """A run that nothing happened to: 6 iterations in periods of 3."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, train(shapes.recipe(drawn), run)
