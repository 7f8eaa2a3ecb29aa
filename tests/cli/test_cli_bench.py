"""The frame of the benchmarks: intervals, verdicts, what is printed, and how one that cannot run ends."""

import json
import math
import random
import statistics
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from omni_actors._errors import UsageError
from omni_actors.cli import _bench
from omni_actors.cli._app import app
from omni_actors.cli._bench import BenchOptions, BenchResult, Bound, benches, document, judge, paired_ratio
from omni_actors.cli._exit import Missing

times = st.lists(st.floats(0.001, 1000), min_size=15, max_size=60)


@given(times, st.randoms(use_true_random=False), st.floats(0.01, 100))
def test_the_interval_holds_the_median_and_scales_with_the_values(reference, rng, factor):
    ours = [value * rng.uniform(0.5, 2) for value in reference]
    ratio = paired_ratio(ours, reference)
    assert ratio.low <= ratio.median <= ratio.high
    scaled = paired_ratio([value * factor for value in ours], reference)
    assert scaled.median == pytest.approx(ratio.median * factor)


def test_equal_values_give_the_ratio_one():
    assert paired_ratio([3.0] * 15, [3.0] * 15) == _bench.PairedRatio(1.0, 1.0, 1.0)


@pytest.mark.parametrize("pairs", [15, 20, 51])
def test_the_interval_covers_the_true_median_in_at_least_95_percent_of_runs(pairs):
    rng, covered, runs = random.Random(pairs), 0, 2000
    for _ in range(runs):
        ratio = paired_ratio([rng.lognormvariate(0.0, 0.3) for _ in range(pairs)], [1.0] * pairs)
        covered += ratio.low <= 1.0 <= ratio.high
    assert covered / runs > 0.94


def test_the_interval_is_no_wider_than_it_must_be():
    """With 15 pairs the 4th and the 12th value cover 96.5 %; the 5th and the 11th would cover 88 %."""
    ratio = paired_ratio([float(value) for value in range(1, 16)], [1.0] * 15)
    assert (ratio.low, ratio.median, ratio.high) == (4.0, 8.0, 12.0)


@pytest.mark.parametrize(
    ("ours", "reference"), [([1.0] * 14, [1.0] * 14), ([1.0] * 15, [1.0] * 16), ([0.0] * 15, [1.0] * 15)]
)
def test_too_few_pairs_or_values_that_are_no_times_are_refused(ours, reference):
    with pytest.raises(UsageError):
        paired_ratio(ours, reference)


@pytest.mark.parametrize(
    ("low", "median", "high", "verdict"),
    [
        (0.9, 1.0, 1.04, "holds"),
        (1.0, 1.02, 1.06, "inconclusive"),
        (1.06, 1.1, 1.2, "fails"),
        (1.05, 1.05, 1.05, "holds"),
    ],
)
def test_a_verdict_is_about_the_whole_interval(low, median, high, verdict):
    metrics = {"cpu_ratio": median, "cpu_ratio_low": low, "cpu_ratio_high": high}
    assert judge(BenchResult(metrics=metrics, bounds={"cpu_ratio": Bound(high=1.05)})) == {"cpu_ratio": verdict}


def test_a_bound_on_nothing_is_a_mistake():
    with pytest.raises(UsageError, match="heard"):
        judge(BenchResult(metrics={}, bounds={"heard": Bound(low=1)}))


def test_what_was_not_a_number_fails_no_json_reader():
    result = BenchResult(metrics={"rtf": math.inf, "n": 1.0}, samples={"rtf": [math.nan, 2.0]})
    made = json.loads(json.dumps(document("x", result, {}), allow_nan=False))
    assert set(made) >= {"bench", "metrics", "samples", "environment", "notes"}
    assert (made["metrics"], made["samples"]) == ({"rtf": None, "n": 1.0}, {"rtf": [None, 2.0]})
    assert set(made["environment"]) == {"cpu", "cores", "load", "versions"}


@pytest.fixture
def bench_module(monkeypatch):
    """Registers a benchmark called ``toy`` that does what it is given."""

    def register(run):
        module = types.ModuleType("toy_bench_module")
        module.run = run
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(_bench, "benches", lambda: {"toy": f"{module.__name__}:run"})

    return register


def invoke(*args):
    return CliRunner().invoke(app, ["bench", *args])


def test_a_bench_prints_one_document_and_its_verdict_is_the_exit_code(bench_module):
    async def run(options: BenchOptions):
        options.progress("half way")
        values = [float(options.pairs)] * 3
        return BenchResult(
            metrics={"x": statistics.median(values)}, samples={"x": values}, bounds={"x": Bound(high=20)}
        )

    bench_module(run)
    good, bad = invoke("toy", "--json"), invoke("toy", "--json", "--pairs", "21")
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert json.loads(good.stdout)["verdicts"] == {"x": {"bound": "≤ 20", "verdict": "holds"}}
    assert json.loads(bad.stdout)["metrics"] == {"x": 21.0}
    assert "half way" in good.stderr
    table = invoke("toy")
    assert "holds" in table.stdout
    assert "▁▁▁" in table.stdout


def test_a_bench_that_cannot_run_says_what_is_missing_and_exits_3(bench_module):
    async def run(options: BenchOptions):
        raise Missing("vllm is not installed: pip install 'omni-actors[cpu]'")

    bench_module(run)
    ended = invoke("toy")
    assert ended.exit_code == 3
    assert "omni-actors[cpu]" in ended.stderr
    assert json.loads(invoke("toy", "--json").stdout)["error"]["kind"] == "Missing"


def test_fewer_than_15_pairs_are_a_usage_error():
    assert invoke("demo", "--pairs", "3").exit_code == 2


def test_an_unknown_bench_names_the_nearest():
    ended = invoke("dmo")
    assert ended.exit_code == 2
    assert "demo" in ended.stderr


def test_every_benchmark_can_be_listed_and_loaded_by_name():
    assert "demo" in benches()
    assert "demo" in invoke().stdout.split()
    assert "demo" in json.loads(invoke("--json").stdout)["benches"]
