"""I11 to I16: each checker is silent about a run that shows the thing done right, and speaks about one done wrong."""

from __future__ import annotations

from functools import cache

import attrs
import msgspec

from omni_actors.testing.invariants import INVARIANTS, Facts
from omni_actors.testing.sim._history import (
    AbortCalled,
    AbortReturned,
    Accepted,
    Closed,
    Deadlocked,
    Ended,
    Exceeded,
    Faulted,
    History,
    Left,
    ShutdownCalled,
    ShutdownReturned,
    StageSaid,
    State,
    Submitting,
    TerminalSeen,
    Wire,
)
from omni_actors.testing.sim._scenario import Abort, Inject, Kill, Scenario, Shutdown, Stage, Stall, Submit
from omni_actors.testing.sim._simulate import simulate

TEXT = Stage(name="t", output="text", behaviour={"tokens": 10})
CUT = (
    TEXT,
    Stage(name="v", wire="omni", inputs=("t",), segments=True, output="audio", behaviour={"fail_at_chunk": 9}),
)


@cache
def busy() -> History:
    """Leases that end in each way, an abort that an engine never confirms, the house full, and a shutdown."""
    requests = [Submit(at=0.1, request=name) for name in ("whole", "aborted", "killed")]
    stuck = [Submit(at=3 + i / 10, request=f"stuck{i}", modalities=("text",)) for i in range(4)]
    ops = (
        *requests,
        Abort(at=0.14, id="aborted"),
        Inject(at=0.2, stage="v", what="late release"),
        Kill(at=0.15, stage="v"),
        Submit(at=1.5, request="rejected: it says"),
        Stall(at=2.5, stage="t"),
        *stuck,
        Abort(at=3.5, id="stuck0"),
        Abort(at=3.5, id="stuck3"),
        Shutdown(at=5.0, drain_s=1.0),
    )
    text = msgspec.structs.replace(TEXT, behaviour={"tokens": 10, "reject": "rejected"})
    scenario = Scenario(stages=(text, CUT[1]), ops=ops, hwm=2, max_requests=4, buggify=False)
    return simulate(scenario)


def found(history: History, name: str) -> str:
    """What the checker says, one violation per line."""
    return "\n".join(map(str, INVARIANTS[name](Facts(history))))


def told(*events, scenario: Scenario | None = None) -> History:
    """A history written by hand: one engine, and what happened."""
    said = {"stage": "t", "replica": 0, "generation": 1}
    begin = [StageSaid(at=0.0, kind=kind, **said) for kind in ("starting", "ready")]
    pipeline = Scenario(stages=CUT).pipeline()
    return History(pipeline, scenario, [*begin, *events])


def wire(at: float, way: str, what: str, key: str = "1-x-0", stage: str = "t") -> Wire:
    return Wire(at=at, way=way, stage=stage, replica=0, generation=1, what=what, key=key)


def request(at: float, name: str = "a", key: str = "1-x") -> list:
    return [Submitting(at=at, request=name, id=name), Accepted(at=at, request=name, key=key)]


def edited(history: History, change) -> History:
    """The same history with ``change(event)``, a list, in the place of each event."""
    return attrs.evolve(history, events=[new for event in history.events for new in change(event)])


def quiet(**counts: int) -> State:
    return State(at=1.0, when="quiet", counts=counts)


# ---------------------------------------------------------------------- I11


def test_leases_that_end_in_every_way_are_well() -> None:
    leases = Facts(busy()).leases.values()

    assert {lease.how for lease in leases} == {"released", "failed", "unsent", "died"}
    assert any(lease.aborts and lease.how == "released" for lease in leases)
    assert found(busy(), "I11") == ""


def test_a_lease_that_never_ends_is_found() -> None:
    history = told(*request(0.1), wire(0.1, "sent", "add"), Closed(at=9.0, opened=True))

    assert "lease 1-x-0 of request a, added to stage t, replica 0, generation 1 at 0.1 s, never ended" in found(
        history, "I11"
    )


def test_work_that_is_sent_twice_is_found() -> None:
    history = edited(
        busy(), lambda e: [e, e] if isinstance(e, Wire) and e.what == "add" and "1-sim-0" in e.key else [e]
    )

    assert "lease 1-sim-0 of request whole" in found(history, "I11")
    assert "was sent 2 times" in found(history, "I11")


def test_work_that_is_taken_back_after_its_end_or_though_it_was_done_is_found() -> None:
    add, back = wire(0.1, "sent", "add"), wire(0.3, "unsent", "add")
    after = told(*request(0.1), add, wire(0.2, "heard", "released"), back, Closed(at=9.0, opened=True))
    done = told(*request(0.1), add, back, wire(0.4, "heard", "output"), Closed(at=9.0, opened=True))

    assert "was taken back at 0.3 s, though it had ended: released" in found(after, "I11")
    assert "was taken back, and yet its engine worked on it" in found(done, "I11")


def test_a_live_lease_of_an_ended_request_must_be_aborted() -> None:
    end = TerminalSeen(at=0.2, request="a", kind="aborted")
    rest = (wire(0.9, "heard", "finished"), wire(0.9, "heard", "released"), Closed(at=9.0, opened=True))
    silent = told(*request(0.1), wire(0.1, "sent", "add"), end, *rest)
    proper = told(*request(0.1), wire(0.1, "sent", "add"), end, wire(0.2, "sent", "abort"), *rest)
    leaked = told(*request(0.1), end, wire(0.3, "sent", "add"), *rest)

    assert found(proper, "I11") == ""
    assert "request a, added to stage t, replica 0, generation 1 at 0.1 s, was not aborted" in found(silent, "I11")
    assert "was sent after its request had ended at 0.2 s" in found(leaked, "I11")


def test_a_late_release_is_no_second_end() -> None:
    ends = [wire(0.2, "heard", what) for what in ("finished", "released", "released")]

    assert found(told(*request(0.1), wire(0.1, "sent", "add"), *ends, Closed(at=9.0, opened=True)), "I11") == ""


# ---------------------------------------------------------------------- I12, I13, I14


def test_a_quiet_runtime_holds_nothing() -> None:
    calm = simulate(Scenario(stages=CUT, ops=(Submit(at=0.1, request="a"), Submit(at=0.1, request="b"), Abort(id="b"))))

    assert [state.when for state in calm.of(State)] == ["quiet", "closed"]
    assert found(calm, "I12") == ""
    assert "no request was live at 1 s, but the runtime held: leases 1, slots 2" in found(
        told(quiet(requests=0, leases=1, slots=2)), "I12"
    )
    assert found(told(State(at=1.0, when="closed", counts={"tasks": 1})), "I12") == ""


def test_the_house_and_the_windows_hold() -> None:
    assert any(limit == 4 for limit in [busy().pipeline.limits.max_requests])
    assert found(busy(), "I13") == ""


def test_a_bound_that_was_seen_exceeded_is_reported() -> None:
    history = told(Exceeded(at=2.0, bound="stream bytes", value=70, limit=64))

    assert found(history, "I13") == "I13: stream bytes: 70 at 2 s, over the bound of 64"


def test_one_request_too_many_is_found() -> None:
    history = told(*request(0.1, "a", "1-x"), *request(0.2, "b", "2-x"))
    history.pipeline = Scenario(stages=CUT, max_requests=1).pipeline()

    assert "request b was accepted at 0.2 s as number 2 of at most 1" in found(history, "I13")
    history.events.insert(4, TerminalSeen(at=0.15, request="a", kind="finished"))
    assert found(history, "I13") == ""


def test_one_part_too_many_is_found() -> None:
    keys = ["1-x-1", *(f"1-x-1-p{part}" for part in range(1, 5))]
    adds = [wire(0.2, "sent", "add", key, "v") for key in keys]
    samples = [wire(0.2, "sent", "add", f"{keys[0]}-s{index}", "v") for index in range(1, 3)]

    assert "request a had 5 parts at work in stage v at 0.2 s; its window is 4" in found(
        told(*request(0.1), *adds), "I13"
    )
    assert found(told(*request(0.1), *adds[:4], *samples), "I13") == ""
    assert found(told(*request(0.1), *adds[:4], wire(0.2, "heard", "finished", keys[0], "v"), adds[4]), "I13") == ""


def test_companions_are_no_parts_of_their_own_but_take_slots() -> None:
    inner = [wire(0.2, "sent", "add", f"1-x-1{role}", "v") for role in ("", *(f"-c{n}" for n in range(6)))]
    assert found(told(*request(0.1), *inner), "I13") == ""

    root = [wire(0.2, "sent", "add", f"1-x-0{role}", "t") for role in ("", "-c0", "-c1")]
    history = told(*request(0.1), *root)
    history.pipeline = Scenario(stages=CUT, max_requests=3).pipeline()
    assert found(history, "I13") == ""
    history.pipeline = Scenario(stages=CUT, max_requests=2).pipeline()
    assert "lease 1-x-0-c1 was sent at 0.2 s as number 3 of 2 slots" in found(history, "I13")


def test_a_deadlock_is_found_and_says_who_waited() -> None:
    history = told(*request(0.1), Deadlocked(at=1e6, tasks="router waits"))

    assert found(busy(), "I14") == ""
    assert "requests in their blocks: a; tasks: router waits" in found(history, "I14")


# ---------------------------------------------------------------------- I15


def stalled(*events) -> History:
    return told(Faulted(at=0.1, op="stall", stage="t", replica=0, generation=1), *events)


def test_under_pressure_abort_and_shutdown_keep_their_deadlines() -> None:
    history = busy()

    assert any(event.op == "stall" and event.done for event in history.of(Faulted))
    assert any(event.unconfirmed for event in history.of(AbortReturned))
    assert len(list(history.of(ShutdownReturned))) == 2
    assert found(history, "I15") == ""


def test_an_abort_that_is_stuck_under_pressure_is_found() -> None:
    call = AbortCalled(at=1.0, call=1, id="a")

    assert "abort call 1 of request id 'a', made at 1 s, never returned" in found(stalled(call), "I15")
    assert "returned at 3.5 s, after more than abort_s = 2 s" in found(
        stalled(call, AbortReturned(at=3.5, call=1, id="a")), "I15"
    )
    assert found(told(call), "I15") == "", "without pressure it is I16's"


def test_a_shutdown_that_is_stuck_under_pressure_is_found() -> None:
    call = ShutdownCalled(at=1.0, call=7, drain_s=0.0)

    def returned(at: float) -> ShutdownReturned:
        return ShutdownReturned(at=at, call=7, report="")

    assert "shutdown call 7, made at 1 s with full queues or stalled engines, never returned" in found(
        stalled(call), "I15"
    )
    # 0 s to drain, 2 to abort, 3 to stop, twice 1 to kill.
    assert found(stalled(call, returned(8.0)), "I15") == ""
    assert "returned at 8.1 s; its deadlines allow 8 s" in found(stalled(call, returned(8.1)), "I15")


def test_an_abort_that_waits_behind_work_is_found() -> None:
    end, late = TerminalSeen(at=0.5, request="a", kind="aborted"), wire(1.5, "sent", "abort")
    history = stalled(*request(0.2), wire(0.2, "sent", "add"), end, late)

    assert "stage t, replica 0, generation 1 was told to abort its lease 1-x-0 only at 1.5 s" in found(history, "I15")


# ---------------------------------------------------------------------- I16


def unconfirmed(*keys: str, at: float = 3.0, wires: tuple[Wire, ...] = ()) -> History:
    """Request a is aborted at 1 s; the call returns at ``at`` and names ``keys``."""
    call, end = AbortCalled(at=1.0, call=1, id="a", live=("a",)), TerminalSeen(at=1.0, request="a", kind="aborted")
    back = AbortReturned(at=at, call=1, id="a", known=True, kinds=("aborted",), unconfirmed=keys)
    told_to = wire(1.0, "sent", "abort")
    return told(*request(0.1), wire(0.1, "sent", "add"), call, end, told_to, *wires, back)


PING = wire(3.0, "sent", "ping", key="")


def test_an_abort_that_names_what_is_unconfirmed_is_prompt_and_true() -> None:
    assert found(busy(), "I16") == ""
    assert found(unconfirmed("1-x-0", wires=(PING,)), "I16") == ""
    assert found(unconfirmed(at=1.1, wires=(wire(1.1, "heard", "released"),)), "I16") == ""


def test_an_abort_that_returns_too_late_or_never_is_found() -> None:
    never = edited(unconfirmed("1-x-0"), lambda e: [] if isinstance(e, AbortReturned) else [e])

    assert "after more than abort_s = 2 s" in found(unconfirmed("1-x-0", at=3.1, wires=(PING,)), "I16")
    assert "abort call 1 of request id 'a', made at 1 s, never returned" in found(never, "I16")


def test_an_abort_that_gives_up_early_is_found() -> None:
    assert "names 1-x-0 as unconfirmed, but has waited less than abort_s" in found(
        unconfirmed("1-x-0", at=1.5, wires=(msgspec.structs.replace(PING, at=1.5),)), "I16"
    )


def test_an_abort_that_says_the_untruth_about_a_lease_is_found() -> None:
    released = wire(2.0, "heard", "released")

    assert "does not name lease 1-x-0 of stage t, replica 0, generation 1, which had not ended" in found(
        unconfirmed(), "I16"
    )
    assert (
        "names lease 1-x-0 of stage t, replica 0, generation 1 as unconfirmed; it had ended: released at 2 s"
        in found(unconfirmed("1-x-0", wires=(released, PING)), "I16")
    )
    assert "names the lease 9-x-0, which is none of this id's" in found(unconfirmed("1-x-0", "9-x-0"), "I16")


def test_an_unconfirmed_stage_must_be_asked_for_a_sign_of_life() -> None:
    assert "nobody asked stage t, replica 0, generation 1 for a sign of life" in found(unconfirmed("1-x-0"), "I16")


def test_a_block_that_is_not_left_in_time_is_found() -> None:
    ended = Ended(at=1.0, request="a", how="break")

    assert found(told(*request(0.1), ended, Left(at=3.0, request="a")), "I16") == ""
    assert "its block, left at 1 s, was over at 3.5 s" in found(
        told(*request(0.1), ended, Left(at=3.5, request="a")), "I16"
    )
    assert "its block, left at 1 s, was never over" in found(told(*request(0.1), ended), "I16")
