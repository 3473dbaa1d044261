"""Wrong arguments raise before any kernel runs, with a message that names the value and what was expected."""

import re

import pytest
import torch

from repgraph.errors import BackendError
from repgraph.ops import representative_attention

MAP = (2, 8, 5, 6)
MAPS = [torch.zeros(2, 8, 3, 3), torch.zeros(1, 8, 3, 3)]
BIAS = {"bias": torch.zeros(1, 3, 2, 1)}
OWN = {"groups": 2, "own_nodes": True}
EMPTY = dict.fromkeys(("query", "key", "value"), torch.zeros(2, 8, 0, 6)) | {"offsets": torch.zeros(2, 6, 0, 6)}


def call(**changes):
    arguments = {
        "query": torch.zeros(MAP),
        "key": torch.zeros(MAP),
        "value": torch.zeros(2, 4, 5, 6),
        "offsets": torch.zeros(2, 6, 5, 6),
    }
    return representative_attention(**arguments | changes)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (TypeError, "query is a list; expected a torch.Tensor", {"query": [1.0]}),
        (ValueError, "query has shape (2, 8, 0, 6); expected at least one channel, row and column", EMPTY),
        (ValueError, "key has shape (8, 5, 6); expected 4 dimensions", {"key": torch.zeros(8, 5, 6)}),
        (ValueError, "key has shape (2, 6, 5, 6); expected (2, 8, height, width)", {"key": torch.zeros(2, 6, 5, 6)}),
        (ValueError, "value has shape (2, 4, 5, 6); expected (2, channels, 5, 7)", {"key": torch.zeros(2, 8, 5, 7)}),
        (ValueError, "key[1] has shape (1, 8, 3, 3); expected (2, 8, height, width)", {"key": MAPS, "value": MAPS}),
        (ValueError, "offsets has 6 channels; expected a multiple of 4: x and y for 1 maps and 2 sets", OWN),
        (ValueError, "bias has shape (1, 3, 2, 1); expected (1 or 2, 3, 1 or 5, 1 or 6)", BIAS),
        (ValueError, "value has shape (1, 4, 5, 6); expected (2, channels, 5, 6)", {"value": torch.zeros(1, 4, 5, 6)}),
        (TypeError, "own_nodes is 2; expected True or False", {"own_nodes": 2}),
        (ValueError, "offsets has 7 channels; expected an even number", {"offsets": torch.zeros(2, 7, 5, 6)}),
        (ValueError, "expected (2, 2 x nodes, 3, 3) for maps of 5 x 6 and grid=2", {"grid": 2}),
        (ValueError, "groups is 3; expected a divisor of the 8 channels of query", {"groups": 3}),
        (TypeError, "grid is 1.5; expected an integer", {"grid": 1.5}),
        (ValueError, "scale is inf; expected a finite number", {"scale": float("inf")}),
        (TypeError, "query is torch.int64; expected one of", {"query": torch.zeros(MAP, dtype=torch.int64)}),
        (TypeError, "expected one dtype for the three", {"key": torch.zeros(MAP, dtype=torch.float64)}),
        (ValueError, "offsets is on meta and others on cpu", {"offsets": torch.zeros(2, 6, 5, 6, device="meta")}),
        (TypeError, "query is a nested or sparse tensor (torch.sparse_coo)", {"query": torch.zeros(MAP).to_sparse()}),
        (ValueError, "backend is 'cuda'; expected one of 'auto', 'reference'", {"backend": "cuda"}),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)  # fmt: skip
def test_wrong_arguments(error: type, message: str, changes: dict) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call(**changes)


def test_a_named_backend_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match=r"'triton' cannot run here: .*TRITON_INTERPRET=1"):
        call(backend="triton")
    half = dict.fromkeys(("query", "key", "value"), torch.zeros(MAP, dtype=torch.float16))
    with pytest.raises(RuntimeError, match=r"'cpu' cannot run here: torch\.float16 is not supported \(only float32"):
        call(**half, backend="cpu")
    meta = dict.fromkeys(("query", "key", "value"), torch.zeros(MAP, device="meta"))
    meta["offsets"] = torch.zeros(2, 6, 5, 6, device="meta")
    with pytest.raises(RuntimeError, match=r"'cpu' cannot run here: tensors on meta are not supported"):
        call(**meta, backend="cpu")
    assert call(**meta).shape == MAP and call().shape == (2, 4, 5, 6)
