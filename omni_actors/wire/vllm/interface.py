"""What the stage client asks of a codec, so that vLLM's own structs and a pure-msgspec twin can stand for each other.

The structs are read, never made, by the client: an output's attributes have vLLM's names in both worlds. A codec and a
processor belong to one generation and to one thread (vLLM's encoder keeps its buffers in itself).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from omni_actors.lifecycle.events import Payload

__all__ = ["CoreCodec", "Meter", "Sink", "StepOutput", "StepOutputs", "TextProcessor"]


class StepOutput(Protocol):
    """What one engine step made for one lease (vLLM's EngineCoreOutput)."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: int | None
    stop_reason: int | str | None
    mm_cache_miss_hashes: list[str] | None


class StepOutputs(Protocol):
    """One message of the output socket (vLLM's EngineCoreOutputs)."""

    outputs: list[Any]
    utility_output: Any
    timestamp: float
    scheduler_stats: Any


class Sink(Protocol):
    """Where a processor puts one lease's finished pieces. Called synchronously."""

    def put(self, output: Any, payload: Payload | None = None) -> None:
        """One of vLLM's RequestOutputs or PoolingRequestOutputs; ``payload``: what it is to the user, if not text."""

    def put_text(self, text: str, token_ids: list[int]) -> None:
        """A piece in the middle that is nothing but text and tokens."""


class CoreCodec(Protocol):
    """Work and calls to frames, frames to steps. Frames exclude the ROUTER's identity frame."""

    def encode_add(self, body: Any) -> list[Any]:
        """Raises InvalidRequest for a body that this wire cannot carry."""

    def encode_abort(self, keys: Sequence[str]) -> list[Any]: ...

    def forget(self, key: str) -> None:
        """This key's ADD was made, but never left."""

    def encode_utility(self, call_id: int, method: str, args: Sequence[Any]) -> list[Any]:
        """Raises InvalidRequest for arguments that this wire cannot carry."""

    def decode_outputs(self, frames: Sequence[Any]) -> StepOutputs | None:
        """None is the engine's last word, the death sentinel. Raises ProtocolError for other bytes, nothing else."""

    def needs_text(self, body: Any) -> bool:
        """Whether its outputs need a TextProcessor (stop strings, log probabilities) even if nobody reads the text."""

    def prompt_tokens(self, body: Any) -> int:
        """The prompt's length in tokens."""


class TextProcessor(Protocol):
    """Tokens to text, stop strings and log probabilities: vLLM's OutputProcessor behind four verbs."""

    def add(self, body: Any, index: int, sink: Sink, prompt: str | None = None) -> None:
        """Begin one request; under a key that has begun, its next piece of input, with its text if it is known.

        The last piece may end it at once: the sink gets an output without choices then.
        """

    def process(self, outputs: list[Any], step: StepOutputs) -> list[str]:
        """Put into sinks what is new; the keys that ended by a stop string, which the engine does not know yet.

        Raises ProtocolError for outputs that cannot be processed.
        """

    def drop(self, keys: Iterable[str]) -> None:
        """Forget these keys; nothing of them is put any more. Unknown ones are ignored."""


class Meter(Protocol):
    """Counts what a generation does, for its statistics. Nothing of it may fail a request."""

    def add(self, body: Any) -> None:
        """A new request."""

    def count(self, outputs: Sequence[Any], timestamp: float) -> None:
        """Some outputs of the running step, before they are processed."""

    def finished(self, key: str, reason: str) -> None:
        """It ended in the running step; ``reason`` in vLLM's words."""

    def drop(self, keys: Iterable[str]) -> None:
        """They were aborted, or never sent. Unknown ones are ignored."""

    def end(self, step: StepOutputs) -> None:
        """The running step has been applied."""

    def close(self) -> None:
        """The generation is over."""
