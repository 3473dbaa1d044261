from tests.engine.training.conftest import one_thread, pictures  # noqa: F401
