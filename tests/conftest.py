import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# Some virtual machines announce AMX and then fail with "illegal instruction"; the tests disable it in oneDNN.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A shell starts background jobs with SIGINT ignored; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # small networks are no faster with more, and much slower if cores are busy

if not torch.cuda.is_available():
    # Before anything imports Triton: its kernels are then interpreted on the CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """The folder of a small network of three classes."""
    from tests import trained

    return trained.save_network(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The folder of five images and masks."""
    from tests import trained

    return trained.save_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def model():
    """A small Mask R-CNN."""
    from tests import objects

    return objects.network()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("REPGRAPH_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser: install chromium, or set REPGRAPH_BROWSER to its path")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
