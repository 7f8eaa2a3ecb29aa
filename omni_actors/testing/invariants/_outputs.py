"""Invariants I6 to I9: whose outputs a request gets, all of them and in order, and when its stages get their inputs.

A *lane* is one stage's one part and choice: one lease at an engine, one stream of outputs at the user. What was heard
on a lane's lease is the truth that the user's outputs are held against.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest
from omni_actors.runtime._open import _graph
from omni_actors.testing.sim._history import AbortCalled, Ended, Got, TerminalSeen, Wire
from omni_actors.testing.sim._scenario import Submit

from ._facts import Facts, in_words
from ._violation import Violation
from ._words import about, when

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from omni_actors.lifecycle import Edge, Graph, Plan
    from omni_actors.testing.sim._history import History

    from ._facts import Lease, Request

__all__ = ["i6", "i7", "i7_pair", "i8", "i9"]

Lane = tuple[str, int, int]
"""Stage, part, choice; of companions -1, -2 and so on."""
Data = tuple[int, ...]

_LANE = re.compile(r"(?P<stage>\d+)(?:-p(?P<part>\d+))?(?:-s(?P<index>\d+)|-c(?P<companion>\d+))?")
_TOKENS = ("fake-core", "vllm")
"""The engines whose terminals hold tokens, all that was made: tensors leave no trace in a terminal's fingerprint."""


def _lane(lease: Lease, request: Request) -> Lane:
    found = _LANE.fullmatch(lease.key.removeprefix(request.key + "-"))
    assert found is not None, lease.key
    index = int(found["index"] or 0) if found["companion"] is None else ~int(found["companion"])
    return lease.place[0], int(found["part"] or 0), index


def _plan(graph: Graph, request: Request) -> Plan | None:
    try:
        return graph.plan(request.modalities)
    except InvalidRequest:
        return None


def _heard(facts: Facts, lease: Lease, before: int | None = None) -> Data:
    """What the lease's engine said for it until it had finished or was over; what came later is late."""
    limits = [limit for limit in (lease.finished, lease.over, before) if limit is not None]
    until = min(limits, default=len(facts.history.events))
    return _joined(facts, (number for number in lease.outputs if number < until))


def _joined(facts: Facts, numbers: Iterable[int]) -> Data:
    joined: list[int] = []
    for number in numbers:
        event = facts.history.events[number]
        assert isinstance(event, Wire | Got)
        joined += event.data
    return tuple(joined)


def _got(facts: Facts, request: Request) -> dict[Lane, list[int]]:
    """The positions of what the user got, by lane."""
    found: dict[Lane, list[int]] = {}
    for number in request.got:
        event = _output(facts, number)
        found.setdefault((event.stage, event.part, event.index), []).append(number)
    return found


def _output(facts: Facts, number: int) -> Got:
    event = facts.event(number)
    assert isinstance(event, Got)
    return event


def _terminal(facts: Facts, request: Request) -> TerminalSeen | None:
    event = facts.event(request.terminals[0]) if request.terminals else None
    assert event is None or isinstance(event, TerminalSeen)
    return event


def _read_to_the_end(facts: Facts, request: Request) -> bool:
    """Whether it finished, and its reader has read all of it."""
    terminal = _terminal(facts, request)
    ended = facts.event(request.ended) if request.ended is not None else None
    return terminal is not None and terminal.kind == "finished" and isinstance(ended, Ended) and ended.how == "end"


def _named(lane: Lane) -> str:
    return f"stage {lane[0]}, part {lane[1]}, choice {lane[2]}"


def _difference(got: Data, heard: Data) -> str:
    """Where the first is no beginning of the second."""
    at = next((i for i, (one, other) in enumerate(zip(got, heard, strict=False)) if one != other), len(heard))
    return f"item {at} is {got[at : at + 4]}… where the engine said {heard[at : at + 4]}…"


# ---------------------------------------------------------------------- gapless, in order, complete


def i6(facts: Facts) -> Iterator[Violation]:
    """Outputs are a gapless prefix of what the engines said, in order; a finished request's are all of it. How far the
    work is never goes back, and is no result.
    """
    graph = _graph(facts.history.pipeline)
    for request in facts.requests.values():
        plan = _plan(graph, request)
        if request.accepted is None or plan is None:
            continue
        lanes = {_lane(lease, request): lease for lease in request.leases}
        heard = {lane: lease for lane, lease in lanes.items() if lane[2] >= 0}
        yield from _in_order(facts, request)
        yield from _advancing(facts, request, heard)
        yield from _prefixes(facts, request, plan, heard)
        yield from _results(facts, request, heard)
        yield from _pieces(facts, request, heard)


def _in_order(facts: Facts, request: Request) -> Iterator[Violation]:
    """Parts of one stage come one after the other."""
    latest: dict[str, int] = {}
    for number in request.got:
        event = _output(facts, number)
        if event.part < latest.get(event.stage, 0):
            text = f"it got part {event.part} of stage {event.stage} {when(facts, number)}, after part"
            yield about(request, "I6", f"{text} {latest[event.stage]}", number)
        latest[event.stage] = max(event.part, latest.get(event.stage, 0))


def _advancing(facts: Facts, request: Request, leases: Mapping[Lane, Lease]) -> Iterator[Violation]:
    """A lane's steps only grow, and its engine said each of them."""
    latest: dict[Lane, int] = {}
    for number in request.got:
        event = _output(facts, number)
        if event.step is None:
            continue
        lane, (done, total) = (event.stage, event.part, event.index), event.step
        said = [facts.event(n) for n in leases[lane].progress if n < number] if lane in leases else []
        if not any(isinstance(word, Wire) and word.data == event.step for word in said):
            text = f"{_named(lane)} was at step {done} of {total} {when(facts, number)}, which its engine had not said"
            yield about(request, "I6", text, number)
        if done < latest.get(lane, 0):
            text = f"{_named(lane)} went back to step {done} {when(facts, number)}, from step {latest[lane]}"
            yield about(request, "I6", text, number)
        latest[lane] = done


def _pieces(facts: Facts, request: Request, leases: Mapping[Lane, Lease]) -> Iterator[Violation]:
    """The terminal holds the tensors that were outputs, and no others: previews are none."""
    if (terminal := _terminal(facts, request)) is None:
        return
    end = request.terminals[0]
    for stage, part, index, held in terminal.pieces:
        lane = (stage, part, index)
        outputs = leases[lane].outputs if lane in leases else ()
        heard = sum(event.pieces for n in outputs if n < end and isinstance(event := facts.event(n), Wire))
        if held > heard:
            text = f"its terminal has {held} tensors of {_named(lane)}, whose engine had made {heard}"
            yield about(request, "I6", text, end)


def _prefixes(facts: Facts, request: Request, plan: Plan, leases: Mapping[Lane, Lease]) -> Iterator[Violation]:
    got = _got(facts, request)
    for lane, numbers in got.items():
        if lane[0] not in plan.finals:
            text = f"it got an output of stage {lane[0]} {when(facts, numbers[0])}, which it did not ask for"
            yield about(request, "I6", text, numbers[0])
            continue
        data = _joined(facts, numbers)
        said = _heard(facts, leases[lane], before=numbers[-1]) if lane in leases else ()
        if data != said[: len(data)]:
            text = f"the outputs of {_named(lane)} are not what its engine made: {_difference(data, said)}"
            yield about(request, "I6", text, *numbers)
    if not _read_to_the_end(facts, request) or _host_may_end(facts, request):
        return
    for lane, lease in leases.items():
        data, said = _joined(facts, got.get(lane, ())), _heard(facts, lease)
        if lane[0] in plan.finals and len(data) < len(said):
            text = f"it finished and was read to its end, but of {_named(lane)} only {len(data)} of {len(said)} items"
            yield about(request, "I6", f"{text} came", *request.terminals, *filter(None, [request.ended]))


def _results(facts: Facts, request: Request, leases: Mapping[Lane, Lease]) -> Iterator[Violation]:
    """The terminal holds a prefix as well: at least what was got, at most what was heard, and of a finish all."""
    if (terminal := _terminal(facts, request)) is None:
        return
    end, got = request.terminals[0], _got(facts, request)
    made = {(stage, part, index): data for stage, part, index, data in terminal.made}
    for lane in made.keys() | leases.keys():
        if facts.history.pipeline.stage(lane[0]).engine not in _TOKENS:
            continue
        data = made.get(lane, ())
        said = _heard(facts, leases[lane], before=end) if lane in leases else ()
        read = _joined(facts, got.get(lane, ()))
        if data != said[: len(data)]:
            text = f"its terminal's {_named(lane)} is not what the engine made: {_difference(data, said)}"
            yield about(request, "I6", text, end)
        elif read != data[: len(read)]:
            text = f"its terminal's {_named(lane)} lacks what was read: {_difference(read, data)}"
            yield about(request, "I6", text, end)
        elif terminal.kind == "finished" and len(data) < len(said) and not _host_may_end(facts, request):
            text = f"it finished with {len(data)} of the {len(said)} items of {_named(lane)} in its terminal"
            yield about(request, "I6", text, end)


def _host_may_end(facts: Facts, request: Request) -> bool:
    """Whether a stop string may end a lease before its engine does; what the engine says after it is for nobody."""
    history = facts.history
    params: list[Any] = [own for stage in history.pipeline.stages for own in (stage.params, stage.fixed_params)]
    ops = history.scenario.ops if history.scenario is not None else ()
    params += [op.params for op in ops if isinstance(op, Submit) and op.request == request.name]
    return any(_has_stop(each) for each in params)


def _has_stop(params: Any) -> bool:
    if not isinstance(params, Mapping):
        return False
    return bool(params.get("stop")) or any(_has_stop(inner) for inner in params.values())


# ---------------------------------------------------------------------- non-interference


def i7(facts: Facts) -> Iterator[Violation]:
    """No request gets what was made for another one. That outputs are the same without the others: ``i7_pair``."""
    own: dict[tuple[str, str], list[Data]] = {}
    for lease in facts.leases.values():
        if lease.request is not None:
            own.setdefault((lease.request.name, lease.place[0]), []).append(_joined(facts, lease.outputs))
    for request in facts.requests.values():
        for number in request.got:
            event = _output(facts, number)
            if not event.data or _said_in(own.get((request.name, event.stage), ()), event.data):
                continue
            for (other, stage), said in own.items():
                if other != request.name and stage == event.stage and _said_in(said, event.data):
                    text = f"what it got of stage {stage} {when(facts, number)} was made for request {other}"
                    yield about(request, "I7", text, number)


def _said_in(said: Iterable[Data], data: Data) -> bool:
    size = len(data)
    return any(
        data == whole[start : start + size]
        for whole in said
        for start in range(len(whole) - size + 1)
        if whole[start] == data[0]
    )


def i7_pair(whole: History, alone: History) -> Iterator[Violation]:
    """Outputs are the same without the others: ``alone`` is ``whole``'s scenario without some of its requests.

    Compared are the requests that finished in both. What was not read to the end in one of them is a prefix.
    """
    first, second = Facts(whole), Facts(alone)
    for name, request in first.requests.items():
        other = second.requests.get(name)
        if other is None or not (_finished(first, request) and _finished(second, other)):
            continue
        complete = _read_to_the_end(first, request) and _read_to_the_end(second, other)
        ones, others = _got(first, request), _got(second, other)
        for lane in dict.fromkeys((*ones, *others)):
            with_all, without = _joined(first, ones.get(lane, ())), _joined(second, others.get(lane, ()))
            size = max(len(with_all), len(without)) if complete else min(len(with_all), len(without))
            if with_all[:size] != without[:size]:
                text = f"{_named(lane)} made {with_all} beside the others, and {without} without them"
                yield about(request, "I7", text, *ones.get(lane, ()))


def _finished(facts: Facts, request: Request) -> bool:
    terminal = _terminal(facts, request)
    return terminal is not None and terminal.kind == "finished"


# ---------------------------------------------------------------------- identity


def i8(facts: Facts) -> Iterator[Violation]:
    """A lease is one piece of work of one request at one place, where its companions are too; an abort ends nobody of
    another id.
    """
    order = _graph(facts.history.pipeline).order
    keys: dict[str, Request] = {}
    for request in facts.requests.values():
        if request.key and (first := keys.setdefault(request.key, request)) is not request:
            yield about(request, "I8", f"it has the key {request.key} of request {first.name}", request.submitted)
        yield from _aborted_by_another(facts, request)
        yield from _apart(facts, request)
    for lease in facts.leases.values():
        owner = lease.request
        if owner is None:
            text = f"lease {lease.key}, sent to stage {lease.place[0]} {when(facts, lease.added)}"
            yield Violation(invariant="I8", message=f"{text}, belongs to no accepted request", events=(lease.added,))
            continue
        if lease.adds > 1:
            text = f"lease {lease.key} was sent {lease.adds} times; first {when(facts, lease.added)}"
            yield about(owner, "I8", text, lease.added)
        found = _LANE.fullmatch(lease.key.removeprefix(owner.key + "-"))
        number = int(found["stage"]) if found is not None else len(order)
        if number >= len(order) or order[number].name != lease.place[0]:
            text = f"lease {lease.key} was sent to stage {lease.place[0]} {when(facts, lease.added)}: not its key's"
            yield about(owner, "I8", text, lease.added)


def _apart(facts: Facts, request: Request) -> Iterator[Violation]:
    """Companions are sent after their main work, to the same generation."""
    for lease in request.leases:
        if _lane(lease, request)[2] >= 0:
            continue
        main = facts.main_of(lease)
        if main is None or main.place != lease.place or main.added > lease.added:
            where = "was not sent before" if main is None else f"went to {in_words(main.place)}"
            text = f"companion {lease.key} went to {in_words(lease.place)} {when(facts, lease.added)}; its main work"
            yield about(request, "I8", f"{text} {where}", lease.added)


def _aborted_by_another(facts: Facts, request: Request) -> Iterator[Violation]:
    terminal = _terminal(facts, request)
    if terminal is None or terminal.reason != "aborted":
        return
    end = request.terminals[0]
    calls = (number for number, call in facts.history.numbered(AbortCalled) if call.id == request.id)
    if not any(request.submitted < number < end for number in calls):
        text = f"it was aborted {when(facts, end)}, though nobody had asked for its id {request.id}"
        yield about(request, "I8", text, end)


# ---------------------------------------------------------------------- graph order


def i9(facts: Facts) -> Iterator[Violation]:
    """A stage gets its input after its producers, companions too, made it and before the request's end; no other stage
    ever sees it.
    """
    graph = _graph(facts.history.pipeline)
    for request in facts.requests.values():
        plan = _plan(graph, request)
        for lease in request.leases if plan is not None else ():
            stage, end = lease.place[0], request.terminals[0] if request.terminals else None
            node = next((node for node in plan.order if node.name == stage), None) if plan is not None else None
            if node is None or plan is None:
                text = f"stage {stage} got work of it {when(facts, lease.added)}: nothing that was asked for needs it"
                yield about(request, "I9", text, lease.added)
                continue
            if end is not None and lease.added > end:
                text = f"stage {stage} got work of it {when(facts, lease.added)}, after its end ({when(facts, end)})"
                yield about(request, "I9", text, end, lease.added)
            for edge in node.edges:
                yield from _fed(facts, request, lease, edge, plan)


def _fed(facts: Facts, request: Request, lease: Lease, edge: Edge, plan: Plan) -> Iterator[Violation]:
    """Whether an edge's producer had done its share when the lease was sent."""
    inherited = lease.place[0] in plan.partitioned
    producers = [other for other in request.leases if other.place[0] == edge.source]
    mains = [other for other in producers if _lane(other, request)[2] >= 0]
    said = any(number < lease.added for other in mains for number in other.outputs)
    if edge.mode == "segments":
        problem = None if said else f"before its producer {edge.source} had said anything"
    elif edge.mode == "chunks":
        problem = _unbegun(request, lease, edge.source, plan)
    else:
        part = _lane(lease, request)[1]
        concerned = [other for other in producers if not inherited or _lane(other, request)[1] == part]
        # Behind a splitter that cut nothing off, a stage has nothing to do.
        idle = not concerned and edge.source in plan.partitioned
        problem = None if idle else _unmade(facts, request, lease, edge.source, concerned)
    if problem is not None:
        text = f"stage {lease.place[0]} got its input (lease {lease.key}) {when(facts, lease.added)}, {problem}"
        yield about(request, "I9", text, lease.added)


def _unbegun(request: Request, lease: Lease, source: str, plan: Plan) -> str | None:
    """A chain begins when its head has said something."""
    nodes = {node.name: node for node in plan.order}
    while nodes[source].chained:
        source = nodes[source].edges[0].source
    head = [other for other in request.leases if other.place[0] == source]
    if any(number < lease.added for other in head for number in other.outputs):
        return None
    return f"before {source}, the head of its chain, had said anything"


def _unmade(facts: Facts, request: Request, lease: Lease, source: str, producers: list[Lease]) -> str | None:
    if not producers:
        return f"without its producer {source} ever having worked"
    late = [other for other in producers if not _done(facts, request, other, lease.added)]
    return f"before its producer {source} had finished lease {late[0].key}" if late else None


def _done(facts: Facts, request: Request, producer: Lease, by: int) -> bool:
    if producer.finished is not None:
        return producer.finished < by or _host_may_end(facts, request)
    return _host_may_end(facts, request) and any(number < by for number in producer.outputs)
