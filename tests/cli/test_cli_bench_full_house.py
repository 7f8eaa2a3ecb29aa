"""inflight and abort-soak, small: what they look at is there, and their bounds are judged on made-up numbers."""

import attrs
import pytest
import trio

from omni_actors import open_omni
from omni_actors._errors import OmniError
from omni_actors.cli._bench import benches, document, judge
from omni_actors.cli.benches import abort_soak, inflight
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline

SMALL = inflight.House(requests=24, replicas=2, token_s=0.02, window_s=0.5, refusals=5)


def quiet(_line):
    """Nobody watches."""


@pytest.mark.process
async def test_a_small_house_is_filled_watched_and_emptied():
    said = []
    result = inflight.summary(await inflight.measure(SMALL, said.append))
    printed = document("inflight", result, judge(result))

    metrics = printed["metrics"]
    assert {"bytes_per_request", "refuse_ms_p99", "cancel_all_s", "delay_ms_p99", "requests"} <= metrics.keys()
    assert metrics["requests"] == SMALL.requests
    assert metrics["confirmed_fraction"] == 1
    assert metrics["outputs_per_s"] > SMALL.requests
    assert len(printed["samples"]["refuse_ms"]) == SMALL.refusals
    assert len(printed["samples"]["delay_ms"]) == 100
    assert "24 requests stream" in " ".join(said)


@pytest.mark.process
async def test_a_short_soak_counts_its_cycles_and_reads_the_memory():
    soak = abort_soak.Soak(cycles=100, concurrent=8, sample=5)
    seen = await abort_soak.measure(soak, quiet)
    printed = document("abort-soak", result := abort_soak.summary(seen), judge(result))

    assert printed["metrics"]["cycles"] == 100
    assert len(printed["samples"]["rss_mib"]) == 20
    assert printed["metrics"]["rss_mib"] > 10
    assert seen.garbage == 0, "an aborted request leaves nothing for the garbage collector"


def test_both_are_found_by_their_names():
    assert {"inflight", "abort-soak"} <= benches().keys()


# ---------------------------------------------------------------------- inflight


async def test_a_task_that_hogs_the_scheduler_is_seen_by_the_probe(autojump_clock):
    delays = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hogs, autojump_clock)
        await inflight._probe(1.0, delays)
    assert len(delays) == 200
    assert max(delays) == pytest.approx(0.0975)
    late = [delay for delay in delays if delay > 0.001]
    assert len(late) == 20, "the moments missed meanwhile count too"


async def _hogs(clock):
    """From 0.5025 s on nobody else runs for 0.1 s."""
    await trio.sleep(0.5025)
    clock.jump(0.1)


async def test_whoever_gets_into_a_full_house_ends_the_benchmark(autojump_clock):
    stage = core("llm", output="text", tokens=1000)
    async with open_omni(pipeline(stage), world=MemoryWorld()) as omni:
        with pytest.raises(OmniError, match="full house"):
            await inflight._knock(omni, SMALL, [])


def seen(**changed):
    numbers = {
        "held_bytes": 10_000 * 9_000,
        "confirmed": 10_000,
        "cancel_s": 2.0,
        "streamed": 10_000,
        "delays_s": [0.001] * 990 + [0.04] * 10,
        "refusals_s": [0.0001] * 300,
        "outputs_per_s": 10_000.0,
        "cpu_share": 0.2,
        "cpu_wait_share": 0.0,
    }
    numbers |= changed
    window = inflight.Window(**{field.name: numbers.pop(field.name) for field in attrs.fields(inflight.Window)})
    return inflight.summary(inflight.Seen(house=inflight.House(), window=window, **numbers))


@pytest.mark.parametrize(
    ("metric", "changed"),
    [
        ("requests", {"streamed": 9_999}),
        ("bytes_per_request", {"held_bytes": 10_000 * 33_000}),
        ("refuse_ms_p99", {"refusals_s": [0.0001] * 296 + [0.011] * 4}),
        ("cancel_all_s", {"cancel_s": 3.1}),
        ("confirmed_fraction", {"confirmed": 9_999}),
        ("delay_ms_p99", {"delays_s": [0.001] * 989 + [0.051] * 11}),
    ],
)
def test_each_bound_fails_alone(metric, changed):
    assert set(judge(seen()).values()) == {"holds"}
    assert [name for name, verdict in judge(seen(**changed)).items() if verdict == "fails"] == [metric]


def test_a_busy_machine_is_mentioned():
    assert not any("busy" in note for note in seen().notes)
    assert any("no CPU for 45% of the time" in note for note in seen(cpu_wait_share=0.45).notes)


# ---------------------------------------------------------------------- abort-soak


def test_drift_is_the_end_against_the_time_after_the_warm_up():
    growing = [*range(20), *[100.0] * 10, *[101.0] * 60, *[103.0] * 10]
    assert abort_soak.drift_percent(growing) == pytest.approx(3)
    spike = [*[100.0] * 95, 500.0, *[100.0] * 4]
    assert abort_soak.drift_percent(spike) == 0
    with pytest.raises(OmniError, match="3 readings"):
        abort_soak.drift_percent([1, 2, 3])


def soaked(last, cycles=100_000):
    rss = [*[100 << 20] * 90, *[last << 20] * 10]
    return judge(
        abort_soak.summary(abort_soak.Seen(soak=abort_soak.Soak(), aborted=cycles, seconds=60.0, rss=rss, garbage=0))
    )


def test_memory_may_not_grow_by_a_percent():
    assert set(soaked(100).values()) == {"holds"}
    assert soaked(102)["rss_drift_percent"] == "fails"
    assert soaked(100, cycles=99_000)["cycles"] == "fails"
