"""What the checkers say of steps: runs of a diffusion stage in which afterwards something is changed."""

from __future__ import annotations

import attrs
from msgspec.structs import replace

from omni_actors.testing.invariants import INVARIANTS, Facts
from omni_actors.testing.sim._history import Got, History, Noted, StageSaid, TerminalSeen, Wire
from omni_actors.testing.sim._scenario import Abort, Scenario, Stage, Submit
from omni_actors.testing.sim._simulate import simulate

SHOWN = {"painter": {"progress": True}}


def ran(*ops, **behaviour) -> History:
    told = {"steps": 6, "chunks": 1, "chunk_s": 0.05, **behaviour}
    stages = (Stage(name="painter", wire="omni", output="image", behaviour=told),)
    return simulate(Scenario(stages=stages, ops=ops, buggify=False))


def shown() -> History:
    return ran(Submit(at=0.1, request="r", params=SHOWN))


def found(history, name, events=None) -> str:
    changed = history if events is None else attrs.evolve(history, events=events)
    return "\n".join(str(violation) for violation in INVARIANTS[name](Facts(changed)))


def at(history, kind, **how) -> int:
    """Where the last such event is."""
    return max(n for n, e in history.numbered(kind) if all(getattr(e, k) == v for k, v in how.items()))


def with_event(history, number, **fields):
    events = list(history.events)
    events[number] = replace(events[number], **fields)
    return events


def test_a_step_back():
    history = shown()
    assert found(history, "I6") == ""
    back = with_event(history, at(history, Got, step=(5, 6)), step=(3, 6))
    assert "went back to step 3" in found(history, "I6", back)


def test_a_step_that_nobody_has_taken():
    history = shown()
    ahead = with_event(history, at(history, Got, step=(5, 6)), step=(6, 6))
    assert "at step 6 of 6" in found(history, "I6", ahead)


def test_a_preview_among_the_results():
    history = shown()
    kept = with_event(history, at(history, TerminalSeen), pieces=(("painter", 0, 0, 2),))
    assert "has 2 tensors of stage painter, part 0, choice 0, whose engine had made 1" in found(history, "I6", kept)


def test_a_step_for_who_has_gone():
    history = ran(Submit(at=0.1, request="r"), Abort(at=0.21, id="r"))
    assert found(history, "I16") == ""
    told = at(history, Noted, what="abort")
    step = replace(history.events[told], what="step")
    late = [*history.events[: told + 1], step, *history.events[told + 1 :]]
    assert "began a step for lease 1-sim-0" in found(history, "I16", late)


def test_a_stuck_step_that_nobody_found_and_one_that_was_none():
    history = ran(Submit(at=0.1, request="r"), stuck_at_chunk=2)
    assert found(history, "I17") == ""
    events = [replace(e, at=e.at + 5) if isinstance(e, StageSaid) and e.verdict else e for e in history.events]
    unsaid = [e for e in events if not (type(e).__name__ == "Process" and e.what == "exited")]
    assert "said at" in (words := found(history, "I17", unsaid))
    assert "that its step does not end" in words
    healthy = [replace(e, data=()) if isinstance(e, Wire) and e.what == "heartbeat" else e for e in history.events]
    assert "was killed as hung" in found(history, "I17", healthy)


def test_a_fault_that_is_told_as_another_s():
    history = ran(Submit(at=0.1, request="r", params={"painter": {"num_inference_steps": 0}}))
    assert found(history, "I1") == ""
    blamed = with_event(history, at(history, TerminalSeen), error="EngineRejected")
    assert "stage painter had said that its caller was to blame" in found(history, "I1", blamed)
