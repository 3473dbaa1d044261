"""Shared by the tests of the CPU backend."""

import pytest
import torch
from torch import Tensor

from repgraph.ops import representative_attention

pytest.importorskip("numba")


class Case:
    """Maps, offsets and options of one call, and the gradients of a fixed scalar of its results."""

    def __init__(self, batch, channels, vchannels, height, width, nodes, groups=1, grid=1, shared=False, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape, sigma=1.0):
            return torch.randn(shape, generator=generator, dtype=torch.float64) * sigma

        self.query, self.key = normal(batch, channels, height, width), normal(batch, channels, height, width)
        self.value = self.key if shared else normal(batch, vchannels, height, width)
        # A few reach beyond the map, and some are integers, where a derivative has two sides.
        self.offsets = normal(batch, 2 * nodes, -(-height // grid), -(-width // grid), sigma=max(height, width) / 3)
        self.offsets[:, ::3] = self.offsets[:, ::3].round()
        self.grad = normal(batch, self.value.shape[1], height, width)
        self.grad_weights = normal(batch, groups, nodes, height, width)
        self.options = {"groups": groups, "grid": grid, "scale": channels**-0.5}

    def tensors(self, dtype=torch.float64, offsets=None, layout=lambda t: t) -> list[Tensor]:
        """Query, key, value, offsets as leaves of the given dtypes; a shared value is the key itself."""
        query, key = (layout(t.to(dtype)).requires_grad_() for t in (self.query, self.key))
        value = key if self.value is self.key else layout(self.value.to(dtype)).requires_grad_()
        return [query, key, value, self.offsets.to(offsets or dtype).requires_grad_()]

    def run(self, tensors: list[Tensor], backend: str = "cpu", weighted: bool = True) -> dict[str, Tensor]:
        """Result, weights and all gradients, by name."""
        query, key, value, offsets = tensors
        y, _, weights = representative_attention(
            query, key, value, offsets, backend=backend, return_nodes=True, **self.options
        )
        outputs, grads = [y], [self.grad.to(y.dtype)]
        if weighted:
            outputs, grads = [*outputs, weights], [*grads, self.grad_weights.to(weights.dtype)]
        leaves = [query, key, offsets] + ([] if value is key else [value])
        found = torch.autograd.grad(outputs, leaves, grads)
        names = ("grad_query", "grad_key", "grad_offsets", "grad_value")
        return {"y": y.detach(), "weights": weights.detach(), **dict(zip(names, found, strict=False))}


def assert_as_good_as_reference(case: Case, tensors: list[Tensor], weighted: bool = True, factor: float = 3) -> None:
    """The kernel's error against float64 is at most ``factor`` times that of plain PyTorch, plus rounding."""
    exact_leaves = [t.detach().double().requires_grad_() for t in tensors]
    if tensors[2] is tensors[1]:
        exact_leaves[2] = exact_leaves[1]
    got = case.run(tensors, weighted=weighted)
    plain = case.run(tensors, "reference", weighted)
    exact = case.run(exact_leaves, "reference", weighted)
    for name, target in exact.items():
        assert got[name].dtype == plain[name].dtype and got[name].shape == target.shape, name
        eps = torch.finfo(got[name].dtype).eps
        error = (got[name].double() - target).abs().max()
        # In float64 the reference has no error against itself, so its rounding has to be allowed for here.
        slack = 64 if tensors[0].dtype == torch.float64 else 4
        allowed = factor * (plain[name].double() - target).abs().max() + slack * eps * target.abs().max()
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


@pytest.fixture(scope="session")
def make_case():
    return Case


@pytest.fixture(scope="session")
def check():
    return assert_as_good_as_reference
