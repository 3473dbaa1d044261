"""Which parameters learn at which rate."""

import pytest
import torch
from tests.models.networks import FAST

from repgraph.models import RGNet, param_groups


def named(model: RGNet, **options) -> dict[str, tuple[float, float | None, set[str]]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups(model, 0.01, **options)
    return {g["name"]: (g["lr"], g.get("weight_decay"), {names[id(p)] for p in g["params"]}) for g in groups}


def test_every_parameter_has_one_place() -> None:
    model = RGNet(5, inserted={"layer3": 1}, **FAST)
    groups = named(model, new_lr=0.1, offset_lr=0.05)
    everything = [name for _, _, names in groups.values() for name in names]
    assert sorted(everything) == sorted(name for name, _ in model.named_parameters())
    rates = {name: (rate, decay) for name, (rate, decay, _) in groups.items()}
    assert rates == {
        "offset weights": (0.05, None),
        "offset biases": (0.05, 0.0),
        "backbone norms and biases": (0.01, 0.0),
        "new norms and biases": (0.1, 0.0),
        "backbone weights": (0.01, None),
        "new weights": (0.1, None),
    }
    old = {name for name in everything if name.startswith("backbone.") and ".repgraph." not in name}
    assert groups["backbone weights"][2] | groups["backbone norms and biases"][2] == old
    assert {name for name in everything if ".offset." in name} == groups["offset weights"][2] | groups["offset biases"][
        2
    ]
    assert {id(p) for p in model.pretrained_parameters()} == {id(p) for n, p in model.named_parameters() if n in old}
    assert all(p.dim() > 1 for n, p in model.named_parameters() if n in groups["backbone weights"][2])


def test_defaults_are_one_rate() -> None:
    groups = named(RGNet(5, **FAST))
    assert {rate for rate, _, _ in groups.values()} == {0.01}
    assert {decay for _, decay, _ in named(RGNet(5, **FAST), no_decay=False).values()} == {None}


def test_optimisers_take_them() -> None:
    model = RGNet(5, context="none", **FAST)
    optimiser = torch.optim.SGD(param_groups(model, 0.01, new_lr=0.1), momentum=0.9, weight_decay=1e-4)
    decays = {group["name"]: group["weight_decay"] for group in optimiser.param_groups}
    assert decays["backbone weights"] == 1e-4 and decays["new norms and biases"] == 0.0
    assert "offset weights" not in decays


def test_frozen_parameters_are_in_none() -> None:
    model = RGNet(5, **FAST)
    model.backbone.requires_grad_(False)
    assert not any(name.startswith("backbone") for name in named(model))


@pytest.mark.parametrize("options", [dict(new_lr=0), dict(new_lr=-1.0), dict(offset_lr=-0.1), dict(new_lr="0.1")])
def test_rates_are_checked(options: dict) -> None:
    with pytest.raises((ValueError, TypeError), match="needed"):
        param_groups(RGNet(5, **FAST), 0.01, **options)
