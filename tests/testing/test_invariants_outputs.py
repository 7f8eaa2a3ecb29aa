"""I6 to I9 on histories written by hand: each checker speaks exactly about what it should."""

from __future__ import annotations

from msgspec.structs import replace as change

from omni_actors.testing.invariants import interferes
from omni_actors.testing.invariants._by_hand import (
    CHAIN,
    CUT,
    aborted,
    after,
    before,
    begun,
    changed,
    ended,
    finished,
    got,
    index,
    names_a,
    seen,
    terminal,
    token,
    told,
    wire,
    without,
)
from omni_actors.testing.sim._history import (
    AbortCalled,
    AbortReturned,
    Accepted,
    Ended,
    Got,
    Left,
    Submitting,
    TerminalSeen,
    Wire,
)

# ---------------------------------------------------------------------- I6


def test_i6_a_gap():
    events = [*begun(), *token(1), wire("heard", "output", "1-sim-0", 2), *token(3), *ended("1-sim-0")]
    gone = [Ended(at=0, request="a", how="break"), terminal("aborted", 1, 2, 3, reason="the client left")]
    assert names_a(violation := seen([*events, *gone, Left(at=0, request="a")], "I6"))
    assert "item 1" in violation.message


def test_i6_more_than_was_made():
    assert names_a(seen(after(finished(), TerminalSeen, got("a", 9)), "I6"))


def test_i6_what_comes_after_the_finish_is_for_nobody():
    late = wire("heard", "output", "1-sim-0", 9)
    seen(before(finished(), TerminalSeen, late))
    assert names_a(seen(before(finished(), TerminalSeen, late, got("a", 9)), "I6"))


def test_i6_a_finish_that_is_not_all_of_it():
    events = finished()
    del events[index(events, Got) + 2]
    assert names_a(violation := seen(events, "I6"))
    assert "1 of 2" in violation.message


def test_i6_a_terminal_that_lacks_something():
    assert names_a(seen(changed(finished(), TerminalSeen, made=(("t", 0, 0, (1,)),)), "I6"))
    assert names_a(seen(changed(finished(), TerminalSeen, made=(("t", 0, 0, (1, 3)),)), "I6"))


def test_i6_parts_out_of_order():
    events = voiced(parts=2)
    parts = [number for number, event in enumerate(events) if isinstance(event, Got) and event.stage == "v"]
    seen(events, stages=CUT)
    events[parts[0]], events[parts[1]] = events[parts[1]], events[parts[0]]
    assert names_a(violation := seen(events, "I6", stages=CUT))
    assert "after part" in violation.message


def test_i6_a_stage_that_was_not_asked_for():
    events = voiced(parts=1)
    assert names_a(seen(changed(events, Submitting, modalities=("audio",)), "I6", stages=CUT))


# ---------------------------------------------------------------------- I7


def test_i7_i6_what_was_made_for_another():
    events = [*begun("a"), *begun("b", "2-sim"), *token(5, "b", "2-sim"), got("a", 5)]
    ends = [terminal("aborted", name="a"), terminal("aborted", 5, name="b")]
    freed = [wire("heard", "released", f"{key}-0") for key in ("1-sim", "2-sim")]
    assert names_a(violation := seen([*events, *ends, *freed], "I7", "I6"))
    assert "request b" in violation.message


def test_i7_another_output_alone_is_seen():
    one = told(*finished())
    other = told(*changed(finished(), Got, data=(7,)))
    (violation,) = interferes(one, other)
    assert names_a(violation)
    shorter = told(*changed(without(finished(), Got), Ended, how="break"))
    assert list(interferes(one, shorter)) == [], "what was not read to the end is a prefix"
    assert list(interferes(one, told(*without(finished(), Got)))), "what was read to the end is all"
    assert list(interferes(one, told(*aborted()))) == [], "only what finished in both is compared"


# ---------------------------------------------------------------------- I8


def test_i8_work_of_nobody_that_ended():
    assert "9-sim-0" in str(seen([*finished(), wire("sent", "add", "9-sim-0"), *ended("9-sim-0")], "I8"))


def test_i8_a_lease_is_sent_once():
    events = after(finished(), Accepted, wire("sent", "add", "1-sim-0"))
    assert names_a(seen(events, "I8"))


def test_i8_a_lease_goes_to_its_own_stage():
    stray = [wire("sent", "add", "1-sim-2-p3"), *ended("1-sim-2-p3")]
    assert "not its key's" in str(seen(before(finished(), TerminalSeen, *stray), "I8"))


def test_i8_a_key_is_one_request():
    other = [Submitting(at=0, request="b", id="b"), Accepted(at=0, request="b", key="1-sim"), terminal(name="b")]
    violation = seen([*finished(), *changed(other, TerminalSeen, made=(), kind="aborted")], "I8")
    assert violation.request == "b"
    assert "of request a" in violation.message


def test_i8_an_abort_ends_nobody_else():
    events = changed(aborted(returned=False), AbortCalled, id="b", live=())
    report = AbortReturned(at=0, call=1, id="b")
    assert names_a(seen(before(events, Ended, report), "I8"))


# ---------------------------------------------------------------------- I9


def voiced(parts=1):
    """A request through CUT: tokens of t, cut in parts for k, each of them spoken by v."""
    keys = ["", *(f"-p{part}" for part in range(1, parts))]
    events = [*begun()]
    for number, key in enumerate(keys):
        events += [*token(number + 1), wire("sent", "add", f"1-sim-1{key}", stage="k")]
    events += ended("1-sim-0")
    for number, key in enumerate(keys):
        events += [wire("heard", "output", f"1-sim-1{key}", 7, stage="k"), *ended(f"1-sim-1{key}", "k")]
        events += [wire("sent", "add", f"1-sim-2{key}", stage="v")]
        events += [wire("heard", "output", f"1-sim-2{key}", 50, stage="v"), got("a", 50, stage="v", part=number)]
        events += ended(f"1-sim-2{key}", "v")
    made = [("t", 0, 0, tuple(range(1, parts + 1))), *(("k", part, 0, (7,)) for part in range(parts))]
    end = TerminalSeen(at=0, request="a", kind="finished", made=tuple(made))
    return [*events, end, Ended(at=0, request="a", how="end"), Left(at=0, request="a")]


def moved(events, what, key, to):
    """The message about this lease happens before another one."""
    number = next(n for n, e in enumerate(events) if isinstance(e, Wire) and (e.what, e.key) == (what, key))
    event = events[number]
    rest = [*events[:number], *events[number + 1 :]]
    place = next(n for n, e in enumerate(rest) if isinstance(e, Wire) and (e.what, e.key) == to)
    return [*rest[:place], event, *rest[place:]]


def test_i9_segments_come_after_the_first_output():
    events = moved(voiced(), "add", "1-sim-1", ("output", "1-sim-0"))
    assert names_a(violation := seen(events, "I9", stages=CUT))
    assert "t had said anything" in violation.message


def test_i9_an_inherited_part_waits_for_its_own_producer():
    events = voiced(parts=2)
    seen(events, stages=CUT)
    early = moved(events, "add", "1-sim-2-p1", ("output", "1-sim-1-p1"))
    assert names_a(violation := seen(early, "I9", stages=CUT))
    assert "1-sim-1-p1" in violation.message


def test_i9_a_whole_input_waits_for_all_of_it():
    events = [*begun(), *token(1), wire("sent", "add", "1-sim-1", stage="v"), *ended("1-sim-0")]
    rest = [
        wire("heard", "output", "1-sim-1", 50, stage="v"),
        got("a", 50, stage="v"),
        *ended("1-sim-1", "v"),
        terminal("finished", 1),
        Ended(at=0, request="a", how="end"),
        Left(at=0, request="a"),
    ]
    assert names_a(seen([*events, *rest], "I9", stages=CHAIN))
    seen(moved([*events, *rest], "finished", "1-sim-0", ("add", "1-sim-1")), stages=CHAIN)


def fed(companion="1-sim-0-c0"):
    """A request whose thinker has a companion, with the voice behind it."""
    return [
        *begun(),
        wire("sent", "add", companion),
        *token(1),
        *ended("1-sim-0"),
        wire("heard", "output", companion, 7),
        *ended(companion),
        wire("sent", "add", "1-sim-1", stage="v"),
        wire("heard", "output", "1-sim-1", 50, stage="v"),
        got("a", 50, stage="v"),
        *ended("1-sim-1", "v"),
        terminal("finished", 1),
        Ended(at=0, request="a", how="end"),
        Left(at=0, request="a"),
    ]


def test_i9_a_whole_input_waits_for_the_companions_too():
    seen(fed(), stages=CHAIN)
    early = moved(fed(), "add", "1-sim-1", ("finished", "1-sim-0-c0"))
    assert names_a(violation := seen(early, "I9", stages=CHAIN))
    assert "1-sim-0-c0" in violation.message


def test_i9_what_a_companion_says_is_no_segment():
    events = voiced()
    companion = [wire("sent", "add", "1-sim-0-c0"), wire("heard", "output", "1-sim-0-c0", 7), *ended("1-sim-0-c0")]
    early = moved(after(events, Accepted, *companion), "add", "1-sim-1", ("output", "1-sim-0"))
    assert names_a(seen(early, "I9", stages=CUT))


def test_i6_a_companion_s_output_is_for_nobody():
    assert names_a(violation := seen(changed(fed(), Got, index=-1), "I6", stages=CHAIN))
    assert "choice -1" in violation.message
    assert names_a(seen(changed(fed(), TerminalSeen, made=(("t", 0, 0, (1,)), ("t", 0, -1, (7,)))), "I6", stages=CHAIN))


def test_i8_a_companion_is_where_its_main_work_is():
    apart = [change(event, replica=1) if getattr(event, "key", "") == "1-sim-0-c0" else event for event in fed()]
    assert names_a(violation := seen(apart, "I8", stages=CHAIN))
    assert "its main work went to stage t, replica 0" in violation.message
    assert "was not sent before" in str(seen(fed("1-sim-0-p1-c0"), "I8", stages=CHAIN))
    first = moved(fed(), "add", "1-sim-0-c0", ("add", "1-sim-0"))
    assert names_a(seen(first, "I8", stages=CHAIN))


def test_i9_a_producer_that_never_worked():
    events = [begun()[0], wire("sent", "add", "1-sim-1", stage="v"), begun()[2], *ended("1-sim-1", "v")]
    end = [terminal("aborted"), Ended(at=0, request="a", how="end"), Left(at=0, request="a")]
    assert "ever having worked" in str(seen([*events, *end], "I9", stages=CHAIN))


def test_i9_a_stage_that_nobody_needs():
    events = changed(finished(), Submitting, modalities=("text",))
    work = [wire("sent", "add", "1-sim-1", stage="v"), *ended("1-sim-1", "v")]
    seen(events, stages=CHAIN)
    assert "stage v" in str(seen(before(events, TerminalSeen, *work), "I9", stages=CHAIN))


def test_i9_no_work_after_the_end():
    work = [wire("sent", "add", "1-sim-1", stage="v"), *ended("1-sim-1", "v")]
    events = changed(aborted(), TerminalSeen, kind="failed", reason=None)
    events = changed(before(events, TerminalSeen, *ended("1-sim-0")), AbortReturned, kinds=("failed",))
    assert "after its end" in str(seen(before(events, Ended, *work), "I9", stages=CHAIN))
