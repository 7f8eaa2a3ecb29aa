"""Prompts and params into Submits. Stateless, so that ``prepare`` may run in any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest
from omni_actors.stages._interface import Work
from omni_actors.wire import omni as wire

if TYPE_CHECKING:
    from omni_actors.config.specs import StageSpec

__all__ = ["MAX_SAMPLES", "OmniFrontend"]

MAX_SAMPLES = 1024
"""Bound of ``params["n"]``: the samples of one prompt."""

_HEAVY_BYTES = 1 << 20
_HEAVY_ITEMS = 10_000
_IGNORED = frozenset(("resumable", "trace_headers"))
_PLAIN = (str, bytes, Mapping, list, tuple, wire.Tensor)


class OmniFrontend:
    """A generation stage's input processing.

    A prompt is text, bytes, a tensor, an ndarray, or a mapping or list of plain values and those. Params are a mapping
    of plain values; ``params["n"]`` (default 1) asks for that many samples. The stage's ``params`` fill what the caller
    did not give, its ``fixed_params`` win.
    """

    def __init__(self, spec: StageSpec) -> None:
        self._stage = spec.name
        self._params = dict(spec.params)
        self._fixed = dict(spec.fixed_params)

    def check(self, prompt: Any, params: Any) -> int:
        """How many samples this asks for. Raises InvalidRequest for a prompt or params of a wrong type."""
        if not isinstance(prompt, _PLAIN) and not hasattr(prompt, "__array_interface__"):
            raise self._invalid(f"a prompt of type {type(prompt).__name__} cannot be sent; give a mapping, a list, "
                                "text, bytes or a tensor")  # fmt: skip
        return self.samples(params)

    def samples(self, params: Any) -> int:
        """How many samples these params ask for. Raises InvalidRequest."""
        n = self._merged(params).get("n", 1)
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_SAMPLES:
            raise self._invalid(f"n must be a whole number from 1 to {MAX_SAMPLES}, not {n!r}")
        return n

    def heavy(self, prompt: Any) -> bool:
        """Whether the prompt is a megabyte or ten thousand items by its outermost two levels."""
        values = list(prompt.values()) if isinstance(prompt, Mapping) else [prompt]
        return any(_weight(value) > _HEAVY_BYTES or _items(value) > _HEAVY_ITEMS for value in values)

    def prepare(self, keys: Sequence[str], prompt: Any, params: Any, *, stream: bool, text: bool, priority: int = 0,
                options: Mapping[str, Any] | None = None) -> list[Work]:  # fmt: skip
        """One Work per key, its body a Submit that is known to be encodable and aliases nothing of the caller's.

        Raises InvalidRequest, also for options (they are for other kinds of engine) but ``trace_headers``: nothing of
        what a caller asked for is dropped without a word.
        """
        for name, value in (options or {}).items():
            if name == "resumable" and value:
                raise self._invalid("it takes its input whole, not as a stream of pieces")
            if name not in _IGNORED and value is not None:
                raise self._invalid(f"its engine knows no option {name!r}; what it is to do is said in its params")
        self.check(prompt, params)
        merged = {name: value for name, value in self._merged(params).items() if name != "n"}
        prompt, merged = self._snapshot(prompt), self._snapshot(merged)
        return [
            Work(key=key, body=wire.Submit(key, prompt, merged, index, priority), index=index, stream=stream, text=text)
            for index, key in enumerate(keys)
        ]

    def _merged(self, params: Any) -> dict[str, Any]:
        if params is not None and not isinstance(params, Mapping):
            raise self._invalid(f"params must be a mapping, not {type(params).__name__}")
        return {**self._params, **(params or {}), **self._fixed}

    def _snapshot(self, value: Any) -> Any:
        """The value as the engine will see it: one trip through the codec proves it encodable and copies it."""
        try:
            sent = wire.decode(wire.encode(wire.Submit("", _plain(value))))
        except (TypeError, ValueError, RecursionError) as error:
            raise self._invalid(str(error)) from None
        assert isinstance(sent, wire.Submit)
        return sent.prompt

    def _invalid(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._stage}: {problem}", stage=self._stage)


def _plain(value: Any) -> Any:
    """Any mapping as a dict: msgspec encodes no other mapping types."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    # Lists of numbers are the common and long ones; walking them would cost more than encoding them.
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        return [_plain(item) for item in value]
    return value


def _weight(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else len(value) if isinstance(value, str | bytes) else 0


def _items(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple | Mapping) else 0
