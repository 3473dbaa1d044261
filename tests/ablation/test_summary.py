"""Means, spreads and paired differences."""

import csv
import io

import numpy as np
import pytest
from tests.ablation.test_results import record

from repgraph.ablation import Plan, lay_out
from repgraph.ablation.summary import summarize, to_csv


@pytest.fixture(scope="module")
def laid_out():
    """A table with an entry that does not fit the network."""
    return lay_out(Plan("group", "scenes", entries=("baseline", "g4", "g32"), reference="baseline"), {}).tables[0]


def records(rows, scores):
    """Return records by the entry's name and seed: scores, or statuses."""
    found = {}
    for row in rows:
        for run in row.runs:
            if (score := scores.get((row.entry.name, run.seed))) is not None:
                values = {"miou": score} if isinstance(score, float) else {"status": score, "reason": "numbers"}
                found[run.key] = record(run.key, run.seed, **values)
    return found


ALL = {
    **{("baseline", seed): value for seed, value in enumerate([0.50, 0.60, 0.52])},
    **{("g4", seed): value for seed, value in enumerate([0.53, 0.62, 0.56])},
}


def test_differences_are_paired(laid_out):
    plain, four, misfit = summarize(*laid_out, records(laid_out[1], ALL))
    assert plain.gain == [] and plain.scores["miou"] == [0.50, 0.60, 0.52]
    gains = np.array([0.03, 0.02, 0.04])
    assert four.gain == pytest.approx(gains)
    table = to_csv(laid_out[0], [plain, four, misfit])
    row = next(row for row in csv.DictReader(io.StringIO(table)) if row["entry"] == "g4")
    assert (row["gain_pairs"], float(row["gain_mean"])) == ("3", pytest.approx(gains.mean()))
    assert float(row["gain_deviation"]) == pytest.approx(gains.std(ddof=1))  # far below the deviation of the scores
    assert misfit.misfit == "groups=32 does not divide the layer's 48 inner channels"
    assert misfit.scores["miou"] == []


def test_only_common_seeds_are_compared(laid_out):
    some = {**ALL, ("baseline", 1): "diverged"}
    del some["g4", 2]
    plain, four, _ = summarize(*laid_out, records(laid_out[1], some))
    assert four.gain == pytest.approx([0.03])
    assert (plain.seeds, four.seeds) == ("2, 1 diverged", "2, 1 to do")
    few = {("g4", 0): 0.5, ("baseline", 1): 0.4, ("g4", 1): "failed"}
    _, four, _ = summarize(*laid_out, records(laid_out[1], few))
    assert (four.gain, four.seeds) == ([], "1, 1 failed, 1 to do")
