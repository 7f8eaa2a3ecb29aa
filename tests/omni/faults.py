"""The failure matrix on vLLM-Omni's stages, as data and as one routine: who is hurt, by what, and what it was doing."""

from __future__ import annotations

import os
import signal

import attrs
import pytest
import trio

from omni_actors import EngineRejected, Kind, RequestFailed, StageFailed
from omni_actors.testing.chaos import workers
from omni_actors.testing.os_state import Watch, descendants, shared_memory

from .prompts import PROMPTS
from .test_same_outputs import answer, same

__all__ = ["LIMITS", "Fault", "Matrix", "failure", "faults", "reached_the_last"]

GONE_S = 5.0
NOISE_S = 3.0
"""What a busy machine may add to a bound."""
RESTART_S = 300.0
ANSWER_S = 60.0

LIMITS = {
    "start_s": RESTART_S, "placement_s": RESTART_S, "silence_s": 2.0, "hang_s": 10.0, "stop_s": 10.0, "stable_s": 0.5,
    "backoff_first_s": 0.1, "backoff_max_s": 0.1,
}  # fmt: skip
"""Short but for what a start takes. Every fault counts as the first: how often a stage may fail is another test."""


@attrs.frozen(kw_only=True)
class Fault:
    """``stage``: its number. ``phase``: what goes on when it strikes.

    idle: nothing, and the next request comes at once. admitted: a request was taken, no stage has made anything.
    waiting: the last stage has its request, and waits for a piece or for its turn. stream: the user hears it.
    """

    stage: int
    phase: str
    signum: int = signal.SIGKILL
    member: str = "engine"

    def __str__(self) -> str:
        return f"{signal.Signals(self.signum).name}-{self.member}-of-{self.stage}-{self.phase}"


def faults(stages):
    """All of them, for a pipeline of so many stages."""
    for stage in range(stages):
        for phase in ("idle", "admitted", "waiting", "stream"):
            yield Fault(stage=stage, phase=phase)
        for phase in ("idle", "stream"):
            yield Fault(stage=stage, phase=phase, signum=signal.SIGSTOP)
        yield Fault(stage=stage, phase="stream", signum=signal.SIGTERM)
        yield Fault(stage=stage, phase="stream", member="worker")
        yield Fault(stage=stage, phase="stream", member="worker", signum=signal.SIGSTOP)


async def failure(stream) -> RequestFailed | None:
    """What a request fails with; None if it finishes."""
    try:
        await stream.result()
    except RequestFailed as error:
        return error
    return None


async def reached_the_last(omni) -> None:
    """Return when the last stage has work."""
    last, leases = omni.spec.stages[-1].name, omni._handler.table.leases
    with trio.fail_after(30):
        while all(lease.stage != last for lease in leases.values()):  # noqa: ASYNC110  # a table tells nobody of itself
            await trio.sleep(0.005)


class Victim:
    """The current generation of a stage, and everything that must end with it."""

    def __init__(self, omni, stage) -> None:
        self.pid = omni.pids()[f"{stage}/0"]
        self.generation = omni._stages[stage].replicas[0].generation
        family = [self.pid, *descendants(self.pid)]
        self._names = shared_memory(family)
        assert self._names
        self._watch = Watch(family)

    def hit(self, fault) -> None:
        os.kill(workers(self.pid)[0] if fault.member == "worker" else self.pid, fault.signum)

    async def gone(self) -> None:
        alive = await trio.to_thread.run_sync(self._watch.alive_after, GONE_S)
        self._watch.close()
        assert alive == set()
        assert self._names & set(os.listdir("/dev/shm")) == set()


class Matrix:
    """A running pipeline under test. ``name``: of the prompt that it is asked, again and again."""

    def __init__(self, omni, watched, name) -> None:
        self._omni, self._watched, self._name = omni, watched, name
        self._prompt = PROMPTS[name](omni.spec.stages[0].model)
        self._stages = [stage.name for stage in omni.spec.stages]

    async def begin(self) -> None:
        """What it answers while all is well."""
        begun = trio.current_time()
        self._expected = await answer(self._omni, self._name)
        self._life_s = trio.current_time() - begun
        await self._watched.clean()

    async def strike(self, fault: Fault) -> str:
        """The whole of one case. What happened, in words."""
        victim = Victim(self._omni, self._stages[fault.stage])
        struck_at = trio.current_time()
        if fault.phase == "idle":
            victim.hit(fault)
        async with trio.open_nursery() as nursery:
            if self._text_is_out_of_it(fault):
                await nursery.start(self._beside)
            ended, noticed = await self._ask_and_hit(fault, victim)
        if not noticed:
            ended += await self._ask_the_frozen(fault, victim)
        await victim.gone()
        await self._recovered(fault, victim)
        return f"{fault}: {ended}; right again after {trio.current_time() - struck_at:.0f} s"

    async def _ask_and_hit(self, fault, victim) -> tuple[str, bool]:
        """One request, and what became of it; and whether anybody can have noticed the fault by then."""
        async with self._omni.generate(self._prompt, request_id="mine") as mine:
            await self._until(fault.phase, mine)
            leases = self._omni._handler.table.leases.values()
            held = {lease.stage for lease in leases if lease.record.sink is mine}
            struck_at = trio.current_time()
            if fault.phase != "idle":
                victim.hit(fault)
            error = await failure(mine)
            took_s = trio.current_time() - struck_at
        is_with_it = self._stages[fault.stage] in held
        if error is None:  # it was not with that stage yet, and has waited for the next generation
            assert not is_with_it or fault.phase == "idle"
            noticed = fault.signum != signal.SIGSTOP
            return f"finished {'by the next generation ' if noticed else ''}after {took_s:.0f} s", noticed
        self._judge(fault, victim, error)
        bound_s = LIMITS["hang_s"] if fault.signum == signal.SIGSTOP else 1.0
        assert took_s <= bound_s + NOISE_S + (0.0 if is_with_it else self._life_s)
        return f"{type(error).__name__} after {took_s:.2f} s", True

    async def _ask_the_frozen(self, fault, victim) -> str:
        """It had done its part and owed nothing, so nobody has looked at it. The next request finds out."""
        asked_at = trio.current_time()
        async with self._omni.generate(self._prompt, request_id="mine") as mine:
            error = await failure(mine)
        took_s = trio.current_time() - asked_at
        self._judge(fault, victim, error)
        assert took_s <= LIMITS["hang_s"] + NOISE_S + self._life_s
        return f", the next one {type(error).__name__} after {took_s:.2f} s"

    async def _recovered(self, fault, victim) -> None:
        """It is back, nothing is left of what was, and the answer is right."""
        omni, name = self._omni, f"{self._stages[fault.stage]}/0"
        with trio.fail_after(RESTART_S):
            await omni.wait_health(lambda health: health.ready and omni.pids().get(name) != victim.pid)
        await self._watched.clean()
        with trio.fail_after(ANSWER_S):
            same(await answer(omni, self._name), self._expected)
        await self._watched.clean()

    def _judge(self, fault, victim, error) -> None:
        stage = self._stages[fault.stage]
        if fault.signum == signal.SIGTERM:
            # Asked to end, the engine does so in order: it may say itself, and first, of whom it takes leave.
            assert isinstance(error, EngineRejected | StageFailed)
            assert error.stage == stage
            return
        assert isinstance(error, StageFailed), error
        assert (error.stage, error.generation, error.pid) == (stage, victim.generation, victim.pid)
        assert error.request_id == "mine"
        assert (error.verdict == "hang") == (fault.signum == signal.SIGSTOP)
        if (fault.signum, fault.member) == (signal.SIGKILL, "engine"):
            assert (error.signal, error.verdict) == ("SIGKILL", "exit")

    def _text_is_out_of_it(self, fault) -> bool:
        """Whether a request for text alone touches no stage that is hurt."""
        return self._omni.spec.stages[0].output == "text" and fault.stage > 0 and fault.phase != "idle"

    async def _beside(self, task_status) -> None:
        async with self._omni.generate(self._prompt, modalities=["text"], request_id="beside") as stream:
            task_status.started()
            assert (await stream.result()).kind is Kind.FINISHED

    async def _until(self, phase, stream) -> None:
        if phase == "waiting":
            await reached_the_last(self._omni)
        elif phase == "stream":
            async for output in stream:
                if output.modality == "audio":
                    return
            pytest.fail("it was never heard")
