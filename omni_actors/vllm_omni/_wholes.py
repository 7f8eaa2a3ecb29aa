"""In an engine's process: what nobody reads before its end is told at its end.

vLLM's engine tells its host of every token. Of a request that is told as a whole (FINAL_ONLY: what a stage makes that
nobody listens to) the host only adds them up; with few requests in flight each of them wakes it for that. So they are
added up here. What comes with anything but tokens is told at once, and so are the first output, which says that the
request has begun, and one in so many, so that the last one never takes the host long.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Wholes", "tell_wholes"]

_MOST = 64
"""Tokens that are held back of one request."""
_TOKENS = ("request_id", "new_token_ids")


def tell_wholes(scheduler: type[Any]) -> None:
    """Have this class of schedulers do so. In the engine's own process, before it makes one."""
    update, finish = scheduler.update_from_output, scheduler.finish_requests

    def update_from_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = update(self, *args, **kwargs)
        return _of(self).tell(made, self.requests) if made else made

    def finish_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = set(self.requests)
        finished = finish(self, *args, **kwargs)
        # Not whoever is gone besides: it may have ended in the step that is being applied, and is still to be told.
        _of(self).forget(before - self.requests.keys())
        return finished

    scheduler.update_from_output, scheduler.finish_requests = update_from_output, finish_requests


def _of(scheduler: Any) -> Wholes:
    try:
        made: Wholes = scheduler._omni_actors_wholes
    except AttributeError:
        made = scheduler._omni_actors_wholes = Wholes()
    return made


class Wholes:
    """What one scheduler holds back: token ids by request."""

    def __init__(self) -> None:
        self._held: dict[str, list[int]] = {}
        self._more: Any = None

    def tell(self, steps: Mapping[int, Any], requests: Mapping[str, Any]) -> Mapping[int, Any]:
        """Of these EngineCoreOutputs by client, what is to be told now. ``requests``: vLLM's, those not finished."""
        return {client: step for client, step in steps.items() if self._tells(step, requests)}

    def _tells(self, step: Any, requests: Mapping[str, Any]) -> bool:
        """Whether there is still something to tell. A step without outputs says something else."""
        if not step.outputs:
            return True
        step.outputs = [output for output in step.outputs if not self._holds(output, requests)]
        return bool(step.outputs or step.scheduler_stats or step.finished_requests)

    def forget(self, names: Iterable[str]) -> None:
        """Nobody wants to hear of these requests any more."""
        for name in names:
            self._held.pop(name, None)

    def _holds(self, output: Any, requests: Mapping[str, Any]) -> bool:
        """Whether it is held back; if not, what was held back before goes with it."""
        name, held = output.request_id, self._held.get(output.request_id)
        if held is None:
            if output.finish_reason is None and _is_whole(requests.get(name)):
                self._held[name] = []  # the first one is told
            return False
        if len(held) < _MOST and self._says_tokens_alone(output):
            held += output.new_token_ids
            return True
        output.new_token_ids = held + output.new_token_ids
        if output.finish_reason is None:
            self._held[name] = []
        else:
            del self._held[name]
        return False

    def _says_tokens_alone(self, output: Any) -> bool:
        if self._more is None:
            self._more = attrgetter(*(name for name in output.__struct_fields__ if name not in _TOKENS))
        for value in self._more(output):
            if value is not None and value is not False and not (type(value) is int and value == 0):
                return False
        return True


def _is_whole(request: Any) -> bool:
    """Stop strings are looked for by the host, token by token. A session's pieces are told as they end."""
    params = getattr(request, "sampling_params", None)
    return (
        params is not None
        and params.output_kind.name == "FINAL_ONLY"
        and not params.stop
        and not getattr(request, "resumable", False)
    )
