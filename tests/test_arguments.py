"""Values of options: what is taken, and what is refused in one line."""

import argparse

import pytest
import torch

from repgraph import arguments
from repgraph.errors import UsageError


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (arguments.positive, "1", 1),
        (arguments.whole(0, 9), "0", 0),
        (arguments.above_zero, "0.5", 0.5),
        (arguments.not_negative, "0", 0.0),
        (arguments.fraction, "1", 1.0),
        (arguments.parse_device, "cpu", torch.device("cpu")),
    ],
)
def test_values(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (arguments.positive, "0", "'0' is not a whole number of at least 1"),
        (arguments.positive, "1.5", "'1.5' is not a whole number"),
        (arguments.positive, "9" * 5000, "9...' is not a whole number"),
        (arguments.above_zero, "0", "'0' is not a number above 0"),
        (arguments.above_zero, "inf", "'inf' is not a number above 0"),
        (arguments.not_negative, "-1", "'-1' is not a number of at least 0"),
        (arguments.fraction, "1.1", "'1.1' is not a number from 0 to 1"),
        (arguments.fraction, "nan", "'nan' is not a number from 0 to 1"),
        (arguments.fraction, "half", "'half' is not a number"),
    ],
)
def test_numbers_that_cannot_be_taken(read, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert message in str(caught.value) and len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quantum", "--device 'quantum' is not a device; give cpu, cuda or cuda:1"),
        ("meta", "--device 'meta' is not one that can be used; give cpu or cuda"),
        ("cuda:99", "--device 'cuda:99' is not here"),
    ],
)
def test_devices_that_cannot_be_used(text, message):
    with pytest.raises(UsageError, match=message):
        arguments.parse_device(text)


def test_named_values():
    assert arguments.named_values("--option", ["a=1", "b=[1, 2]", "c=text", "d="]) == {
        "a": 1,
        "b": [1, 2],
        "c": "text",
        "d": "",
    }
    for wrong in ("classes", "=3"):
        with pytest.raises(UsageError, match=f"--option '{wrong}': give it as NAME=VALUE"):
            arguments.named_values("--option", [wrong])
