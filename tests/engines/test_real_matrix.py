"""The failure matrix on real vLLM engines: {idle, loaded} by {SIGKILL, SIGTERM, SIGINT} by {worker, engine, host}.

A stage with a replica for each case of an engine or a worker: none is started again, so each case costs one start. What
its user sees, what the others see, and what is left of it is noted in one run; the tests then say what it must be.
Hosts are started two at a time, each with an engine of its own. All 18 cases cost 18 starts of vLLM: by default it is
those under load, and of the idle ones SIGKILL; all of them with ``OMNI_ACTORS_WHOLE_MATRIX=1``, as ``make chaos-real``
does it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
import trio

from omni_actors import EngineRejected, Kind, OmniRuntime, RequestFailed, StageFailed, open_omni
from omni_actors.config import PipelineSpec, resolve
from omni_actors.testing.chaos import private_base, with_worker, workers
from omni_actors.testing.os_state import Watch, descendants, shared_memory

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

PROGRAM = Path(__file__).with_name("real_matrix_host_program.py")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
WHOLE = bool(os.environ.get("OMNI_ACTORS_WHOLE_MATRIX"))
LOADS = [
    (load, signum)
    for load in ("loaded", "idle")
    for signum in SIGNALS
    if WHOLE or load == "loaded" or signum == signal.SIGKILL
]
CASES = [(load, member, signum) for load, signum in LOADS for member in ("worker", "engine")]
HOSTS = LOADS
METHODS = {"loaded": "spawn", "idle": "fork"}
"""How vLLM's workers come about: as in anybody's stage, and as its CPU platform would not have it."""
PF_FORKNOEXEC = 0x40
"""Of the kernel's flags of a process: it was forked, and has run no other program since."""
GONE_S = 5.0
START_S = 400.0
LONG = {"ignore_eos": True, "max_tokens": 180}
QUESTION = "What is two plus three?"

Case = tuple[str, str, int]


@attrs.frozen(kw_only=True)
class Seen:
    """One case. ``mine``: what the request on the victim's replica ended with; ``others``: how those beside it did."""

    mine: RequestFailed | None
    others: tuple[Kind, ...]
    generation: int
    pid: int
    alive: frozenset[int]
    shared_memory: tuple[str, ...]
    held_memory: int


def spec(load: str, replicas: int) -> PipelineSpec:
    (thinker, *_) = resolve("tiny-omni", ()).spec.stages
    limits = attrs.evolve(thinker.deadlines, backoff_first_s=1000.0, backoff_max_s=1000.0)
    stage = with_worker(attrs.evolve(thinker, output="text", replicas=replicas, deadlines=limits), METHODS[load])
    return PipelineSpec(name="matrix", stages=[stage])


def forked(pid: int) -> bool:
    _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return bool(int(rest.split()[6]) & PF_FORKNOEXEC)


def still_there(names) -> tuple[str, ...]:
    return tuple(name for name in names if Path("/dev/shm", name).exists())


async def hit(omni: OmniRuntime, case: Case, replica: int) -> Seen:
    load, member, signum = case
    pid = omni.pids()[f"thinker/{replica}"]
    family = [pid, *descendants(pid)]
    names = shared_memory(family)
    assert [forked(worker) for worker in workers(pid)] == [METHODS[load] == "fork"]
    watch = Watch(family)
    try:
        mine, others = None, []
        victim = workers(pid)[0] if member == "worker" else pid
        if load == "idle":
            os.kill(victim, signum)
        else:
            mine, others = await under_load(omni, replica, lambda: os.kill(victim, signum))
        alive = await trio.to_thread.run_sync(watch.alive_after, GONE_S)
    finally:
        watch.close()
    return Seen(
        mine=mine,
        others=tuple(others),
        generation=1,
        pid=pid,
        alive=frozenset(alive),
        shared_memory=still_there(names),
        held_memory=len(names),
    )


async def under_load(omni: OmniRuntime, victim: int, strike) -> tuple[RequestFailed | None, list[Kind]]:
    """A long request for every replica that lives; the strike comes when all are at work and the victim speaks."""
    living = omni.health().stages[0].ready
    ends: dict[str, tuple[Kind, RequestFailed | None]] = {}
    at_work, struck = trio.Semaphore(0), trio.Event()

    async def one(name: str) -> None:
        error = None
        async with omni.generate(QUESTION, LONG, request_id=name) as stream:
            at_work.release()
            await all_at_work.wait()
            await anext(stream)
            if name == mine:
                strike()
                struck.set()
            await struck.wait()
            try:
                await stream.result()
            except RequestFailed as failed:
                error = failed
            ends[name] = (stream.terminal.kind, error)

    all_at_work, mine = trio.Event(), ""
    async with trio.open_nursery() as nursery:
        for number in range(living):
            nursery.start_soon(one, f"r{number}")
        for _ in range(living):
            await at_work.acquire()
        (mine,) = [lease.record.request_id for lease in leases(omni) if lease.replica == victim]
        all_at_work.set()
    return ends[mine][1], [kind for name, (kind, _) in ends.items() if name != mine]


def leases(omni: OmniRuntime):
    return list(omni._handler.table.leases.values())


def all_hit(cases: list[Case]) -> dict[Case, Seen]:
    """These cases, all of one load, in one pipeline."""
    seen: dict[Case, Seen] = {}

    async def main() -> None:
        with trio.fail_after(START_S):
            async with open_omni(spec(cases[0][0], len(cases))) as omni:
                for replica, case in enumerate(cases):
                    seen[case] = await hit(omni, case, replica)
                    # The next case counts on those that are left, and an engine that was asked to end takes its time.
                    left = len(cases) - replica - 1
                    await omni.wait_health(lambda health, left=left: health.stages[0].ready == left)
                    omni.check()

    with private_base() as base:
        trio.run(main)
        assert list(base.iterdir()) == []
    return seen


@pytest.fixture(scope="module")
def matrix() -> dict[Case, Seen]:
    """Every case of an engine or a worker; at most six engines at a time."""
    pytest.importorskip("vllm")
    return {**all_hit(CASES[:6]), **all_hit(CASES[6:])}


def names_of(case) -> str:
    return "-".join(str(signal.Signals(part).name) if isinstance(part, int) else part for part in case)


@pytest.mark.parametrize("case", CASES, ids=names_of)
def test_an_engine_dies_with_all_of_it_and_takes_only_its_own_requests(matrix, case):
    load, member, signum = case
    seen = matrix[case]
    assert seen.held_memory > 0
    assert (seen.alive, seen.shared_memory) == (set(), ())
    assert set(seen.others) <= {Kind.FINISHED}
    if load == "idle":
        assert seen.mine is None
    elif member == "engine" and signum != signal.SIGKILL:
        # Asked to end, the engine does so in order: it says itself, and first, of whom it takes leave.
        assert isinstance(seen.mine, EngineRejected | StageFailed)
        assert seen.mine.stage == "thinker"
    else:
        assert isinstance(seen.mine, StageFailed)
        assert (seen.mine.stage, seen.mine.pid, seen.mine.generation) == ("thinker", seen.pid, 1)


# ---------------------------------------------------------------------- hosts


def end_host(case: tuple[str, int], base: Path) -> tuple[int, set[int], tuple[str, ...], list[Path]]:
    """Its exit code; who is alive 5 s later; the shared memory and the files that it left."""
    load, signum = case
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(base), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, str(PROGRAM), load, METHODS[load]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        watchdog = threading.Timer(START_S, process.kill)  # a silent host fails the test, it does not hang it
        watchdog.start()
        try:
            assert process.stdout is not None
            first = next((line for line in process.stdout if line.startswith(b"{")), None)
            assert first, "it ended before it had answered"
            family = descendants(process.pid)
            assert set(json.loads(first).values()) < set(family)
            names, watch = shared_memory(family), Watch(family)
            try:
                process.send_signal(signum)
                code, alive = process.wait(GONE_S), watch.alive_after(GONE_S)
            finally:
                watch.close()
        finally:
            watchdog.cancel()
            process.kill()
    return code, alive, still_there(names), list(base.iterdir())


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[tuple[str, int], object]]:
    """Every case of a host, two at a time."""
    pytest.importorskip("vllm")
    with private_base() as base, ThreadPoolExecutor(2) as pool:
        bases = [base / str(number) for number in range(len(HOSTS))]
        for each in bases:
            each.mkdir()
        yield dict(zip(HOSTS, pool.map(end_host, HOSTS, bases), strict=True))


@pytest.mark.parametrize("case", HOSTS, ids=names_of)
def test_a_host_ends_and_everything_ends_with_it(hosts, case):
    _, signum = case
    assert hosts[case] == (130 if signum == signal.SIGINT else -signum, set(), (), [])
