"""A run as a picture: every lane is there, the violation is marked, the axis keeps order, the SVG is sound."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from omni_actors.testing import timeline
from omni_actors.testing._timeline_axis import Axis
from omni_actors.testing._timeline_lanes import MOST_REQUESTS, tell
from omni_actors.testing.invariants import Violation
from omni_actors.testing.sim._history import Crashed, Deadlocked, Got, History
from omni_actors.testing.sim._scenario import Abort, Call, Kill, Scenario, Shutdown, Stage, Stall, Submit
from omni_actors.testing.sim._simulate import simulate

THINKER = Stage(name="thinker", output="text", replicas=2, behaviour={"tokens": 10})
TALKER = Stage(name="talker", wire="omni", inputs=("thinker",), output="audio", behaviour={"chunks": 4})
SVG = "{http://www.w3.org/2000/svg}"

SPEECH = Scenario(
    stages=(THINKER, TALKER),
    ops=(Submit(at=0.1, request="anna"), Submit(at=0.1, request="bert"), Abort(at=0.15, id="bert")),
    buggify=False,
)
DEATHS = Scenario(
    stages=(THINKER, TALKER),
    ops=(
        Submit(at=0.1, request="anna"),
        Submit(at=0.1, request="bert"),
        Stall(at=0.13, stage="talker"),
        Call(at=0.2, stage="thinker"),
        Submit(at=0.1, request="carl", timeout_s=3.0),
        *(Kill(at=at, stage="thinker", replica=1) for at in (0.15, 0.9, 2.0, 4.5, 5.0)),
        Submit(at=60.0, request="late"),
        Shutdown(at=60.1, drain_s=1.0),
        Submit(at=60.1, request="too late"),
    ),
    buggify=False,
)
CROWD = Scenario(
    stages=(THINKER,), ops=tuple(Submit(at=0.1, request=f"r{n}") for n in range(MOST_REQUESTS + 6)), buggify=False
)
RUNS = {"speech": SPEECH, "deaths": DEATHS, "crowd": CROWD}


@pytest.fixture(scope="module", params=RUNS)
def history(request):
    return simulate(RUNS[request.param])


@pytest.fixture(scope="module")
def speech():
    return simulate(SPEECH)


@pytest.fixture(scope="module")
def deaths():
    return simulate(DEATHS)


def outputs_of(history, request):
    return [number for number, event in history.numbered(Got) if event.request == request]


def violation_of(history, request):
    first, *_, last = outputs_of(history, request)
    return Violation(invariant="I3", message=f"{request} <got> & got", events=(last, first), request=request)


def row_of(text, name):
    return next(line for line in text.splitlines() if line.startswith(f"{name} "))


# ---------------------------------------------------------------------- in characters


def test_every_request_and_every_replica_has_its_row(speech):
    text = timeline.text(speech)
    assert text.startswith("no violation\n")
    assert [name for name in ("calls", "anna", "bert", "thinker/0", "thinker/1", "talker/0") if row_of(text, name)]
    assert row_of(text, "anna").rstrip().endswith("finished")
    assert "■" in row_of(text, "bert")
    assert "abort bert" in row_of(text, "calls")
    assert "faults" not in text


def test_a_row_says_what_became_of_it(deaths):
    text = timeline.text(deaths, width=120)
    assert row_of(text, "carl").rstrip().endswith("timed out")
    assert row_of(text, "bert").rstrip().endswith("failed at thinker")
    assert "⊘" in row_of(text, "too late")
    assert row_of(text, "too late").rstrip().endswith("refused: ShuttingDown")
    assert "≈" in row_of(text, "talker/0")
    given_up = row_of(text, "thinker/1")
    assert given_up.count("†") == 4
    assert given_up.rstrip().endswith("down")
    assert "stall talker/0" in row_of(text, "faults")
    assert "(kill thinker/1: nobody)" in text


def test_the_legend_explains_the_signs_that_are_there_and_no_others(speech, deaths):
    assert "≈ stalled" in timeline.text(deaths)
    assert "time drawn short" in timeline.text(deaths)
    assert "stalled" not in timeline.text(speech)


@pytest.mark.parametrize("width", [20, 60, 79, 80, 133, 220])
def test_no_line_is_wider_than_it_may_be(history, width):
    text = timeline.text(history, violation_of(history, "anna") if outputs_of(history, "anna") else None, width=width)
    assert max(map(len, text.splitlines())) <= max(width, 60)


def test_colours_change_no_character(deaths):
    violation = violation_of(deaths, "anna")
    styled = timeline.styled(deaths, violation, width=100)
    assert styled.plain == timeline.text(deaths, violation, width=100)
    assert any("red" in str(span.style) for span in styled.spans)


def test_the_violation_s_events_are_marked_on_their_row_and_explained_in_order_of_time(speech):
    violation = violation_of(speech, "anna")
    text = timeline.text(speech, violation)
    assert text.startswith("I3: anna <got> & got\n")
    marked = row_of(text, "anna")
    assert marked.index("①") < marked.index("②")
    below = row_of(text, "violation")
    assert (below.index("①"), below.index("②")) == (marked.index("①"), marked.index("②"))
    first, last = sorted(violation.events)
    explained = [line for line in text.splitlines() if re.match(r"[①②] \d", line)]
    assert [line.split(" s: ")[0] for line in explained] == [
        f"{circle} {speech.events[number].at:.4f}".rstrip("0") for circle, number in (("①", first), ("②", last))
    ]
    assert "anna gets text of thinker" in explained[0]


def test_a_lease_that_shows_the_violation_is_never_the_one_left_out():
    history = simulate(CROWD)
    lanes = {lane.name: lane for lane in tell(history).lanes}
    wanted = lanes["thinker/0"].items[-1]
    text = timeline.text(history, Violation(invariant="I11", message="held twice", events=(wanted.marks[-1].number,)))
    assert "… and" in text
    assert re.search(rf"├{wanted.label}─+①", text)


def test_what_happened_to_a_lease_is_marked_on_the_lease(speech):
    lease = {lane.name: lane for lane in tell(speech).lanes}["talker/0"].items[0]
    violation = Violation(invariant="I9", message="too early", events=(lease.first,))
    lines = timeline.text(speech, violation).splitlines()
    bar = next(number for number, line in enumerate(lines) if line.startswith("talker/0 "))
    assert "①" not in lines[bar]
    assert "①anna─" in lines[bar + 1]


def test_too_many_requests_are_counted_and_the_one_concerned_is_shown():
    history = simulate(CROWD)
    last = f"r{MOST_REQUESTS + 5}"
    assert not any(line.startswith(f"{last} ") for line in timeline.text(history).splitlines())
    assert "not shown: 6 more requests" in timeline.text(history)
    assert row_of(timeline.text(history, violation_of(history, last)), last)


def test_what_nobody_should_see_is_on_the_runtime_s_row(speech):
    events = [*speech.events, Deadlocked(at=1e6, tasks="all"), Crashed(at=0.0, where="the run", error="boom")]
    row = row_of(timeline.text(History(speech.pipeline, speech.scenario, events[:-1])), "runtime")
    assert row.index("∞") > row.index("▒")
    assert row.rstrip().endswith("deadlocked")
    row = row_of(timeline.text(History(speech.pipeline, speech.scenario, events)), "runtime")
    assert row.rstrip().endswith("✗ deadlocked, crashed")


def test_an_empty_history_is_drawn_too():
    empty = History(SPEECH.pipeline())
    assert timeline.text(empty).startswith("no violation")
    assert ET.fromstring(timeline.svg(empty)).tag == f"{SVG}svg"


# ---------------------------------------------------------------------- the axis


def test_the_axis_keeps_the_order_of_events_and_of_times(history):
    story = tell(history)
    numbers = sorted({mark.number for mark in story.marks()})
    places = [story.axis.place(number) for number in numbers]
    assert places == sorted(places)
    assert places[0] >= 0
    assert places[-1] <= 1
    assert len(set(places)) == len(numbers)
    ticks = story.axis.ticks(0.08)
    assert [tick.at for tick in ticks] == sorted(tick.at for tick in ticks)
    assert all(right.place - left.place >= 0.08 for left, right in itertools.pairwise(ticks))


def test_a_minute_of_silence_does_not_squash_the_tenths_around_it():
    before = [(n, n / 100) for n in range(20)]
    after = [(20 + n, 60 + n / 100) for n in range(20)]
    axis = Axis(before + after)
    assert axis.place(19) > 0.3
    assert axis.place(20) < 0.7
    assert [round(cut.length, 2) for cut in axis.cuts] == [59.81]
    assert (axis.cuts[0].begin, axis.cuts[0].end) == (axis.place(19), axis.place(20))
    assert {"0.1", "60"} <= {tick.label for tick in axis.ticks(0.05)}


def test_equal_pauses_are_equally_wide():
    axis = Axis((n, n / 10) for n in range(5))
    assert [axis.place(n) for n in range(5)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert axis.cuts == ()


# ---------------------------------------------------------------------- SVG


def boxes(tree):
    """(element, left, top, right, bottom) of everything that has a place. A character is at most 6.75 wide."""
    for element in tree.iter():
        tag, has = element.tag.removeprefix(SVG), {k: float(v) for k, v in element.attrib.items() if is_number(v)}
        if tag == "rect" and "height" in has:
            x, y = has["x"], has["y"]
            yield element, x, y, x + has["width"], y + has["height"]
        elif tag == "line" and element.get("class") != "hatch":
            yield element, has["x1"], has["y1"], has["x2"], has["y2"]
        elif tag == "circle":
            r = has["r"]
            yield element, has["cx"] - r, has["cy"] - r, has["cx"] + r, has["cy"] + r
        elif tag == "text":
            width = 6.75 * len(element.text or "")
            left = has["x"] - (width / 2 if element.get("text-anchor") == "middle" else 0)
            yield element, left, has["y"] - 9, left + width, has["y"] + 3
        elif tag == "path":
            x, y = map(float, re.findall(r"[-\d.]+", element.get("transform")))
            yield element, x - 6, y - 6, x + 6, y + 6


def is_number(words):
    return re.fullmatch(r"-?\d+(\.\d+)?", words) is not None


def drawn(history, violation=None):
    return ET.fromstring(timeline.svg(history, violation))


def test_everything_drawn_is_inside_of_the_picture(history):
    request = next(history.of(Got)).request
    tree = drawn(history, violation_of(history, request))
    _, _, width, height = map(float, tree.get("viewBox").split())
    found = list(boxes(tree))
    assert len(found) > 50
    for element, left, top, right, bottom in found:
        assert 0 <= left <= right <= width, ET.tostring(element)
        assert 0 <= top <= bottom <= height, ET.tostring(element)


def test_lanes_lie_below_one_another_and_names_stand_in_them(history):
    tree = drawn(history)
    lanes = sorted((top, bottom) for element, _, top, _, bottom in boxes(tree) if "lane" in element.get("class", ""))
    assert len(lanes) == len(tell(history).lanes)
    assert all(above[1] <= below[0] for above, below in itertools.pairwise(lanes))
    names = [element.text for element in tree.iter(f"{SVG}text")]
    assert all(lane.name in names for lane in tell(history).lanes)


def test_no_two_leases_of_a_row_touch(history):
    tree = drawn(history)
    leases = sorted(
        (top, left, right)
        for element, left, top, right, _ in boxes(tree)
        if element.get("class") == "lease" and left > 120
    )
    same_row = [(a, b) for a, b in itertools.pairwise(leases) if a[0] == b[0]]
    assert all(a[2] <= b[1] for a, b in same_row)


def test_titles_say_exactly_when_and_what(deaths):
    titles = [title.text for title in drawn(deaths).iter(f"{SVG}title")]
    assert any(title.startswith("0.15 s: kill thinker/1#1") for title in titles)
    assert any("carl is timed out" in title for title in titles)
    assert any(re.match(r"lease anna \(.+\): 0\.1 s to ", title) for title in titles)


def test_the_violation_has_a_badge_a_ring_on_its_lane_and_words(speech):
    tree = drawn(speech, violation_of(speech, "anna"))
    of = {name: [e for e in tree.iter(f"{SVG}circle") if e.get("class") == name] for name in ("badge", "ring")}
    assert len(of["badge"]) == len(of["ring"]) == 2
    anna = next(e for e in tree.iter(f"{SVG}text") if e.text == "anna" and e.get("class") == "strong")
    assert all(abs(float(ring.get("cy")) - float(anna.get("y"))) < 11 for ring in of["ring"])
    words = [element.text for element in tree.iter(f"{SVG}text")]
    assert "I3: anna <got> & got" in words
    assert any(text.startswith("1: 0.1") for text in words)
    assert not drawn(speech).findall(f".//{SVG}circle")


def test_the_document_is_self_contained_and_names_no_illegal_character():
    nasty = "<b>&\x00\x1b\ud800]]>"
    run = simulate(Scenario(stages=(THINKER,), ops=(Submit(at=0.1, request=nasty),), buggify=False))
    svg = timeline.svg(run)
    tree = ET.fromstring(svg)
    assert "<script" not in svg
    assert "href" not in svg
    assert svg.count("http") == 1
    assert "prefers-color-scheme:dark" in svg
    assert "<b>&\ufffd\ufffd\ufffd]]>" in [element.text for element in tree.iter(f"{SVG}text")]
