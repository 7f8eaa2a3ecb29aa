"""Routing: what follows from one event of one lease. Decides and updates the record in one synchronous step.

The order of things in a request is never programmed: after each change ``advance`` looks at the whole plan and opens
whatever can be opened now. That is what makes fan-out, fan-in, segments and their mixtures one piece of code (I9).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs
import msgspec

from omni_actors._errors import EngineRejected, OmniError, TransformFailed

from ._record import Companion, Made, Part, Record, StageProgress, StageResult
from .events import Output, Payload, StepChunk, TextChunk

if TYPE_CHECKING:
    from ._graph import Edge

__all__ = [
    "Decision", "Deliver", "Fail", "Finish", "Forward", "advance", "blamed", "opened", "produced", "rejected",
    "streamed",
]  # fmt: skip

_Error = TypeVar("_Error", bound=OmniError)


class Deliver(msgspec.Struct, frozen=True):
    """Give this to the user."""

    output: Output


class Forward(msgspec.Struct, frozen=True):
    """Give this stage its input: ``upstream`` holds the results of its producers (of one part, or whole)."""

    stage: str
    part: int
    upstream: Mapping[str, StageResult]


class Finish(msgspec.Struct, frozen=True):
    """Everything the user asked for is there, and nobody works on it any more."""


class Fail(msgspec.Struct, frozen=True):
    """The request cannot go on."""

    stage: str
    error: OmniError


Decision = Deliver | Forward | Finish | Fail


def opened(record: Record, stage: str, part: int, samples: int, companions: Sequence[str] = ()) -> None:
    """A forward has become ``samples`` leases, and one for each companion: the first has index -1, the next -2."""
    assert samples > 0, "a part that nobody works on would never finish"
    mine = record.stages[stage].parts[part]
    mine.samples = samples
    mine.companions = tuple(Companion(name) for name in companions)


def produced(
    record: Record, stage: str, part: int, index: int, payload: Payload | None, finished: bool, now: float
) -> list[Decision]:
    """A lease made something, finished, or both. ``now`` in seconds.

    The decisions are carried out in order, up to the first that ends the request: what follows a Fail is void.
    """
    progress = record.stages[stage]
    mine = progress.parts[part]
    decisions: list[Decision] = []
    if index < 0:
        _keep_companion(progress, mine.companions[~index], payload, finished, now)
    elif payload is not None:
        begins = stage in record.plan.heads and not (mine.answered or finished)
        _keep(progress, mine, index, payload, now)
        if stage in record.plan.finals:
            _deliver(record, progress, part, index, payload, decisions)
        if index == 0 and record.plan.consumers[stage] and isinstance(payload, TextChunk):
            _cut(record, stage, payload.text, decisions)
        if begins:
            decisions += advance(record)
    if finished:
        decisions += _finished(record, progress, mine, index)
    return decisions


def streamed(record: Record, stage: str, part: int, index: int, payload: Payload | None, now: float) -> Output | None:
    """The short way through ``produced``, for what happens with every token but the first and the last: text that goes
    straight to the user.

    None: this is not that case, and nothing was done.
    """
    progress = record.stages[stage]
    if type(payload) is not TextChunk or stage not in record.plan.direct or part != progress.delivering:
        return None
    mine = progress.parts[part]
    made = mine.made.get(index)
    if made is None or payload.finish_reason is not None:
        return None
    # As _keep does it, without its calls. The first output came the long way, so the clocks have started.
    made.texts.append(payload.text)
    made.token_ids += payload.token_ids
    progress.finished_at = now
    progress.tokens += len(payload.token_ids)
    modality = progress.node.output
    assert modality is not None, "a final stage has a modality"
    return Output(record.view.request_id, stage, modality, payload, index, part)


def _keep(progress: StageProgress, mine: Part, index: int, payload: Payload, now: float) -> None:
    mine.answered = True
    if isinstance(payload, StepChunk):
        return
    made = mine.made.get(index)
    if made is None:
        made = mine.made[index] = Made()
    made.add(payload)
    progress.count(payload, now)


def _keep_companion(
    progress: StageProgress, companion: Companion, payload: Payload | None, finished: bool, now: float
) -> None:
    """Neither the user nor a splitter hears of it; its tokens are not the user's."""
    companion.answered, companion.finished = True, finished
    progress.finished_at = now
    if payload is None or isinstance(payload, StepChunk):
        return
    companion.made.add(payload)
    if isinstance(payload, TextChunk):
        progress.companion_tokens += len(payload.token_ids)


def _deliver(
    record: Record, progress: StageProgress, part: int, index: int, payload: Payload, decisions: list[Decision]
) -> None:
    modality = progress.node.output
    assert modality is not None, "a final stage has a modality"
    output = Output(record.view.request_id, progress.node.name, modality, payload, index, part)
    if part > progress.delivering:
        progress.parts[part].held.append(output)
    else:
        decisions.append(Deliver(output))


def _finished(record: Record, progress: StageProgress, mine: Part, index: int) -> list[Decision]:
    """A splitter gets the end of the text with the main work's end; what else follows waits for the companions too."""
    decisions: list[Decision] = []
    spoken = False
    if index >= 0:
        mine.finished += 1
        spoken = mine.spoken
    if mine.done:
        progress.done += 1
        decisions += _release_held(progress)
    if spoken:
        _cut(record, progress.node.name, "", decisions, finished=True)
    return decisions + advance(record) if spoken or mine.done else decisions


def _release_held(progress: StageProgress) -> Iterator[Deliver]:
    """The reorder buffer: parts reach the user in order, each streaming once its predecessors are done."""
    while (part := progress.parts.get(progress.delivering)) is not None:
        yield from map(Deliver, part.held)
        part.held.clear()
        if not part.done:
            return
        progress.delivering += 1


# ---------------------------------------------------------------------- segments


def _cut(record: Record, source: str, text: str, decisions: list[Decision], *, finished: bool = False) -> None:
    """Feed the source's new text to the splitters behind it, and open what they cut off."""
    for node, edge in record.plan.consumers[source]:
        if edge.mode != "segments":
            continue
        consumer = record.stages[node.name]
        try:
            _feed(consumer, edge, text, finished=finished)
        except Exception as error:
            decisions.append(_split_failed(consumer, edge, error))
            return
        decisions += _open_segments(consumer, edge)


def _feed(consumer: StageProgress, edge: Edge, text: str, *, finished: bool) -> None:
    assert edge.split is not None, "the graph has seen to it"
    segments, consumer.rest = edge.split(consumer.rest + text, finished)
    consumer.segments.extend(segments)
    if finished:
        consumer.total = consumer.opened + len(consumer.segments)


def _split_failed(consumer: StageProgress, edge: Edge, error: Exception) -> Fail:
    stage = consumer.node.name
    text = f"the splitter {edge.split_name} of edge {edge.source}->{stage} raised {type(error).__name__}: {error}"
    failure = TransformFailed(text, function=edge.split_name, stage=stage)
    failure.__cause__ = error
    return Fail(stage, failure)


# ---------------------------------------------------------------------- what can be opened now


def advance(record: Record) -> list[Decision]:
    """Open everything that can be opened; finish when every stage of the plan is complete."""
    decisions: list[Decision] = []
    for node in record.plan.order:
        decisions += _open(record, record.stages[node.name])
    if all(progress.complete for progress in record.stages.values()):
        decisions.append(Finish())
    return decisions


def _open(record: Record, progress: StageProgress) -> list[Decision]:
    edges = progress.node.edges
    if len(edges) == 1 and edges[0].mode == "segments":
        return _open_segments(progress, edges[0])
    if progress.node.chained:
        return _open_chain(record, progress, edges[0].source)
    if progress.node.name in record.plan.partitioned:
        return _open_inherited(record, progress, edges[0])
    if progress.opened or not all(record.stages[edge.source].complete for edge in edges):
        return []
    upstream = {edge.source: _whole(record.stages[edge.source]) for edge in edges}
    return [_forward(progress, upstream)]


def _open_segments(progress: StageProgress, edge: Edge) -> list[Decision]:
    decisions: list[Decision] = []
    while progress.segments and _window_open(progress, edge):
        segment = StageResult(stage=edge.source, part=progress.opened, text=progress.segments.popleft())
        decisions.append(_forward(progress, {edge.source: segment}))
    return decisions


def _open_chain(record: Record, progress: StageProgress, source: str) -> list[Decision]:
    """``upstream`` is what all before it in the chain have made so far, its head first."""
    if progress.opened or not _begun(record, source):
        return []
    chain = [source]
    while (node := record.stages[chain[0]].node).chained:
        chain.insert(0, node.edges[0].source)
    return [_forward(progress, {name: _whole(record.stages[name]) for name in chain})]


def _begun(record: Record, source: str) -> bool:
    """Whether a chain has got this far: its head has made something, what follows is open."""
    progress = record.stages[source]
    if progress.node.chained:
        return progress.opened > 0
    return progress.complete or any(part.answered or part.spoken for part in progress.parts.values())


def _open_inherited(record: Record, progress: StageProgress, edge: Edge) -> list[Decision]:
    source = record.stages[edge.source]
    progress.total = source.total
    decisions: list[Decision] = []
    while (part := source.parts.get(progress.opened)) is not None and part.done and _window_open(progress, edge):
        result = _handed_over(edge.source, progress.opened, [part])
        decisions.append(_forward(progress, {edge.source: result}))
    return decisions


def _window_open(progress: StageProgress, edge: Edge) -> bool:
    """Parts at work are bounded per request and edge; the others wait as text or as results (I13)."""
    return progress.opened - progress.done < edge.parts_in_flight


def _forward(progress: StageProgress, upstream: Mapping[str, StageResult]) -> Forward:
    number = progress.opened
    progress.parts[number] = Part(samples=1)
    progress.opened += 1
    return Forward(progress.node.name, number, upstream)


def _whole(progress: StageProgress) -> StageResult:
    """Choice 0 of all parts as one result: what a ``whole`` edge hands over."""
    return _handed_over(progress.node.name, 0, [part for _, part in sorted(progress.parts.items())])


def _handed_over(stage: str, number: int, parts: Sequence[Part]) -> StageResult:
    """Choice 0 of these parts, and each companion's share of them."""
    result = StageResult.of(stage, number, 0, [part.made[0] for part in parts if 0 in part.made])
    beside: dict[str, list[Made]] = {}
    for part in parts:
        for companion in part.companions:
            beside.setdefault(companion.name, []).append(companion.made)
    if not beside:
        return result
    companions = {name: StageResult.of(stage, number, 0, made) for name, made in beside.items()}
    return attrs.evolve(result, companions=companions)


def rejected(stage: str, why: str) -> EngineRejected:
    """An engine gave a lease up without finishing it."""
    return EngineRejected(f"stage {stage} gave the request up: {why}", stage=stage)


def blamed(error: _Error, stage: str, companion: str | None) -> _Error:
    """The error of a companion's work as its parent's: of the same kind, naming the companion, with its cause."""
    if companion is None:
        return error
    made = copy.copy(error)
    made.message = f"companion {companion!r} of stage {stage}: {error.message}"
    made.args = (made.message,)
    made.stage = error.stage or stage
    made.__cause__ = error
    return made
