"""What stage clients tell the router, and what the user gets: frozen data, made once per engine step.

A batch holds everything that one wake-up of one replica's client brought. Keys are lease keys (DESIGN's words):
engines and clients only ever see those. What is made once per token is out of the garbage collector's sight
(``gc=False``): nothing in it ever refers back to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from omni_actors._errors import EngineDead, OmniError

__all__ = [
    "Batch",
    "Event",
    "LeaseFailed",
    "Output",
    "Payload",
    "Produced",
    "Released",
    "ReplicaDied",
    "StepChunk",
    "TensorChunk",
    "TextChunk",
]


class TextChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New text and tokens of one choice since the last chunk of it.

    ``finish_reason`` ("stop", "length", "abort", …) is set on the last one only. ``native`` is the engine's own
    output object (vLLM's RequestOutput), for what else it says; None in the middle of plain text, where it is nothing.
    Text and tokens are this chunk's own: a merged chunk has more of them than its ``native``.
    """

    text: str = ""
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int = 0
    native: Any = None

    @property
    def nbytes(self) -> int:
        """What it costs to hold unread, in bytes, roughly."""
        return len(self.text) + 8 * len(self.token_ids)


class TensorChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors by name (``audio``: float32, shape (samples,)) and plain values beside them (``sample_rate``: Hz).

    A vLLM stage that pools makes one: ``pooled`` is what its model says of the whole prompt (an embedding: shape
    (dimensions,)) or of each token; in ``meta`` are the ``prompt_token_ids``, and how many were ``cached_tokens``.
    ``native`` is the engine's own output object, where it has one (see ``TextChunk``).
    """

    tensors: Mapping[str, Any] = msgspec.field(default_factory=dict)
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    native: Any = None

    @property
    def nbytes(self) -> int:
        """What it costs to hold unread, in bytes."""
        return sum(t.nbytes for t in self.tensors.values())


class StepChunk(msgspec.Struct, frozen=True, kw_only=True):
    """How far the work is: ``done`` of ``total`` steps (0: unknown), ``eta_s`` more seconds (None: unknown).

    Only for who asked for it (``params["progress"]`` of a diffusion stage). ``preview``: what it looks like by now, a
    tensor of uint8, shape (height, width, 3), or None. It is news, not a result: nobody keeps it.
    """

    done: int
    total: int = 0
    eta_s: float | None = None
    preview: Any = None
    finish_reason: None = None
    prompt_tokens: int = 0

    @property
    def nbytes(self) -> int:
        """What it costs to hold unread, in bytes."""
        return 64 + (self.preview.nbytes if self.preview is not None else 0)


Payload = TextChunk | TensorChunk | StepChunk


class Produced(msgspec.Struct, frozen=True, gc=False):
    """A lease made something.

    ``finished``: it makes nothing more. ``released``, only together with it: its engine holds nothing for it any more.
    """

    key: str
    payload: Payload | None
    finished: bool = False
    released: bool = False


class Released(msgspec.Struct, frozen=True):
    """The engine confirmed that it holds nothing for this lease; no Produced of the key follows."""

    key: str


class LeaseFailed(msgspec.Struct, frozen=True):
    """The engine refused or failed this lease alone and holds nothing for it."""

    key: str
    error: OmniError


class ReplicaDied(msgspec.Struct, frozen=True):
    """The one verdict: every lease on this generation is over. The last event of its generation."""

    error: EngineDead


Event = Produced | Released | LeaseFailed | ReplicaDied


class Batch(msgspec.Struct, frozen=True):
    """Everything one wake-up brought from (stage, replica, generation), in the order it came."""

    stage: str
    replica: int
    generation: int
    events: list[Event]


class Output(msgspec.Struct, frozen=True, gc=False):
    """One item to the user: something new of one modality, from one stage.

    ``index`` is the choice (0 … n-1), ``part`` the segment it belongs to (0 where the stage is not cut in parts).
    """

    request_id: str
    stage: str
    modality: str
    payload: Payload
    index: int = 0
    part: int = 0

    @property
    def text(self) -> str:
        """The new text; empty for other modalities."""
        return self.payload.text if isinstance(self.payload, TextChunk) else ""

    @property
    def audio(self) -> Any:
        """The new samples, a tensor of float32 in [-1, 1], shape (samples,); None for other modalities."""
        return self.payload.tensors.get("audio") if isinstance(self.payload, TensorChunk) else None

    @property
    def image(self) -> Any:
        """A finished picture, a tensor of uint8, shape (height, width, 3); None for other modalities and previews."""
        return self.payload.tensors.get("image") if isinstance(self.payload, TensorChunk) else None

    @property
    def video(self) -> Any:
        """A film, a tensor of uint8, shape (frames, height, width, 3); None for other modalities."""
        return self.payload.tensors.get("video") if isinstance(self.payload, TensorChunk) else None

    @property
    def sample_rate(self) -> int:
        """Samples per second of ``audio``; 0 for other modalities."""
        return int(self.payload.meta.get("sample_rate", 0)) if isinstance(self.payload, TensorChunk) else 0
