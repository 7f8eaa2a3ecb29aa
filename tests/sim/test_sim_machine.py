"""The interactive state machine: Hypothesis picks the next rule with the run before its eyes; time is one of the rules.

What a rule does is a scenario's operation, so a failure is also a scenario: its JSON stands in the failure's note.
"""

from __future__ import annotations

from contextlib import ExitStack

import hypothesis.strategies as st
from hypothesis import HealthCheck, note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omni_actors.testing.invariants import INVARIANTS, Facts, check
from omni_actors.testing.sim._guest import Pump
from omni_actors.testing.sim._scenario import (
    Abort,
    Call,
    Exit,
    Inject,
    Kill,
    Leave,
    Resume,
    Scenario,
    Shutdown,
    Stage,
    Stall,
    Submit,
)

PREFIX_CLOSED = ("I2", "I3", "I5", "I8", "I13", "I20")
"""What no later event can mend: an output behind the terminal, an abort that was not final, a terminal that changed, a
crossed key, a passed bound, a word of the dead that was heard. The others speak of what must have come by the end.
"""

CHAIN = (
    Stage(name="t", output="text", behaviour={"tokens": 10}),
    Stage(name="k", inputs=("t",), segments=True, behaviour={"tokens": 8}),
    Stage(name="v", wire="omni", inputs=("k",), output="audio", replicas=2),
)
DIAMOND = (
    Stage(name="t", behaviour={"tokens": 6}, replicas=2),
    Stage(name="k", inputs=("t",), output="text", cheap=False),
    Stage(name="p", wire="omni", inputs=("t",), output="image"),
    Stage(name="j", inputs=("k", "p"), output="audio"),
)
ALONE = (Stage(name="t", output="text", behaviour={"tokens": 200}),)

stages = st.integers(0, 3)
replicas = st.integers(0, 1)
requests = st.integers(0, 5).map("r{}".format)
injections = st.sampled_from(["garbage", "truncated", "empty", "late release", "stranger", "late output"])


class Runtime(RuleBasedStateMachine):
    """One runtime, pumped. The invariants that hold of every prefix are looked at after every rule."""

    @initialize(
        stages=st.sampled_from([CHAIN, DIAMOND, ALONE]),
        seed=st.integers(0, 2**16),
        buggify=st.booleans(),
        max_requests=st.sampled_from([100, 2]),
        hwm=st.sampled_from([10_000, 2]),
    )
    def start(self, stages, seed, buggify, max_requests, hwm) -> None:
        scenario = Scenario(stages=stages, seed=seed, buggify=buggify, max_requests=max_requests, hwm=hwm)
        self.around = ExitStack()
        self.pump = self.around.enter_context(Pump(scenario))
        self.names = [stage.name for stage in stages]
        self.submitted: list[str] = []
        self.shutdowns = 0

    def stage(self, number: int) -> str:
        return self.names[number % len(self.names)]

    # ------------------------------------------------------------------ users

    @rule(
        id=st.sampled_from(["", "same"]),
        pace_s=st.sampled_from([0.0, 0.1]),
        leave_after=st.sampled_from([None, None, 0, 2]),
        leave=st.sampled_from(["break", "raise", "cancel"]),
        timeout_s=st.sampled_from([None, None, 0.05, 3.0]),
        inside=st.booleans(),
    )
    def submit(self, **how) -> None:
        self.submitted.append(f"r{len(self.submitted)}")
        self.pump.do(Submit(request=self.submitted[-1], **how))

    @rule(id=st.one_of(requests, st.just("same"), st.just("nobody")))
    def abort(self, id) -> None:
        self.pump.do(Abort(id=id))

    @rule(request=requests)
    def leave(self, request) -> None:
        self.pump.do(Leave(request=request))

    @rule(stage=stages)
    def call(self, stage) -> None:
        self.pump.do(Call(stage=self.stage(stage)))

    @rule()
    def health(self) -> None:
        self.pump.health()

    # ------------------------------------------------------------------ fate

    @rule(stage=stages, replica=replicas, signal=st.sampled_from(["KILL", "TERM"]))
    def kill(self, stage, replica, signal) -> None:
        self.pump.do(Kill(stage=self.stage(stage), replica=replica, signal=signal))

    @rule(stage=stages, replica=replicas)
    def stall(self, stage, replica) -> None:
        self.pump.do(Stall(stage=self.stage(stage), replica=replica))

    @rule(stage=stages, replica=replicas)
    def resume(self, stage, replica) -> None:
        self.pump.do(Resume(stage=self.stage(stage), replica=replica))

    @rule(stage=stages, replica=replicas, code=st.sampled_from([0, 1, 3]))
    def exit(self, stage, replica, code) -> None:
        self.pump.do(Exit(stage=self.stage(stage), replica=replica, code=code))

    @rule(stage=stages, replica=replicas, what=injections)
    def inject(self, stage, replica, what) -> None:
        self.pump.do(Inject(stage=self.stage(stage), replica=replica, what=what))

    # ------------------------------------------------------------------ the end, and time

    @precondition(lambda self: self.submitted and self.shutdowns < 2)
    @rule(drain_s=st.sampled_from([None, 0.0, 0.5]))
    def shutdown(self, drain_s) -> None:
        self.shutdowns += 1
        self.pump.do(Shutdown(drain_s=drain_s))

    @rule(seconds=st.sampled_from([0.005, 0.015, 0.1]))
    def advance(self, seconds) -> None:
        self.pump.advance(seconds)

    @rule(seconds=st.sampled_from([1.5, 10.0, 70.0]))
    def advance_long(self, seconds) -> None:
        self.pump.advance(seconds)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def what_no_later_event_can_mend(self) -> None:
        facts = Facts(self.pump.history)
        self.complain([found for name in PREFIX_CLOSED for found in INVARIANTS[name](facts)])

    def teardown(self) -> None:
        if not hasattr(self, "pump"):
            return
        with self.around:
            history = self.pump.finish()
        self.complain(check(history))

    def complain(self, violations) -> None:
        scenario = self.pump.history.scenario
        if violations:
            note(f"scenario: {scenario.to_json()}")
        assert violations == []


TestRuntime = Runtime.TestCase
TestRuntime.settings = settings(
    max_examples=100,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,  # ``make prove`` is what looks elsewhere each time
    suppress_health_check=[HealthCheck.too_slow],
)
