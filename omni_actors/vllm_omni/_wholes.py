"""In an engine's process: what nobody reads before its end is told by the bundle.

vLLM's engine tells its host of every token. Of a request that is told as a whole (FINAL_ONLY: what a stage makes that
nobody listens to) the host only adds them up; with few requests in flight each token wakes it for that. So they wait
here for each other: tokens are added up, and what comes with tensors is kept as it is, one after the other. What comes
with anything else is told at once. So are the first output, which says that the request has begun, and whatever there
is in every quarter of a second, of all requests in one message: it says that the engine is alive.
"""

from __future__ import annotations

from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["tell_wholes"]

_MOST = 64
"""Steps of one request that are held back: so many at once take its host no time that another would notice."""
_TURN_S = 0.25
"""What is held back is told in every turn of the clock: far less than any ``hang_s``."""
_TOKENS = frozenset(("request_id", "new_token_ids", "num_generation_tokens"))
_TENSORS = frozenset(("multimodal_output", "pooling_output", "pooling_output_payload"))


def tell_wholes(scheduler: type[Any], now: Callable[[], float] = monotonic) -> None:
    """Have this class of schedulers do so. In the engine's own process, before it makes one.

    For stages whose results are only handed on: of a request that is aborted, what is held back is lost.
    """
    update, finish = scheduler.update_from_output, scheduler.finish_requests

    def update_from_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = update(self, *args, **kwargs)
        return _of(self).tell(made, self.requests, int(now() / _TURN_S)) if made else made

    def finish_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        held = _of(self)
        before = held.among(self.requests)
        finished = finish(self, *args, **kwargs)
        # Not whoever is gone besides: it may have ended in the step that is being applied, and is still to be told.
        held.forget(before - self.requests.keys())
        return finished

    scheduler.update_from_output, scheduler.finish_requests = update_from_output, finish_requests


def _of(scheduler: Any) -> _Wholes:
    try:
        made: _Wholes = scheduler._omni_actors_wholes
    except AttributeError:
        made = scheduler._omni_actors_wholes = _Wholes()
    return made


class _Held:
    """Of one request: the outputs not told yet, of how many steps, and in which turn of the clock it was told last."""

    __slots__ = ("_mergeable", "outputs", "steps", "turn")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.outputs: list[Any] = []
        self.steps = 0
        self._mergeable = False

    def add(self, output: Any, *, mergeable: bool) -> None:
        """``mergeable``: the next one may bring this one's tokens, for it brings nothing else."""
        if self._mergeable:
            output.new_token_ids = self.outputs.pop().new_token_ids + output.new_token_ids
        self.outputs.append(output)
        self.steps += 1
        self._mergeable = mergeable

    def full(self, turn: int) -> bool:
        return self.steps >= _MOST or turn != self.turn


class _Wholes:
    """What one scheduler holds back, by request."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._read: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None

    def among(self, requests: Mapping[str, Any]) -> set[str]:
        """Those of these requests of which it holds something back, or may."""
        return self._held.keys() & requests.keys()

    def forget(self, names: Iterable[str]) -> None:
        """Nobody wants to hear of these requests any more."""
        for name in names:
            self._held.pop(name, None)  # finishing some may finish them again, within

    def tell(self, steps: Mapping[int, Any], requests: Mapping[str, Any], turn: int) -> dict[int, Any]:
        """Of these EngineCoreOutputs by client, what is to be told now. ``requests``: those not finished."""
        return {client: step for client, step in steps.items() if self._tells(step, requests, turn)}

    def _tells(self, step: Any, requests: Mapping[str, Any], turn: int) -> bool:
        """Whether there is still something to tell. A step without outputs says something else."""
        if not step.outputs:
            return True
        step.outputs = [told for output in step.outputs for told in self._told(output, requests, turn)]
        return bool(step.outputs or step.scheduler_stats or step.finished_requests)

    def _told(self, output: Any, requests: Mapping[str, Any], turn: int) -> list[Any]:
        """What is to be told now that this has been made: nothing, or it with all that was held back before it."""
        name, ends = output.request_id, output.finish_reason is not None
        held = self._held.get(name)
        if held is None:
            if not ends and _is_whole(requests.get(name)):
                self._held[name] = _Held(turn)
            return [output]
        tensors, urgent = self._brings(output)
        held.add(output, mergeable=not tensors)
        if not (ends or urgent or held.full(turn)):
            return []
        if ends:
            del self._held[name]
        else:
            self._held[name] = _Held(turn)
        return held.outputs

    def _brings(self, output: Any) -> tuple[bool, bool]:
        """Tensors; and what cannot wait."""
        if self._read is None:
            fields = frozenset(output.__struct_fields__)
            self._read = attrgetter(*fields & _TENSORS), attrgetter(*fields - _TENSORS - _TOKENS)
        tensors, rest = self._read
        return any(value is not None for value in tensors(output)), any(map(_says_something, rest(output)))


def _says_something(value: Any) -> bool:
    """An array must not be asked whether it is 0, and a reason to finish that is 0 is one."""
    return value is not None and value is not False and not (type(value) is int and value == 0)


def _is_whole(request: Any) -> bool:
    """Stop strings are looked for by the host, token by token. A session's pieces are told as they end."""
    params = getattr(request, "sampling_params", None)
    return (
        params is not None
        and params.output_kind.name == "FINAL_ONLY"
        and not params.stop
        and not getattr(request, "resumable", False)
    )
