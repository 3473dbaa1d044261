"""A small residual network for the tests of insertion, and a comparison of networks."""

import torch
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, DualAttention, NonLocal, SimpleRepGraph, inserted

KINDS = [BottleneckRepGraph, SimpleRepGraph, NonLocal, DualAttention]


class Block(nn.Module):
    """A residual block that halves the map where the channels change."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.act = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.drop = nn.Dropout(0.1)
        self.down = None if channels == out else nn.Conv2d(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.bn2(self.conv2(self.act(self.bn1(self.conv1(x))))))
        return self.act(y + (x if self.down is None else self.down(x)))


class Network(nn.Module):
    """A stem and three stages: of 3, 2 and 1 blocks, with 8, 12 and 16 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stage1 = nn.Sequential(Block(8, 8), Block(8, 8), Block(8, 8))
        self.stage2 = nn.Sequential(Block(8, 12), Block(12, 12))
        self.stage3 = nn.Sequential(Block(12, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.head(x.mean((2, 3)))


EVERYWHERE = {"stage1": 2, "stage2": 1, "stage3": 1}
PATHS = ["stage1.1.repgraph", "stage1.2.repgraph", "stage2.1.repgraph", "stage3.0.repgraph"]


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def images(size: int = 21, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, size, size + 4, generator=torch.Generator().manual_seed(1)).to(dtype)


def run(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the outputs of a network, with the same dropout each time."""
    torch.manual_seed(2)
    result = model(x)
    if isinstance(result, Tensor):
        return [result]
    return list(result.values() if isinstance(result, dict) else result)


def assert_same(model: nn.Module, before: nn.Module, x: Tensor) -> None:
    """Bit for bit: outputs in training and evaluation, in both memory formats, and the state that was there before."""
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = x.to(memory_format=memory_format)
        for training in (True, False):
            for each in (model, before):
                each.train(training).to(memory_format=memory_format)  # type: ignore[call-overload]
            with torch.no_grad():
                results = run(model, x), run(before, x)
            assert len(results[0]) == len(results[1])
            for ours, theirs in zip(*results, strict=True):
                assert torch.equal(ours, theirs), f"{training=}, {memory_format}"
    state = model.state_dict()
    for name, value in before.state_dict().items():
        assert torch.equal(state[name], value), name


def stir(model: nn.Module) -> nn.Module:
    """Change the parameters of inserted layers, so that they are not the identity."""
    torch.manual_seed(3)
    for layer in inserted(model).values():
        for parameter in layer.parameters():
            with torch.no_grad():
                parameter.add_(torch.randn(parameter.shape), alpha=0.3)
    return model
