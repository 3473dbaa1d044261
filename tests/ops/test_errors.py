"""Bad input is refused before any kernel runs, in words that say what was given and what is needed."""

import pytest
import torch

from repgraph.ops import representative_attention

MAP = (2, 8, 5, 6)


def call(**changes):
    arguments = {
        "query": torch.zeros(MAP),
        "key": torch.zeros(MAP),
        "value": torch.zeros(2, 4, 5, 6),
        "offsets": torch.zeros(2, 6, 5, 6),
    }
    arguments.update(changes)
    return representative_attention(**arguments)


def test_the_call_itself_is_fine() -> None:
    assert call().shape == (2, 4, 5, 6)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (TypeError, "query is a list; a torch.Tensor is needed", {"query": [1.0]}),
        (TypeError, "offsets is a NoneType", {"offsets": None}),
        (ValueError, r"key has shape \(8, 5, 6\); 4 dimensions", {"key": torch.zeros(8, 5, 6)}),
        (ValueError, r"value has shape \(2, 4, 30\); 4 dim", {"value": torch.zeros(2, 4, 30)}),
        (ValueError, r"key has shape \(2, 8, 5, 7\); query's shape \(2, 8, 5, 6\)", {"key": torch.zeros(2, 8, 5, 7)}),
        (ValueError, r"key has shape \(2, 4, 5, 6\)", {"key": torch.zeros(2, 4, 5, 6)}),
        (ValueError, r"value has shape \(1, 4, 5, 6\); \(2, any, 5, 6\)", {"value": torch.zeros(1, 4, 5, 6)}),
        (ValueError, r"value has shape \(2, 0, 5, 6\)", {"value": torch.zeros(2, 0, 5, 6)}),
        (ValueError, "offsets has 7 channels; an even number", {"offsets": torch.zeros(2, 7, 5, 6)}),
        (ValueError, "offsets has 0 channels", {"offsets": torch.zeros(2, 0, 5, 6)}),
        (ValueError, r"offsets has shape \(2, 6, 5, 5\); \(2, 2 x nodes, 5, 6\)", {"offsets": torch.zeros(2, 6, 5, 5)}),
        (ValueError, r"\(2, 2 x nodes, 3, 3\) is needed for maps of 5 x 6 and grid=2", {"grid": 2}),
        (ValueError, "groups=3 does not divide the 8 channels", {"groups": 3}),
        (ValueError, "groups=8 does not divide .* the 4 of value", {"groups": 8}),
        (ValueError, "groups is 0; at least 1", {"groups": 0}),
        (ValueError, "grid is -2; at least 1", {"grid": -2}),
        (TypeError, "grid is 1.5; a whole number", {"grid": 1.5}),
        (TypeError, "grid is True; a whole number", {"grid": True}),
        (TypeError, "scale is 'big'; a number", {"scale": "big"}),
        (
            TypeError,
            "query is int64; one of float16, bfloat16, float32, float64 is needed",
            {"query": torch.zeros(MAP, dtype=torch.int64)},
        ),
        (TypeError, "offsets is int32", {"offsets": torch.zeros(2, 6, 5, 6, dtype=torch.int32)}),
        (TypeError, "float32, float64 and float32; one dtype", {"key": torch.zeros(MAP, dtype=torch.float64)}),
        (TypeError, "offsets is float8_e4m3fn", {"offsets": torch.zeros(2, 6, 5, 6).to(torch.float8_e4m3fn)}),
        (TypeError, "query is complex64", {"query": torch.zeros(MAP, dtype=torch.complex64)}),
        (ValueError, "offsets is on meta and query on cpu", {"offsets": torch.zeros(2, 6, 5, 6, device="meta")}),
        (ValueError, "unknown backend 'cuda': choose one of 'auto', 'reference', 'triton', 'cpu'", {"backend": "cuda"}),
        (TypeError, "layout", {"query": torch.zeros(MAP).to_sparse()}),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_refusals(error: type, message: str, changes: dict, backend: str) -> None:
    with pytest.raises(error, match=message):
        call(**{"backend": backend, **changes})


def test_an_empty_map_is_refused() -> None:
    empty = torch.zeros(2, 8, 0, 6)
    with pytest.raises(ValueError, match="at least one channel, row and column"):
        call(query=empty, key=empty, value=empty, offsets=torch.zeros(2, 6, 0, 6))


def test_a_named_backend_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match=r"'triton' cannot run here: .*TRITON_INTERPRET=1"):
        call(backend="triton")
    half = [torch.zeros(MAP, dtype=torch.float16)] * 3
    with pytest.raises(RuntimeError, match="'cpu' cannot run here: it takes float32, float64 and bfloat16"):
        call(query=half[0], key=half[1], value=half[2], backend="cpu")
    meta = dict.fromkeys(("query", "key", "value"), torch.zeros(MAP, device="meta"))
    meta["offsets"] = torch.zeros(2, 6, 5, 6, device="meta")
    with pytest.raises(RuntimeError, match="'cpu' cannot run here: it takes tensors on the CPU, these are on meta"):
        call(**meta, backend="cpu")
    assert call(**meta).shape == MAP
