"""The runtime's own metrics, on fake engines; and who logs statistics at all."""

from __future__ import annotations

import asyncio
import threading

import attrs
import msgspec
import pytest
from omni_actors_asyncio import AsyncOmni
from omni_actors_asyncio._families import Families, Maker
from omni_actors_asyncio._tenure import Owned
from prometheus_client import REGISTRY, generate_latest

from omni_actors.config import InputSpec
from omni_actors.pipelines.tiny_omni import pipeline as tiny_omni
from omni_actors.stages.vllm import VllmKind
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import SHORT, core, pipeline

from .conftest import endless, idle_within, llm


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_what_is_in_the_house_is_counted_and_goes_back_to_nothing(run):
    async def main():
        async with endless() as omni:
            slots = value("omni_slots_max")
            assert slots == omni._bridge.omni.spec.limits.max_requests
            streams = [omni.generate_omni("xy") for _ in range(3)]
            for stream in streams:
                await anext(stream)
            while not value("omni_unread_bytes"):
                await anext(streams[0])  # nobody reads the others
            assert (value("omni_requests_in_flight"), value("omni_slots_taken"), value("omni_leases")) == (3, 3, 3)
            assert (value("omni_prompt_bytes"), value("omni_stage_running", stage="llm")) == (6, 3)
            assert value("omni_unread_bytes") > 0
            for stream in streams:
                await stream.aclose()
            assert await idle_within(omni, 1)
            gauges = ("requests_in_flight", "requests_unreleased", "slots_taken", "leases", "prompt_bytes",
                      "unread_bytes", "router_batches")  # fmt: skip
            assert {name: value(f"omni_{name}") for name in gauges} == dict.fromkeys(gauges, 0)
            assert value("omni_requests_ended_total", kind="aborted") == 3
            assert value("omni_stage_running", stage="llm") == value("omni_stage_waiting", stage="llm") == 0

    run(main)


def test_refusals_and_endings_are_counted(run):
    async def main():
        spec = pipeline(core("llm", output="text", tokens=3))
        spec = attrs.evolve(spec, limits=attrs.evolve(spec.limits, max_requests=1))
        async with AsyncOmni(spec, world=MemoryWorld()) as omni:
            async for _ in omni.generate_omni("x"):
                pass
            with pytest.raises(Exception, match="house is full"):
                async for _ in omni.generate_omni("x", {"n": 2}):
                    pass
            assert value("omni_requests_ended_total", kind="finished") == 1
            assert value("omni_requests_refused_total") == 1

    run(main)


def test_a_stages_state_its_replicas_and_its_restarts(run):
    async def main():
        limits = attrs.evolve(SHORT, backoff_first_s=0.05)
        spec = pipeline(
            core("llm", output="text", tokens=5, die_at=1, replicas=2, deadlines=limits),
            core("talker", inputs=[InputSpec(stage="llm")], output="audio", transform=None),
        )
        async with AsyncOmni(spec, world=MemoryWorld()) as omni:
            assert value("omni_ready") == value("omni_stage_state", stage="llm", state="ready") == 1
            assert value("omni_stage_replicas_ready", stage="llm") == 2
            while not omni.errored:
                with pytest.raises(Exception, match="llm"):
                    await anext(omni.generate("x", None, "x"))
            assert value("omni_ready") == value("omni_stage_state", stage="llm", state="ready") == 0
            assert value("omni_stage_state", stage="llm", state="down") == 1
            assert value("omni_stage_state", stage="talker", state="ready") == 1
            assert (value("omni_stage_replicas", stage="llm"), value("omni_stage_replicas_ready", stage="llm")) == (
                2,
                0,
            )
            restarts = [value("omni_stage_restarts_total", stage="llm", replica=number) for number in "01"]
            assert restarts == [3, 3]
            assert value("omni_stage_restarts_total", stage="talker", replica="0") == 0

    run(main)


def test_the_registry_shows_the_newest_and_nothing_of_the_closed(run):
    async def main():
        async with llm() as first, llm() as second:
            stream = second.generate_omni("xyz")
            await anext(stream)
            assert value("omni_requests_in_flight") in (0, 1)
            assert generate_latest(REGISTRY).decode().count("\nomni_slots_max ") == 1
            await stream.aclose()
            await second.close()
            assert value("omni_slots_max") is None
            await first.close()
        assert b"omni_" not in generate_latest(REGISTRY)

    run(main)


def test_scraping_from_another_thread_while_requests_come_and_go(run):
    stop, failures = threading.Event(), []

    def scrape():
        while not stop.is_set():
            try:
                assert b"omni_slots_taken" in generate_latest(REGISTRY)
            except Exception as error:
                failures.append(error)

    async def main():
        async with llm(tokens=4) as omni:
            scraper = threading.Thread(target=scrape)
            scraper.start()

            async def ask(number):
                return [output async for output in omni.generate("x", None, str(number))]

            try:
                for round in range(5):
                    await asyncio.gather(*(ask(f"{round}-{n}") for n in range(50)))
            finally:
                stop.set()
                scraper.join()

    run(main)
    assert failures == []


def test_the_log_has_a_line_while_something_is_done(run, caplog):
    async def main():
        async with endless() as omni:
            await omni.do_log_stats()
            stream = omni.generate_omni("x")
            await anext(stream)
            await omni.do_log_stats()
            await stream.aclose()

    caplog.set_level("INFO", "omni_actors.asyncio")
    run(main)
    assert [record.getMessage().startswith("Statistics(requests=1") for record in caplog.records] == [True]


# ---------------------------------------------------------------------- who logs


def logs(stage, spec):
    launch = VllmKind().launch(spec.stage(stage), {"handshake": "ipc://h"}, replica=0, generation=0)
    return msgspec.msgpack.decode(launch.payload)["log_stats"]


def test_vllm_stages_log_for_asyncio_as_asyncllms_do():
    spec = Owned("tiny-omni", log_stats=True)._spec()
    assert (logs("thinker", spec), logs("talker", spec)) == (True, True)
    assert "disable_log_stats" not in spec.stage("vocoder").engine_args


def test_otherwise_they_do_not():
    spec = Owned("tiny-omni")._spec()
    assert (logs("thinker", spec), logs("talker", spec)) == (False, False)


@pytest.mark.parametrize(("log_stats", "off"), [(True, True), (False, False)])
def test_what_a_stage_says_of_it_stands(log_stats, off):
    whole = tiny_omni()
    thinker = whole.stage("thinker")
    own = attrs.evolve(thinker, engine_args={**thinker.engine_args, "disable_log_stats": off})
    spec = attrs.evolve(whole, stages=(own, *whole.stages[1:]))
    assert logs("thinker", Owned(spec, log_stats=log_stats)._spec()) is not off


# ---------------------------------------------------------------------- families


def exposed(families: Families) -> str:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(families)
    lines = generate_latest(registry).decode().splitlines()
    return "\n".join(line for line in lines if "_created" not in line and not line.startswith("# HELP"))


def test_two_stages_write_into_one_family_each_with_its_own_buckets():
    families = Families()
    for stage, bounds in (("a", (1, 2)), ("b", (4,))):
        metric = Maker(families, "histogram", stage, "omni")("f", "d", ["model_name"], buckets=bounds)
        series = metric.labels("its own name")
        for seconds in (0.5, 1, 3):
            series.observe(seconds)
    assert exposed(families) == (
        "# TYPE f histogram\n"
        'f_bucket{le="1.0",model_name="omni",stage="a"} 2.0\n'
        'f_bucket{le="2.0",model_name="omni",stage="a"} 2.0\n'
        'f_bucket{le="+Inf",model_name="omni",stage="a"} 3.0\n'
        'f_count{model_name="omni",stage="a"} 3.0\n'
        'f_sum{model_name="omni",stage="a"} 4.5\n'
        'f_bucket{le="4.0",model_name="omni",stage="b"} 3.0\n'
        'f_bucket{le="+Inf",model_name="omni",stage="b"} 3.0\n'
        'f_count{model_name="omni",stage="b"} 3.0\n'
        'f_sum{model_name="omni",stage="b"} 4.5'
    )


def test_a_label_of_vllms_own_called_stage_is_left_alone():
    families = Families()
    gauge = Maker(families, "gauge", "thinker", "omni")("g", "d", ["model_name", "stage"])
    gauge.labels(model_name="m", stage="loading").set(2)
    counter = Maker(families, "counter", "thinker", "omni")("c_total", "d", ["engine"])
    counter.labels(0).inc(3)
    counter.labels(engine="0").inc()
    assert exposed(families).splitlines()[1::2] == [
        'g{model_name="omni",omni_stage="thinker",stage="loading"} 2.0',
        'c_total{engine="0",stage="thinker"} 4.0',
    ]
