"""The supervisor against a reference model, on random scripts: I18 and I19.

The model is a discrete-event simulation with a heap of timed calls, an explicit stack of children to stop and a queue
of children to start; it shares no code with the implementation, which looks at all children at each wake-up. Every
duration in a script ends in a binary digit of its own, so that no two unrelated events fall on the same instant.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field

import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_actors._errors import ActorNotReady, GaveUp
from omni_actors.actors import Backoff, ChildSpec, Intensity, PerChild, Supervisor
from omni_actors.testing.sim._schedule import scheduled_by

STOP_S = 3.0


class Boom(Exception):
    """A scripted failure."""


@dataclass
class Fate:
    """One generation: fails ``early`` or is ready after ``ready``, then fails, ends or runs; None is never ready."""

    ready: float | None = 0.0
    early: bool = False
    then: str = "run"
    after: float = 1.0
    cleanup: float = 0.0


@dataclass
class Script:
    name: str
    restart: str
    start_s: float
    fates: list[Fate]

    def fate(self, generation: int) -> Fate:
        return self.fates[generation - 1] if generation <= len(self.fates) else Fate()


@dataclass
class Plan:
    children: list[Script]
    strategy: str
    policy: Intensity | PerChild
    backoff: Backoff | None
    start_order: str
    stop_order: str
    stop_at: float
    by_cancel: bool
    seed: int


@dataclass
class Record:
    """What the model remembers of one child."""

    script: Script
    rank: int
    generation: int = 0
    status: str = "idle"  # idle, starting, up, cancelled
    was_up: bool = False
    up_since: float | None = None
    failures: int = 0
    due: float = 0.0
    late_until: float = 0.0
    out: bool = False  # down, or ended for good


class Model:
    """OTP's rules as a simulation. ``events``: (time, name, generation, kind); ``outcome``: how ``run`` ends."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.now, self.outcome = plan, 0.0, "stopped"
        self.kids = {s.name: Record(s, i) for i, s in enumerate(plan.children)}
        self.heap: list = []
        self.ticket = itertools.count()
        self.events: list[tuple[float, str, int, str]] = []
        self.doomed: list[str] = []  # a stack: the next to stop is the last
        self.queue: list[str] = list(self.kids)  # to start, in order
        self.answered: list[float] = []
        self.final = self.complete = False

    def simulate(self) -> Model:
        self.at(self.plan.stop_at, self.shut, "stopped")
        self.proceed()
        while self.heap and not (self.final and self.all_idle()):
            self.now, _, call, args = heapq.heappop(self.heap)
            call(*args)
            self.proceed()
        return self

    def at(self, when, call, *args) -> None:
        heapq.heappush(self.heap, (when, next(self.ticket), call, args))

    def all_idle(self) -> bool:
        return all(k.status == "idle" for k in self.kids.values())

    def say(self, kid: Record, kind: str) -> None:
        self.events.append((self.now, kid.script.name, kid.generation, kind))

    def proceed(self) -> None:
        self.doomed = [n for n in self.doomed if self.kids[n].status != "idle"]
        for name in reversed(self.doomed if self.plan.stop_order == "together" else self.doomed[-1:]):
            self.cancel(self.kids[name])
        if self.doomed or self.final:
            return
        alone = self.plan.strategy == "one_for_one" and self.complete
        for name in list(self.queue):
            kid = self.kids[name]
            serial = self.plan.start_order == "sequence" and not alone
            before = [k for k in self.kids.values() if k.rank < kid.rank and not k.out]
            if kid.due <= self.now and not (serial and any(k.status != "up" for k in before)):
                self.queue.remove(name)
                self.begin(kid)
        self.complete = self.complete or all(k.was_up for k in self.kids.values())

    def begin(self, kid: Record) -> None:
        kid.generation, kid.status = kid.generation + 1, "starting"
        self.say(kid, "starting")
        fate = kid.script.fate(kid.generation)
        if fate.ready is None or fate.ready >= kid.script.start_s:
            self.at(self.now + kid.script.start_s, self.late, kid, kid.generation, fate)
        elif fate.early:
            self.at(self.now + fate.ready, self.end, kid, kid.generation, True)
        else:
            self.at(self.now + fate.ready, self.up, kid, kid.generation, fate)

    def up(self, kid: Record, generation: int, fate: Fate) -> None:
        if (kid.status, kid.generation) == ("starting", generation):
            kid.status, kid.was_up, kid.up_since = "up", True, self.now
            self.say(kid, "ready")
            if fate.then != "run":
                self.at(self.now + fate.after, self.end, kid, generation, fate.then == "fail")

    def late(self, kid: Record, generation: int, fate: Fate) -> None:
        if (kid.status, kid.generation) == ("starting", generation):
            self.at(self.now + fate.cleanup, self.end, kid, generation, True)
            # Cancelled by its own deadline: a stop during its cleanup cannot make it end sooner or later.
            kid.status, kid.late_until = "late", self.now + fate.cleanup

    def cancel(self, kid: Record) -> None:
        if kid.status == "cancelled":
            return
        over = kid.late_until if kid.status == "late" else self.now + kid.script.fate(kid.generation).cleanup
        kid.status = "cancelled"
        self.say(kid, "stopping")
        self.at(over, self.stopped, kid)
        if over > self.now + STOP_S:
            self.at(self.now + STOP_S, self.say, kid, "overdue")

    def stopped(self, kid: Record) -> None:
        kid.status = "idle"
        self.say(kid, "stopped")
        self.forgive(kid)

    def forgive(self, kid: Record) -> None:
        stable = self.plan.policy.stable_s if isinstance(self.plan.policy, PerChild) else self.plan.policy.within_s
        if kid.up_since is not None and self.now - kid.up_since >= stable:
            kid.failures = 0
        kid.up_since = None

    def end(self, kid: Record, generation: int, failed: bool) -> None:
        if kid.generation != generation or kid.status not in ("starting", "up", "late"):
            return
        kid.status = "idle"
        self.say(kid, "exited")
        self.forgive(kid)
        if kid.script.name in self.doomed:
            return
        if not kid.was_up:
            self.fail_start(kid)
        elif kid.script.restart == "temporary" or (kid.script.restart == "transient" and not failed):
            kid.out = True
        else:
            kid.failures += 1
            self.judge(kid)

    def fail_start(self, kid: Record) -> None:
        starting = [k for k in self.kids.values() if k.status in ("starting", "late")]
        self.shut(f"start failed: {kid.script.name}")
        for other in reversed(starting):
            self.cancel(other)

    def judge(self, kid: Record) -> None:
        policy = self.plan.policy
        if isinstance(policy, PerChild):
            if kid.failures > policy.max_failures:
                kid.out = True
                self.say(kid, "down")
                return
        elif sum(self.now - policy.within_s <= t for t in self.answered) + 1 > policy.max_restarts:
            self.shut("gave up")
            return
        self.answered.append(self.now)
        self.regroup(kid)

    def regroup(self, kid: Record) -> None:
        wait = 0.0
        if self.plan.backoff is not None:
            wait = self.plan.backoff.first_s
            for _ in range(kid.failures - 1):
                wait = min(wait * self.plan.backoff.factor, self.plan.backoff.max_s)
            self.say(kid, "backing_off")
        reach = {"one_for_one": lambda k: k is kid, "rest_for_one": lambda k: k.rank >= kid.rank}
        for other in self.kids.values():
            gone_down = other.out and isinstance(self.plan.policy, PerChild) and self.is_down(other)
            if gone_down or not reach.get(self.plan.strategy, lambda _: True)(other):
                continue
            other.due = max(self.now + wait, other.due if other.status == "idle" else 0.0)
            if other.status != "idle":
                self.doomed.append(other.script.name)
            other.out = other.script.restart == "temporary" and other.was_up
            if not other.out:
                self.queue = sorted({*self.queue, other.script.name}, key=lambda n: self.kids[n].rank)
        self.at(self.now + wait, lambda: None)

    def is_down(self, kid: Record) -> bool:
        return any(name == kid.script.name and kind == "down" for _, name, _, kind in self.events)

    def shut(self, outcome: str) -> None:
        if not self.final:
            self.final, self.outcome, self.queue = True, outcome, []
            self.doomed = [n for n, k in self.kids.items() if k.status != "idle"]


@dataclass
class Run:
    """What the real supervisor did."""

    events: list[tuple[float, str, int, str]] = field(default_factory=list)
    alive: dict[str, int] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    outcome: str = "stopped"


def real(plan: Plan) -> Run:
    run = Run()
    supervisor = Supervisor(
        [ChildSpec(s.name, acting(s, run), s.restart, start_s=s.start_s, stop_s=STOP_S) for s in plan.children],
        strategy=plan.strategy, intensity=plan.policy, backoff=plan.backoff,
        start_order=plan.start_order, stop_order=plan.stop_order,
        observe=lambda e: run.events.append((e.at, e.name, e.generation, e.kind)),
    )  # fmt: skip

    async def main() -> None:
        with trio.fail_after(1e6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop_later, plan, supervisor, nursery.cancel_scope)
                try:
                    await supervisor.run()
                except GaveUp:
                    run.outcome = "gave up"
                except Boom as error:
                    run.outcome = f"start failed: {error}"
                except ActorNotReady as error:
                    run.outcome = "start failed: " + error.message.split("'")[1]
                nursery.cancel_scope.cancel()

    with scheduled_by(plan.seed):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return run


async def stop_later(plan: Plan, supervisor: Supervisor, scope: trio.CancelScope) -> None:
    await trio.sleep(plan.stop_at)
    if plan.by_cancel:
        scope.cancel()
    else:
        await supervisor.stop()


def acting(script: Script, run: Run):
    async def start(life) -> None:
        run.alive[script.name] = run.alive.get(script.name, 0) + 1
        if run.alive[script.name] > 1:
            run.twice.append(script.name)
        try:
            await act(script, script.fate(life.generation), life)
        finally:
            run.alive[script.name] -= 1

    return start


async def act(script: Script, fate: Fate, life) -> None:
    try:
        await trio.sleep(math.inf if fate.ready is None else fate.ready)
        if fate.early:
            raise Boom(script.name)
        life.started()
        await trio.sleep(math.inf if fate.then == "run" else fate.after)
        if fate.then == "fail":
            raise Boom(script.name)
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            if fate.cleanup:
                await trio.sleep(fate.cleanup)
        raise


@st.composite
def plans(draw) -> Plan:
    digits = itertools.count(1)

    def seconds(least: int, most: int) -> float:
        whole = draw(st.integers(least, most))
        return whole and whole + 2.0 ** -next(digits)

    def fate() -> Fate:
        kind = draw(st.sampled_from(["fail", "fail", "fail", "end", "run", "early", "never"]))
        return Fate(
            ready=None if kind == "never" else seconds(1 if kind == "early" else 0, 3),
            early=kind == "early",
            then=kind if kind in ("fail", "end") else "run",
            after=seconds(1, 9),
            cleanup=seconds(0, 5),
        )

    def fates() -> list[Fate]:
        # Mostly a first start that succeeds, so that the run goes further.
        first = [Fate(0.0, then="fail", after=seconds(1, 9))] if draw(st.integers(0, 4)) else []
        return first + [fate() for _ in range(draw(st.sampled_from([2, 1, 0]) if first else st.integers(0, 3)))]

    children = [
        Script(
            name=name,
            restart=draw(st.sampled_from(["permanent", "permanent", "transient", "temporary"])),
            start_s=2.5 + 2.0 ** -(30 + 4 * i),
            fates=fates(),
        )
        for i, name in enumerate(draw(st.sampled_from(["abc", "ab", "a"])))
    ]
    policies = [Intensity(0, 5.0), Intensity(1, 8.0), Intensity(3, 10.0)]
    policies += [PerChild(0, 5.0), PerChild(1, 5.0), PerChild()]
    return Plan(
        children=children,
        strategy=draw(st.sampled_from(["one_for_one", "rest_for_one", "one_for_all"])),
        policy=draw(st.sampled_from(policies)),
        backoff=draw(st.sampled_from([None, Backoff(0.5, max_s=4.0)])),
        start_order=draw(st.sampled_from(["sequence", "together"])),
        stop_order=draw(st.sampled_from(["reverse", "together"])),
        stop_at=draw(st.sampled_from([40, 5, 9, 14, 20, 1])) + 2.0**-29,
        by_cancel=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


def by_child(events):
    """In time order; at one instant, child by child."""
    return sorted(events, key=lambda event: event[:2])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans())
def test_it_does_what_the_model_does(plan: Plan) -> None:
    """I18: start and stop events equal the model's, and no child ever lives twice at once."""
    model, run = Model(plan).simulate(), real(plan)
    assert by_child(run.events) == by_child(model.events)
    assert run.outcome == model.outcome
    assert run.twice == []
    assert not any(run.alive.values())
