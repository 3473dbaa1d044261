"""The axes of tiles come in an order that Triton's version decides: it must not matter to the result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.ops.problem import Problem, check, vary

pytest.importorskip("triton")
from repgraph.ops.triton import geometry, launch, tiles

ROOT = Path(__file__).parents[3]
CASES = [
    (vary(channels=24, values=12, height=3, width=4, groups=2, nodes=4), torch.float32),
    (vary(channels=32, values=32, height=3, width=4, shared=True, nodes=4, sigma=1.0), torch.bfloat16),
    (vary(channels=12, values=20, height=3, width=4, grid=2), torch.float32),
]


@pytest.mark.parametrize(("problem", "dtype"), CASES, ids=repr)
def test_accuracy_in_this_order(problem: Problem, dtype: torch.dtype) -> None:
    check(problem, "triton", dtype)


def test_queries_of_a_cell_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at a time and no matrix products, as with more channels than those take."""
    monkeypatch.setattr(tiles, "WIDEST_CELLS", 0)
    launch._forward_plan.cache_clear()
    try:
        check(vary(channels=24, values=12, height=3, width=4, groups=2, grid=3), "triton", torch.float32)
    finally:
        launch._forward_plan.cache_clear()


# A process of its own: what Triton has compiled cannot be told another order.
OTHER_ORDER = """
import sys
import pytest
import triton.language as tl
from repgraph.ops.triton import geometry
geometry.PARTS_FIRST = tl.constexpr(not geometry.PARTS_FIRST.value)
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_the_other_order() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_ORDER, "-q", "-p", "no:cacheprovider", __file__, "-k", "in_this_order"],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("2.3.1", False),
        ("3.6.0", False),
        ("3.6.0+git9844da95", False),
        ("3.7.0", True),
        ("3.7.0+git9844da95", True),
        ("3.9.0", True),
        ("3.10.1", True),
        ("4.0", True),
        ("4.0+git9844da95", True),
    ],
)
def test_versions(version: str, first: bool) -> None:
    assert geometry.parts_first(version) is first
