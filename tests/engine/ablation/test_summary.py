"""Means, spreads and paired differences, against NumPy's."""

import csv
import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.ablation.test_results import record

from repgraph.engine.ablation.runs import base, lines
from repgraph.engine.ablation.summary import Stat, markdown, rows, to_csv
from repgraph.engine.ablation.tables import Entry, Table

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=9)
TABLE = Table(
    "mine",
    "Mine",
    (
        Entry("plain", "plain", "baseline", {}, (36.48, 77.57)),
        Entry("five", "g_s = 5", "rgnet", {"model.context_options.grid": 5}, (42.40, 80.17)),
        Entry("odd", "odd", "rgnet", {"model.context_options.groups": 7}),
    ),
    "plain",
)


@given(SCORES)
@settings(deadline=None)
def test_as_numpy_has_it(values):
    stat = Stat.of(values)
    assert stat.count == len(values) and (stat.low, stat.high) == (min(values), max(values))
    assert stat.mean == pytest.approx(np.mean(values), abs=1e-12)
    if len(values) > 1:
        assert stat.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    else:
        assert math.isnan(stat.deviation)


@given(SCORES, st.randoms())
@settings(deadline=None)
def test_order_plays_no_part(values, chance):
    other = list(values)
    chance.shuffle(other)
    assert repr(Stat.of(values)) == repr(Stat.of(other))


@pytest.mark.parametrize(
    ("values", "sign", "text"),
    [
        ([0.5], "", "50.00"),
        ([0.5, 0.51], "", "50.50 (50.00 to 51.00)"),
        ([0.5, 0.51, 0.52], "", "51.00 ± 1.00"),
        ([-0.01, 0.02, 0.05], "+", "+2.00 ± 3.00"),
        ([-0.01, 0.02], "+", "+0.50 (-1.00 to +2.00)"),
        ([math.nan, 0.02], "", "nan (nan to 2.00)"),
    ],
)
def test_text(values, sign, text):
    assert Stat.of(values).text(sign) == text
    assert Stat.of([]) is None


@pytest.fixture(scope="module")
def laid_out():
    return lines(TABLE, base("scenes"), [0, 1, 2])


def records(laid_out, scores):
    """Records by the entry's name and seed."""
    found = {}
    for line in laid_out:
        for run in line.runs:
            if (score := scores.get((line.entry.name, run.seed))) is not None:
                how = {"miou": score} if isinstance(score, float) else {"status": score, "reason": "numbers"}
                found[run.key] = record(run.key, run.seed, **how)
    return found


ALL = {
    **{("plain", seed): value for seed, value in enumerate([0.50, 0.60, 0.52])},
    **{("five", seed): value for seed, value in enumerate([0.53, 0.62, 0.56])},
}


def test_paired(laid_out):
    plain, five, odd = rows(TABLE, laid_out, records(laid_out, ALL))
    assert plain.gain is None and plain.scores["miou"].mean == pytest.approx(0.54)
    gains = np.array([0.03, 0.02, 0.04])
    assert five.gain.count == 3 and five.gain.mean == pytest.approx(gains.mean())
    assert five.gain.deviation == pytest.approx(gains.std(ddof=1))  # far below that of the scores
    assert odd.misfit == "groups=7 does not divide the layer's 48 inner channels" and odd.scores["miou"] is None


def test_only_common_seeds_are_compared(laid_out):
    some = {**ALL, ("plain", 1): "diverged"}
    del some["five", 2]
    plain, five, _ = rows(TABLE, laid_out, records(laid_out, some))
    assert five.gain.count == 1 and five.gain.mean == pytest.approx(0.03)
    assert (plain.seeds, five.seeds) == ("2, 1 diverged", "2, 1 to do")
    _, five, _ = rows(TABLE, laid_out, records(laid_out, {("five", 0): 0.5, ("plain", 1): 0.4, ("five", 1): "failed"}))
    assert five.gain is None and five.seeds == "1, 1 failed, 1 to do"


def test_permuted_results_make_the_same_table(laid_out):
    found = records(laid_out, {**ALL, ("five", 1): "failed"})
    turned = dict(reversed(found.items()))
    texts = {markdown(TABLE, rows(TABLE, laid_out, some), ["x"]) for some in (found, turned)}
    files = {to_csv(TABLE, rows(TABLE, laid_out, some)) for some in (found, turned)}
    assert len(texts) == len(files) == 1


def test_markdown(laid_out):
    text = markdown(TABLE, rows(TABLE, laid_out, records(laid_out, {**ALL, ("plain", 1): "diverged"})), ["a note"])
    lines_ = text.splitlines()
    assert lines_[0] == "## Mine" and len({line.count("|") for line in lines_[2:7]}) == 1
    assert "| g_s = 5 | 57.00 ± 4.58" in text and "+3.50 (+3.00 to +4.00)" in text and "| 42.4 " in text
    assert "does not fit" in lines_[6] and "- a note" in lines_
    assert "- plain, seed 1, diverged: numbers" in lines_
    assert any("The paper's figures are its own, on its data (ADE20K, ResNet-50)" in line for line in lines_)
    assert "paper" not in markdown(TABLE, rows(TABLE, laid_out, {})[2:], [])


def test_csv(laid_out):
    text = to_csv(TABLE, rows(TABLE, laid_out, records(laid_out, ALL)))
    plain, five, odd = csv.DictReader(io.StringIO(text))
    assert float(five["miou_mean"]) == pytest.approx(0.57) and float(five["gain_mean"]) == pytest.approx(0.03)
    assert (plain["gain_pairs"], five["gain_pairs"], five["paper_miou"]) == ("", "3", "42.4")
    assert plain["reference"] == five["reference"] == odd["reference"] == "plain"
    assert five["settings"] == 'model.context_options={"grid": 5}' and odd["seeds"] == "0" and odd["miou_mean"] == ""
