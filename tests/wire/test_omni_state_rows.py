"""The tables of the omni stage wire, row by row: what may be said does what it should, everything else is refused."""

from __future__ import annotations

import itertools

import pytest

from omni_actors._errors import IllegalTransition, ProtocolError
from omni_actors.wire import omni as wire
from omni_actors.wire.omni import LeaseState, State

WORK, ANSWERS = "Submit Abort Call Ping", "Output Progress Released Failed CallResult Heartbeat"

HOST = f"""
    hello    receives Hello            ready
    ready    sends    Hello            ready
    ready    receives Ready            serving
    serving  sends    {WORK}           serving
    serving  sends    Stop             stopping
    serving  receives {ANSWERS}        serving
    stopping receives {ANSWERS}        stopping
"""
ENGINE = f"""
    hello    sends    Hello            hello
    hello    receives Hello            ready
    ready    sends    Ready            serving
    serving  receives {WORK}           serving
    serving  receives Stop             stopping
    serving  sends    {ANSWERS}        serving
    stopping receives {WORK} Stop      stopping
    stopping sends    {ANSWERS}        stopping
"""
SAYS = {
    "Hello": wire.Hello(), "Ready": wire.Ready(), "Submit": wire.Submit("new", None), "Abort": wire.Abort(["live"]),
    "Call": wire.Call(2, "m"), "Ping": wire.Ping(7), "Stop": wire.Stop(), "Output": wire.Output("live", 0),
    "Progress": wire.Progress("live", 1), "Released": wire.Released("aborted"), "Failed": wire.Failed("live", "so"),
    "CallResult": wire.CallResult(1), "Heartbeat": wire.Heartbeat(),
}  # fmt: skip
REFUSAL = {"sends": IllegalTransition, "receives": ProtocolError}


def connection(rows):
    found = {}
    for line in rows.strip().splitlines():
        state, direction, *kinds, after = line.split()
        found |= {(state, direction, kind): after for kind in kinds}
    return found


def tell(side, direction, message):
    (side.send if direction == "sends" else side.receive)(message)


def held(side):
    return side.state, side.calls, [(key, side.lease(key)) for key in tuple(side.keys())]


def in_state(kind, state):
    """A side in this state of its connection; where there is work, with a lease, an aborted lease and an open call."""
    host = kind is wire.HostSide
    side, asks, hears = kind(), "sends" if host else "receives", "receives" if host else "sends"
    opening = [(hears, wire.Hello()), (asks, wire.Hello()), (hears, wire.Ready())]
    work = [wire.Submit("live", None), wire.Submit("aborted", None), wire.Abort(["aborted"]), wire.Call(1, "m")]
    steps = [*opening, *((asks, message) for message in work), (asks, wire.Stop())]
    count = {"hello": 0, "ready": 2, "serving": 7, "stopping": 8, "dead": 7}[state]
    for direction, message in steps[:count]:
        tell(side, direction, message)
    if state == "dead":
        side.die()
    return side


CASES = [
    (kind, state, direction, said, connection(rows).get((state, direction, said)))
    for kind, rows in ((wire.HostSide, HOST), (wire.EngineSide, ENGINE))
    for state, direction, said in itertools.product(
        ("hello", "ready", "serving", "stopping", "dead"), ("sends", "receives"), SAYS
    )
]


@pytest.mark.parametrize(("kind", "state", "direction", "said", "after"), [case for case in CASES if case[4]])
def test_a_connection_moves_by_its_table(kind, state, direction, said, after):
    side = in_state(kind, state)
    tell(side, direction, SAYS[said])
    assert side.state is State(after)


@pytest.mark.parametrize(("kind", "state", "direction", "said"), [case[:4] for case in CASES if not case[4]])
def test_nothing_else_is_said(kind, state, direction, said):
    side = in_state(kind, state)
    before = held(side)
    if (direction, said) == ("receives", "Released") and state in ("hello", "ready"):
        tell(side, direction, SAYS[said])  # a late release is forgiven wherever the connection is
        assert side.late_releases == 1
    else:
        who = "the peer said" if direction == "receives" else f"{kind.__name__} may not say"
        with pytest.raises(REFUSAL[direction], match=f"^{who} .* in state {state}"):
            tell(side, direction, SAYS[said])
        assert side.late_releases == 0
    assert held(side) == before


# ---------------------------------------------------------------------- one lease

HOST_LEASE = """
    submitted output    producing
    submitted last      finished
    submitted progress  submitted
    submitted failed    gone
    submitted abort     aborting
    submitted unsend    gone
    producing output    producing
    producing last      finished
    producing progress  producing
    producing failed    gone
    producing abort     aborting
    finished  released  gone
    aborting  output    aborting
    aborting  last      aborting
    aborting  progress  aborting
    aborting  failed    gone
    aborting  released  gone
    gone      released  gone
"""
ENGINE_LEASE = """
    submitted output    producing
    submitted last      finished
    submitted progress  submitted
    submitted failed    gone
    submitted abort     aborting
    producing output    producing
    producing last      finished
    producing progress  producing
    producing failed    gone
    producing abort     aborting
    finished  released  gone
    finished  abort     finished
    aborting  released  gone
    aborting  failed    gone
    aborting  abort     aborting
    gone      abort     gone
"""
NEXT_SEQ = {"submitted": 0, "producing": 1, "finished": 2, "aborting": 1, "gone": 0}


def lease_in(kind, state):
    side = in_state(kind, "serving")
    asks, hears = ("sends", "receives") if kind is wire.HostSide else ("receives", "sends")
    tell(side, asks, wire.Submit("k", None))
    if state in ("producing", "finished", "aborting"):
        tell(side, hears, wire.Output("k", 0))
    if state == "finished":
        tell(side, hears, wire.Output("k", 1, finished=True))
    if state == "aborting":
        tell(side, asks, wire.Abort(["k"]))
    if state == "gone":
        tell(side, hears, wire.Failed("k", "so"))
    assert side.lease("k") is LeaseState(state)
    return side


def apply(side, event, seq):
    asks, hears = ("sends", "receives") if isinstance(side, wire.HostSide) else ("receives", "sends")
    if event == "unsend":
        side.unsend("k")
        return
    message = {
        "output": wire.Output("k", seq), "last": wire.Output("k", seq, finished=True), "abort": wire.Abort(["k"]),
        "progress": wire.Progress("k", 1), "released": wire.Released("k"), "failed": wire.Failed("k", "so"),
    }[event]  # fmt: skip
    tell(side, asks if event == "abort" else hears, message)


def lease_rows(rows):
    return {(state, event): after for state, event, after in (line.split() for line in rows.strip().splitlines())}


LEASE_CASES = [
    (kind, state, event, lease_rows(rows).get((state, event)))
    for kind, rows in ((wire.HostSide, HOST_LEASE), (wire.EngineSide, ENGINE_LEASE))
    for state, event in itertools.product(
        NEXT_SEQ, ("output", "last", "progress", "released", "failed", "abort", "unsend")
    )
    if event != "unsend" or kind is wire.HostSide
]


@pytest.mark.parametrize(("kind", "state", "event", "after"), [case for case in LEASE_CASES if case[3]])
def test_a_lease_moves_by_its_table(kind, state, event, after):
    side = lease_in(kind, state)
    apply(side, event, NEXT_SEQ[state])
    assert side.lease("k") is LeaseState(after)
    assert ("k" in tuple(side.keys())) == (after != "gone")


@pytest.mark.parametrize(("kind", "state", "event"), [case[:3] for case in LEASE_CASES if not case[3]])
def test_nothing_else_happens_to_a_lease(kind, state, event):
    side = lease_in(kind, state)
    ours = (event in ("abort", "unsend")) == (kind is wire.HostSide)
    with pytest.raises(IllegalTransition if ours else ProtocolError, match=f"in state {state}, key 'k'$"):
        apply(side, event, NEXT_SEQ[state])
    assert side.lease("k") is LeaseState(state)


# ---------------------------------------------------------------------- around the tables


def test_what_is_owed_is_leases_and_answers_and_death_owes_nothing():
    engine = in_state(wire.EngineSide, "serving")
    assert (engine.live, engine.calls, list(engine.keys())) == (2, {1}, ["live", "aborted"])
    engine.send(wire.Released("aborted"))
    engine.send(wire.Failed("live", "so"))
    assert (engine.live, engine.owed) == (0, True)
    engine.send(wire.CallResult(1))
    assert (engine.calls, engine.owed) == (frozenset(), False)

    host = in_state(wire.HostSide, "serving")
    host.die()
    host.die()
    assert (host.state, host.live, host.calls, host.owed) == (State.DEAD, 0, frozenset(), False)


def test_the_same_call_is_not_asked_twice():
    host = in_state(wire.HostSide, "serving")
    with pytest.raises(IllegalTransition, match="Call 1 in state 1 calls unanswered"):
        host.send(wire.Call(1, "m"))
    host.receive(wire.CallResult(1))
    host.send(wire.Call(1, "m"))


def test_the_bound_of_the_calls_is_the_last_one_that_is_taken():
    engine = in_state(wire.EngineSide, "serving")
    for number in range(2, wire.MAX_PENDING_CALLS + 1):
        engine.receive(wire.Call(number, "m"))
    assert len(engine.calls) == wire.MAX_PENDING_CALLS == 1024
    with pytest.raises(ProtocolError, match="1024 calls unanswered"):
        engine.receive(wire.Call(0, "m"))


def test_an_engine_stopped_by_a_signal_ends_what_is_left_and_a_dead_one_stays_dead():
    engine = in_state(wire.EngineSide, "serving")
    engine.receive(wire.Submit("done", None))
    engine.send(wire.Output("done", 0, finished=True))
    engine.stop()
    assert engine.state is State.STOPPING
    assert engine.ends() == [
        wire.Failed("live", "the engine was stopped before this was finished"),
        wire.Released("aborted"),
        wire.Released("done"),
    ]
    assert engine.live == 3, "ends() only says what to send"
    engine.die()
    engine.stop()
    assert engine.state is State.DEAD


def test_an_abort_of_several_names_the_one_that_is_wrong_and_takes_none():
    engine = in_state(wire.EngineSide, "serving")
    engine.receive(wire.Abort(["live", "never", "aborted"]))
    assert (engine.lease("live"), engine.lease("never")) == (LeaseState.ABORTING, LeaseState.GONE)

    host = in_state(wire.HostSide, "serving")
    with pytest.raises(IllegalTransition, match="HostSide may not say abort in state aborting, key 'aborted'"):
        host.send(wire.Abort(["live", "aborted"]))
    assert host.lease("live") is LeaseState.SUBMITTED


def test_work_given_twice_is_the_fault_of_the_one_who_gave_it():
    host, engine = in_state(wire.HostSide, "serving"), in_state(wire.EngineSide, "serving")
    with pytest.raises(IllegalTransition, match=r"^HostSide may not say Submit in state submitted, key 'live'$"):
        host.send(wire.Submit("live", None))
    with pytest.raises(ProtocolError, match=r"^the peer said Submit in state aborting, key 'aborted'$"):
        engine.receive(wire.Submit("aborted", None))


def test_outputs_are_counted_on_and_on():
    host = in_state(wire.HostSide, "serving")
    for seq in range(4):
        host.receive(wire.Output("live", seq))
        with pytest.raises(
            ProtocolError, match=rf"^the peer said Output 0 instead of {seq + 1} in state producing, key 'live'$"
        ):
            host.receive(wire.Output("live", 0))


def test_every_late_release_is_counted():
    host = in_state(wire.HostSide, "serving")
    for count in (1, 2, 3):
        host.receive(wire.Released("long gone"))
        assert host.late_releases == count


def test_what_is_about_no_key_names_none():
    with pytest.raises(ProtocolError, match=r"^the peer said Ready in state hello$"):
        wire.HostSide().receive(wire.Ready())
    with pytest.raises(IllegalTransition, match=r"^EngineSide may not say Ready in state hello$"):
        wire.EngineSide().send(wire.Ready())
