"""What the request table holds: requests, their leases, and how far each stage of a request is.

All of it is mutable and owned by one ``RequestTable``; nobody else writes to it. What leaves it (``Terminal``,
``StageResult``, ``Timing``) is frozen.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from omni_actors._errors import OmniError

from ._graph import Node, Plan
from ._states import LeaseState, RequestState
from .events import Output, Payload, TensorChunk, TextChunk

__all__ = [
    "Companion",
    "Kind",
    "Lease",
    "Made",
    "Part",
    "Record",
    "RequestView",
    "StageProgress",
    "StageResult",
    "Terminal",
    "Timing",
]


class Kind(enum.Enum):
    """How a request ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"
    TIMED_OUT = "timed out"


class RequestView(msgspec.Struct, frozen=True):
    """What a transform may see of the request: the user's own words."""

    request_id: str
    prompt: Any
    modalities: tuple[str, ...]
    params: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class StageResult:
    """Everything that one part and choice of a stage made. ``tensors``: name -> its pieces, in order.

    ``companions``: what the stage's companion works made, by name; only in what a transform is given. ``native``: the
    engine's own last output object of text (see ``TextChunk``).
    """

    stage: str
    part: int = 0
    index: int = 0
    text: str = ""
    token_ids: list[int] = attrs.field(factory=list)
    tensors: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict)
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    finish_reason: str | None = None
    companions: Mapping[str, StageResult] = attrs.field(factory=dict)
    native: Any = attrs.field(default=None, repr=False, eq=False)

    @classmethod
    def of(cls, stage: str, part: int, index: int, made: Sequence[Made]) -> StageResult:
        """Everything in ``made``, one after the other."""
        meta: dict[str, Any] = {}
        tensors: dict[str, list[Any]] = {}
        for each in made:
            meta.update(each.meta)
            for name, pieces in each.tensors.items():
                tensors.setdefault(name, []).extend(pieces)
        reasons = [each.finish_reason for each in made if each.finish_reason]
        return cls(
            stage=stage,
            part=part,
            index=index,
            text="".join([text for each in made for text in each.texts]),
            token_ids=[token for each in made for token in each.token_ids],
            tensors={name: tuple(pieces) for name, pieces in tensors.items()},
            meta=meta,
            finish_reason=reasons[-1] if reasons else None,
            native=made[-1].native if made else None,
        )


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When a stage got its first input, went to an engine, made its first and its last output; absolute seconds.

    ``tokens`` and ``first_at`` are what the user asked for; the stage's companions are counted in ``companion_tokens``
    and, since the stage isn't done before they are, in ``finished_at``. ``replica`` got its first work.
    """

    stage: str
    ready_at: float | None = None
    submitted_at: float | None = None
    first_at: float | None = None
    finished_at: float | None = None
    tokens: int = 0
    audio_s: float = 0.0
    steps: int = 0
    companion_tokens: int = 0
    replica: int | None = None


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """The one last event of a request, with everything produced so far.

    ``stage`` is where it failed, else where the request was heading. ``results`` maps each stage that worked to its
    results, in (part, choice) order. ``prompt_tokens`` are those of the stages the user's prompt went to.
    """

    kind: Kind
    request_id: str
    stage: str
    reason: str | None = None
    error: OmniError | None = None
    results: Mapping[str, tuple[StageResult, ...]] = msgspec.field(default_factory=dict)
    timings: tuple[Timing, ...] = ()
    submitted_at: float = 0.0
    at: float = 0.0
    prompt_tokens: int = 0

    def text(self, stage: str | None = None, index: int = 0) -> str:
        """What choice ``index`` of ``stage`` said (default: of the first stage that made text)."""
        for name, results in self.results.items():
            if stage in (None, name) and any(r.token_ids or r.text for r in results):
                return "".join(r.text for r in results if r.index == index)
        return ""

    def token_ids(self, stage: str, index: int = 0) -> list[int]:
        """The tokens that choice ``index`` of ``stage`` made."""
        return [token for r in self.results.get(stage, ()) if r.index == index for token in r.token_ids]


@attrs.define(eq=False)
class Lease:
    """One ADD to one replica. Its key is all that the engine knows of the request.

    ``index`` is the sample, from 0 up; companions count from -1 down.
    """

    key: str
    record: Record
    stage: str
    part: int
    index: int
    replica: int
    generation: int
    state: LeaseState = LeaseState.LIVE

    @property
    def companion(self) -> str | None:
        """Which companion's work it is; None for the main work."""
        if self.index >= 0:
            return None
        return self.record.stages[self.stage].parts[self.part].companions[~self.index].name


@attrs.define(eq=False)
class Made:
    """What one choice of one part has made so far, added up. The payloads themselves, with an engine's own objects in
    them, are their reader's alone: kept to the end they would cost a kilobyte per token.
    """

    texts: list[str] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)
    tensors: dict[str, list[Any]] = attrs.field(factory=dict)
    meta: dict[str, Any] = attrs.field(factory=dict)
    finish_reason: str | None = None
    native: Any = None

    def add(self, payload: Payload) -> None:
        """One payload more."""
        if isinstance(payload, TextChunk):
            self.texts.append(payload.text)
            self.token_ids += payload.token_ids
            if payload.native is not None:
                self.native = payload.native
        elif isinstance(payload, TensorChunk):
            self.meta.update(payload.meta)
            for name, tensor in payload.tensors.items():
                self.tensors.setdefault(name, []).append(tensor)
        if payload.finish_reason is not None:
            self.finish_reason = payload.finish_reason


@attrs.define(eq=False)
class Companion:
    """Work beside a part's main work, on the same engine: what it made is for the next stage's transform alone."""

    name: str
    made: Made = attrs.field(factory=Made)
    answered: bool = False
    finished: bool = False


@attrs.define(eq=False)
class Part:
    """One part of one stage: what its choices and companions made, and the outputs that must wait for earlier parts."""

    samples: int
    finished: int = 0
    made: dict[int, Made] = attrs.field(factory=dict)
    held: list[Output] = attrs.field(factory=list)
    answered: bool = False
    companions: tuple[Companion, ...] = ()

    @property
    def spoken(self) -> bool:
        """Whether every sample has finished: the main work makes nothing more."""
        return self.finished == self.samples

    @property
    def done(self) -> bool:
        """Whether every sample and every companion has finished."""
        return self.finished == self.samples and all(companion.finished for companion in self.companions)


@attrs.define(eq=False)
class StageProgress:
    """How far one stage of one request is.

    ``total`` is the number of parts, known from the start (1) or, below a splitter, when the splitter's source has
    finished. ``opened`` parts were forwarded, in order. ``delivering`` is the part whose outputs may reach the user.
    ``segments`` are those cut for this stage and not forwarded yet; ``rest`` is the splitter's uncut text.
    """

    node: Node
    total: int | None = 1
    opened: int = 0
    done: int = 0
    delivering: int = 0
    parts: dict[int, Part] = attrs.field(factory=dict)
    segments: deque[str] = attrs.field(factory=deque)
    rest: str = ""
    ready_at: float | None = None
    submitted_at: float | None = None
    first_at: float | None = None
    finished_at: float | None = None
    tokens: int = 0
    audio_s: float = 0.0
    steps: int = 0
    companion_tokens: int = 0
    replica: int | None = None

    @property
    def complete(self) -> bool:
        """Whether this stage makes nothing more for this request."""
        return self.total is not None and self.done == self.total

    def results(self) -> tuple[StageResult, ...]:
        """Everything so far, in (part, choice) order. Companions are no result of a request."""
        return tuple(
            StageResult.of(self.node.name, number, index, (made,))
            for number, part in sorted(self.parts.items())
            for index, made in sorted(part.made.items())
        )

    def count(self, payload: Payload, now: float) -> None:
        """Keep the statistics."""
        if self.first_at is None:
            self.first_at = now
        self.finished_at = now
        if isinstance(payload, TextChunk):
            self.tokens += len(payload.token_ids)
        elif isinstance(payload, TensorChunk):
            self._count_tensors(payload)

    def _count_tensors(self, payload: TensorChunk) -> None:
        if isinstance(steps := payload.meta.get("steps"), int):
            self.steps += steps
        audio, rate = payload.tensors.get("audio"), payload.meta.get("sample_rate")
        if audio is not None and rate:
            self.audio_s += audio.shape[0] / rate

    def timing(self) -> Timing:
        """The statistics, frozen."""
        return Timing(
            stage=self.node.name,
            ready_at=self.ready_at,
            submitted_at=self.submitted_at,
            first_at=self.first_at,
            finished_at=self.finished_at,
            tokens=self.tokens,
            audio_s=self.audio_s,
            steps=self.steps,
            companion_tokens=self.companion_tokens,
            replica=self.replica,
        )


@attrs.define(eq=False)
class Record:
    """One request. ``sink`` is the runtime's own (its stream); the table never looks into it."""

    key: str
    view: RequestView
    plan: Plan
    stages: dict[str, StageProgress]
    slots: int
    nbytes: int
    submitted_at: float
    sink: Any = None
    priority: int = 0
    options: Mapping[str, Any] = attrs.field(factory=dict)
    state: RequestState = RequestState.ADMITTED
    leases: dict[str, Lease] = attrs.field(factory=dict)
    terminal: Terminal | None = None
    prompt_tokens: int = 0

    @property
    def request_id(self) -> str:
        """The user's id."""
        return self.view.request_id

    @property
    def settled(self) -> bool:
        """The fence: nothing of this request is delivered or forwarded any more."""
        return self.terminal is not None
