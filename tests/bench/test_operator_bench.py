"""The operator benchmark at tiny sizes: what it writes, what its gate stops, what becomes of failures."""

import csv
import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from repgraph import cli, representative_attention
from repgraph.bench import measure
from repgraph.bench.measure import Budget
from repgraph.bench.operator import Options, benchmark, gate, run
from repgraph.bench.operator.competitors import CANDIDATES, Candidate, composition, non_local_oracle, select
from repgraph.bench.operator.row import PASSES
from repgraph.bench.operator.setting import Setting, make_inputs
from repgraph.errors import UsageError

TINY = Options(sizes=((6, 7),), channels=8, nodes=3, repeat=2, shared_kv=(False,))
NAMED = {candidate.name: candidate for candidate in CANDIDATES}


def candidate(function, **more) -> Candidate:
    return Candidate("subject", lambda setting: function, **more)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("groups", "grid", "shared_kv"), [(1, 1, False), (2, 1, True), (4, 3, False), (1, 4, True)])
def test_composition_is_representative_attention(dtype, groups, grid, shared_kv):
    setting = Setting(13, 18, 2, 16, 5, groups=groups, grid=grid, dtype=dtype, shared_kv=shared_kv)
    errors = gate.relative_errors(NAMED["composition"], setting)
    assert set(errors) >= {"result", "gradient of query", "gradient of key", "gradient of offsets"}
    assert max(errors.values()) <= gate.tolerance(NAMED["composition"], setting)


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("name", ["sdpa-math", "sdpa-flash"])
def test_sdpa_is_non_local(name, memory_format):
    setting = Setting(5, 7, channels=8, channels_last=memory_format == torch.channels_last)
    inputs = make_inputs(setting)
    y = NAMED[name].build(setting)(*inputs.arguments)
    torch.testing.assert_close(y, non_local_oracle(*inputs.arguments))


def test_tables_csv_and_plots_are_written(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    arguments = "--device cpu --size 8x9 5x6 --channels 8 --repeat 2 --only reference composition sdpa-math"
    assert cli.main(["bench", "operator", *arguments.split(), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "5 x 6 (N = 30)" in shown and "8 x 9 (N = 72)" in shown
    assert "composition" in shown and "float32" in shown
    with (out / "operator.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2 * 3  # sizes, kv, passes, candidates
    keys = [(row["candidate"], row["pass"], row["height"], row["shared_kv"]) for row in rows]
    assert set(keys) == set(
        itertools.product(
            ("reference", "composition", "sdpa-math"), ("forward", "backward"), ("5", "8"), ("True", "False")
        )
    )
    for row in rows:
        assert row["status"] == "ok" and row["count"] == row["repeat"] == "2"
        assert 0 < float(row["min_ms"]) <= float(row["median_ms"]) <= float(row["p80_ms"]) * 1.0001
        assert row["torch"] == torch.__version__ and row["device_name"] and row["python"] and row["repgraph"]
        if row["candidate"] == "composition":
            assert float(row["versus_composition"]) == 1.0
        if row["candidate"] == "sdpa-math":
            assert float(row["versus_best_sdpa"]) == 1.0
    for name in ("operator-shared-kv", "operator-separate-kv"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        svg = (out / f"{name}.svg").read_text()
        assert "<svg" in svg


def test_gate_rejects_a_wrong_candidate():
    def half_a_pixel_off(query, key, value, offsets):
        return representative_attention(query, key, value, offsets + 0.5, backend="reference")

    right = candidate(partial(representative_attention, backend="reference"))
    wrong = replace(candidate(half_a_pixel_off), name="wrong")
    rows = run(TINY, [right, wrong])
    status = {row.candidate: row.status for row in rows}
    assert status == {"subject": "ok", "wrong": "wrong"}
    assert all(row.times is None and row.memory is None for row in rows if row.candidate == "wrong")
    assert all("differs from float64" in row.reason for row in rows if row.candidate == "wrong")


def test_gate_rejects_a_wrong_gradient_and_nan():
    def no_gradient_to_offsets(query, key, value, offsets):
        return representative_attention(query, key, value, offsets.detach() + 0 * offsets, backend="reference")

    def nan(query, key, value, offsets):
        return representative_attention(query, key, value, offsets, backend="reference") * float("nan")

    assert "gradient of offsets" in (gate.check(candidate(no_gradient_to_offsets), TINY.settings()[0]) or "")
    assert "nan" in (gate.check(candidate(nan), TINY.settings()[0]) or "")


# Nodes that all read the same, and nearly so: what the softmax passes back is nothing but rounding.
@pytest.mark.parametrize("sigma", [0.0, 1e-3])
@pytest.mark.parametrize(
    ("channels", "nodes", "groups", "shared_kv"), [(8, 9, 1, False), (64, 9, 4, True), (1, 3, 1, False)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["reference", "composition", "cpu"])
def test_gate_lets_right_candidates_through_where_gradients_vanish(
    name, dtype, channels, nodes, groups, shared_kv, sigma
):
    setting = Setting(
        5, 6, channels=channels, nodes=nodes, groups=groups, sigma=sigma, dtype=dtype, shared_kv=shared_kv
    )
    if reason := NAMED[name].why_not(setting):
        pytest.skip(reason)
    assert gate.check(NAMED[name], setting) is None


class Leak(torch.autograd.Function):
    """The identity, with a gradient that is wrong by a constant."""

    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + ctx.error, None


@pytest.mark.parametrize("sigma", [0.0, 4.0])
@pytest.mark.parametrize("wrong", ["query", "key", "value", "offsets"])
def test_gate_still_finds_small_errors_where_gradients_vanish(wrong, sigma):
    def leaking(error, query, key, value, offsets):
        given = {"query": query, "key": key, "value": value, "offsets": offsets}
        given[wrong] = Leak.apply(given[wrong], error)
        return representative_attention(*given.values(), backend="reference")

    setting = Setting(5, 6, channels=8, sigma=sigma)
    assert gate.check(candidate(partial(leaking, 0.0)), setting) is None
    said = gate.check(candidate(partial(leaking, 1e-4)), setting)
    assert said and f"the gradient of {wrong} differs" in said


def test_floor_is_below_the_norms_of_usual_settings():
    for channels, groups, nodes in ((8, 1, 9), (64, 4, 9), (64, 1, 25)):
        setting = Setting(*gate.SIZE, channels=channels, groups=groups, nodes=nodes, dtype=torch.float64)
        wanted = gate._results(NAMED["reference"].build(setting), make_inputs(setting))
        for name, want in wanted.items():
            assert gate.floor(name, want, NAMED["reference"], setting) < want.norm()


@pytest.mark.parametrize(
    "error", [MemoryError("full"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 GB")]
)
def test_inputs_that_do_not_fit_are_recorded_and_the_rest_goes_on(error, monkeypatch):
    made = []

    def make(setting):
        made.append(setting.size)
        if setting.size == "7x7":
            raise error
        return make_inputs(setting)

    monkeypatch.setattr(benchmark, "make_inputs", make)
    options = replace(TINY, sizes=((5, 5), (7, 7), (9, 9)), shared_kv=(True, False))
    rows = run(options, [NAMED["composition"]])
    status = {(row.setting.size, row.setting.shared_kv, row.pass_): row.status for row in rows}
    for (size, _, _), found in status.items():
        assert found == ("ok" if size == "5x5" else "out of memory")
    assert len(status) == 3 * 2 * 2 and made == ["5x5", "7x7"] * 2  # nothing is made where nobody is left


def test_inputs_beyond_main_memory_are_not_tried(monkeypatch, tmp_path, capsys):
    limit = Setting(9, 9, channels=8).bytes_made
    monkeypatch.setattr(measure, "available_memory", lambda device: limit / 0.8 * 50)
    arguments = "--device cpu --size 5x6 900x900 --channels 8 --repeat 1 --only reference cpu --separate-kv"
    assert cli.main(["bench", "operator", *arguments.split(), "--out", str(tmp_path)]) == 0
    with (tmp_path / "operator.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    large = [row for row in rows if row["height"] == "900"]
    assert len(large) == 4 and {row["status"] for row in large} == {"out of memory"}
    assert "the inputs need about 0.2 GiB" in large[0]["reason"]
    assert {row["status"] for row in rows if row["height"] == "5" and row["candidate"] == "reference"} == {"ok"}


def test_bytes_made_counts_the_inputs():
    for setting in (Setting(5, 6, 2, 8), Setting(5, 6, 2, 8, nodes=900, dtype=torch.bfloat16, shared_kv=True)):
        inputs = make_inputs(setting)
        tensors = {id(t): t for t in (*inputs.arguments, inputs.cotangent)}.values()
        total = sum(t.nbytes for t in tensors)
        assert total < setting.bytes_made < 3 * total


def test_channels_beyond_memory_are_no_traceback(tmp_path):
    options = replace(TINY, channels=2**31 - 1, sizes=((1, 1),))
    rows = run(options, select(["reference", "sdpa-math", "sdpa-flash"]))
    assert len(rows) == 6 and "ok" not in {row.status for row in rows}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (RuntimeError("no such kernel\nwith a long tail"), "failed"),
    ],
)
def test_failures_are_recorded_and_the_rest_goes_on(error, status):
    def broken(query, key, value, offsets):
        if query.shape[2:] == (7, 7):
            raise error
        return composition(query, key, value, offsets)

    options = replace(TINY, sizes=((9, 9), (5, 5), (7, 7)))
    rows = run(options, [candidate(broken), NAMED["composition"]])
    found = {(r.candidate, r.setting.height, r.pass_): r for r in rows}
    assert len(found) == 3 * 2 * 2
    assert all(row.status == "ok" for row in rows if row.candidate == "composition")
    assert found["subject", 5, "forward"].status == "ok"
    failed = found["subject", 7, "forward"]
    assert failed.status == found["subject", 7, "backward"].status == status
    assert failed.times is None and failed.reason and "\n" not in failed.reason
    larger = found["subject", 9, "forward"]
    if status == "out of memory":
        assert larger.status == status and "at 7x7 already" in larger.reason
    else:
        assert larger.status == "ok"


def test_time_limit_is_recorded():
    rows = run(replace(TINY, limit=1e-9), [NAMED["composition"]])
    assert {row.status for row in rows} == {"over the time limit"}
    assert "the limit is 1e-09 s" in rows[0].reason


def test_what_needs_too_much_main_memory_is_not_tried():
    rows = run(TINY, [candidate(composition, bytes_needed=lambda setting: 1e18)])
    assert {row.status for row in rows} == {"out of memory"} and "GiB" in rows[0].reason


def test_what_cannot_run_says_why():
    rows = run(TINY, [candidate(composition, why_not=lambda setting: "there is no moon")])
    assert {(row.status, row.reason) for row in rows} == {("cannot run", "there is no moon")}


def test_ratios_and_thread_count():
    threads = torch.get_num_threads()
    rows = run(replace(TINY, threads=1), [NAMED["reference"], NAMED["composition"], NAMED["sdpa-math"]])
    assert torch.get_num_threads() == threads and {row.threads for row in rows} == {1}
    for pass_ in PASSES:
        median = {row.candidate: row.times.median for row in rows if row.pass_ == pass_ and row.times}
        for row in rows:
            if row.pass_ == pass_:
                assert row.versus_composition == median["composition"] / median[row.candidate]
                assert row.versus_sdpa == median["sdpa-math"] / median[row.candidate]


def test_every_candidate_can_be_selected_and_unknown_names_are_refused():
    assert [c.name for c in select(None)] == list(NAMED)
    assert [c.name for c in select(["sdpa-flash", "cpu"])] == ["cpu", "sdpa-flash"]
    with pytest.raises(UsageError, match=r"unknown candidate 'sdpa'; choose from reference, cpu, triton"):
        select(["sdpa"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--only composishun", "unknown candidate 'composishun'"),
        ("--size 65", "--size '65' is not a size; give height x width, such as 65x65"),
        ("--size 0x5", "--size '0x5' is not a size"),
        ("--groups 3", "--groups 3 does not divide --channels 256"),
        ("--device quantum", "--device 'quantum' is not a device"),
        ("--device meta", "--device 'meta' is not one that can be used"),
        ("--device cuda:99", "--device 'cuda:99' is not here"),
        ("--dtype float8", "invalid choice: 'float8'"),
        ("--batch 0", "'0' is not a whole number of at least 1"),
        ("--sigma wide", "'wide' is not a number"),
        ("--batch 2147483648", "'2147483648' is not a whole number of at least 1 and at most 2147483647"),
        (f"--channels {'9' * 5000}", "'9999999999999999999999999999999999999...' is not a whole number"),
        ("--seed -1", "'-1' is not a whole number of at least 0 and at most 9223372036854775807"),
        ("--seed 9223372036854775808", "'9223372036854775808' is not a whole number of at least 0"),
        ("--seed 1.5", "'1.5' is not a whole number"),
        ("--threads 0", "'0' is not a whole number of at least 1 and at most 4096"),
        ("--threads 4097", "'4097' is not a whole number of at least 1 and at most 4096"),
        ("--size 5x1048577", "--size '5x1048577' is too large; give sides of at most 1048576"),
        (f"--size 5x{'9' * 5000}", "--size '5x99999999999999999999999999999999999...' is too large"),
        ("--shared-kv --separate-kv", "not allowed with argument"),
        ("--chanels 8", "unknown argument '--chanels'; did you mean '--channels'?"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path):
    try:
        code = cli.main(["bench", "operator", *arguments.split(), "--out", str(tmp_path)])
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1


def test_threads_that_cannot_be_had_are_one_line(monkeypatch, capsys, tmp_path):
    before = torch.get_num_threads()

    def refuse(count):
        if count != before:
            raise RuntimeError("no threads left\nand a long tail")

    monkeypatch.setattr(torch, "set_num_threads", refuse)
    arguments = f"--device cpu --size 5x6 --channels 8 --threads {before + 1} --out {tmp_path}"
    assert cli.main(["bench", "operator", *arguments.split()]) == 2
    captured = capsys.readouterr()
    said = captured.err.strip()
    assert said.endswith(f"--threads {before + 1} cannot be had (RuntimeError: no threads left); give fewer")
    assert "\n" not in said and captured.out == "" and torch.get_num_threads() == before


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["bench", "operator", "--out", str(tmp_path / "file")]) == 2
    assert "cannot write to --out" in capsys.readouterr().err


def test_calls_take_turns():
    order = []
    calls = {name: partial(order.append, name) for name in "ab"}
    times = measure.cpu_times(calls, {"a": 1.0, "b": 1.0}, Budget(repeat=3))
    assert order == ["a", "b"] * 3 and times["a"].count == 3


def test_memory_is_counted_beyond_the_result():
    if not measure.reset_resident_peak():
        pytest.skip("this system does not tell a process its resident peak")
    mib = 2**20

    def call():
        scratch = torch.ones(64 * mib, dtype=torch.uint8)
        return scratch[: 32 * mib].clone()

    found = measure.peak_memory(call, torch.device("cpu"))
    assert found is not None and 60 * mib < found.beyond < 70 * mib and found.result == 32 * mib


@pytest.mark.gpu
def test_every_candidate_on_cuda():
    options = Options(
        sizes=((16, 24),),
        channels=64,
        repeat=3,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        shared_kv=(True,),
    )
    rows = {(row.candidate, row.pass_): row for row in run(options)}
    for name in ("reference", "triton", "composition", "sdpa-math"):
        for pass_ in PASSES:
            assert rows[name, pass_].status == "ok", rows[name, pass_]
            assert rows[name, pass_].memory is not None
    assert rows["triton", "forward"].graph and rows["triton", "backward"].graph
