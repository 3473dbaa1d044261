"""Small networks for the tests of models, and fixtures."""

import os
import socket
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from repgraph.layers import inserted
from repgraph.models import RGNet

SIZES = [(1, 1), (2, 2), (7, 13), (33, 33), (64, 97)]
FAST = dict(backbone="resnet10t", channels=16)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every connection to the network fail."""

    def fail(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a test tried to download something")

    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)


@pytest.fixture
def no_space() -> Iterator[None]:
    """Limit files to 100,000 bytes, which has the effect of a full disk."""
    resource = pytest.importorskip("resource", reason="file size limits exist on Unix only")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Runs:
    """An object whose pickle creates a folder when it is read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.folder,)


def network(seed: int = 0, **options) -> RGNet:
    """A small network in evaluation mode with random statistics and inserted layers that are not the identity."""
    torch.manual_seed(seed)
    return stir(RGNet(5, **{**FAST, **options})).eval()


def stir(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | FrozenBatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.3, 0.8)  # timm's are zero at the end of a block
        for layer in inserted(model).values():
            for parameter in layer.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return model


def images(*size: int, batch: int = 1, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(seed))


def assert_same_state(one: nn.Module, other: nn.Module) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
