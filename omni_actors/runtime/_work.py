"""From a stage's input to work for its engines: the user's transform, then the stage's input processing.

Synchronous, and free of runtime state, so that it runs inline or in a thread alike. What a user's function or a bad
prompt raises becomes an error of that one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors._errors import OmniError, TransformFailed

if TYPE_CHECKING:
    from omni_actors.lifecycle import Record, RequestView, StageResult
    from omni_actors.stages import StageSupervisor, Work

_EVERYWHERE = frozenset(("trace_headers",))
"""Options that every stage gets. The others are about the prompt, and the model that it goes to."""

__all__ = ["Piece", "StageInput", "WorkMaker", "prompt_size"]


@attrs.frozen
class StageInput:
    """What a transform may return instead of a bare prompt: a prompt and params of this one piece of work."""

    prompt: Any
    params: Any = None


@attrs.frozen(kw_only=True)
class Piece:
    """The next piece of a request's streamed input; without ``params`` it has the request's. ``last``: no prompt."""

    prompt: Any = None
    params: Any = None
    last: bool = False


class WorkMaker:
    """``lease_key`` gives the key of a lease to come: ``(record, stage, part, index) -> key``."""

    def __init__(
        self, stages: Mapping[str, StageSupervisor], lease_key: Callable[[Record, str, int, int], str]
    ) -> None:
        self._stages, self._lease_key = stages, lease_key

    def transform(self, record: Record, stage: StageSupervisor, upstream: Mapping[str, StageResult]) -> tuple[Any, Any]:
        """The stage's prompt and params. Raises TransformFailed, or what OmniError the transform chose."""
        return self._transformed(stage, upstream, record.view)

    def _transformed(
        self, stage: StageSupervisor, upstream: Mapping[str, StageResult], view: RequestView
    ) -> tuple[Any, Any]:
        params = view.params.get(stage.spec.name)
        if stage.transform is None:
            return _default_prompt(view, upstream), params
        try:
            made = stage.transform(upstream, view)
        except OmniError as error:
            error.stage = error.stage or stage.spec.name
            raise
        except Exception as error:
            name = stage.spec.transform or ""
            text = f"the transform {name} of stage {stage.spec.name} raised {type(error).__name__}: {error}"
            raise TransformFailed(text, function=name, stage=stage.spec.name) from error
        if isinstance(made, StageInput):
            return made.prompt, made.params if made.params is not None else params
        return made, params

    def heavy(self, name: str, prompt: Any, params: Any) -> bool:
        """Whether making the work takes long enough for a thread. Raises InvalidRequest for a bad prompt or params."""
        frontend = self._stages[name].frontend
        frontend.check(prompt, params)
        return frontend.heavy(prompt)

    def works(self, record: Record, name: str, part: int, prompt: Any, params: Any) -> list[Work]:
        """One Work per sample. Raises InvalidRequest; TransformFailed for a front-end that raises something else."""
        samples = self._stages[name].frontend.samples(params)
        keys = [self._lease_key(record, name, part, index) for index in range(samples)]
        options = record.options
        if options and record.stages[name].node.edges:
            options = {key: value for key, value in options.items() if key in _EVERYWHERE}
        return self._prepare(record, name, keys, prompt, params, options)

    def _prepare(
        self, record: Record, name: str, keys: list[str], prompt: Any, params: Any, options: Mapping[str, Any]
    ) -> list[Work]:
        try:
            return self._stages[name].frontend.prepare(
                keys,
                prompt,
                params,
                stream=record.plan.streams(name),
                text=self._reads_text(record, name),
                priority=record.priority,
                options=options,
            )
        except OmniError:
            raise
        except Exception as error:
            text = f"input processing of stage {name} raised {type(error).__name__}: {error}"
            raise TransformFailed(text, function="prepare", stage=name) from error

    def piece(self, record: Record, name: str, piece: Piece) -> Work:
        """The next piece of a streamed input, for the one lease of a stage that takes the prompt. Raises as above."""
        stage = self._stages[name]
        if piece.last:
            prompt, params = [0], record.view.params.get(name)  # vLLM's word for "that was all": it is not read
        else:
            given = record.view.params if piece.params is None else {**record.view.params, name: piece.params}
            view = attrs.evolve(record.view, prompt=piece.prompt, params=given)
            prompt, params = self._transformed(stage, {}, view)
        options = {**record.options, "resumable": not piece.last}
        (work,) = self._prepare(record, name, [self._lease_key(record, name, 0, 0)], prompt, params, options)
        return work

    def _reads_text(self, record: Record, name: str) -> bool:
        """Whether anybody looks at the stage's text: the user, a splitter or a transform."""
        plan = record.plan
        return name in plan.finals or any(
            edge.mode == "segments" or self._stages[node.name].transform is not None
            for node, edge in plan.consumers[name]
        )


def _default_prompt(view: RequestView, upstream: Mapping[str, StageResult]) -> Any:
    """Without a transform a root stage gets the user's prompt, an inner one its producer's token ids or tensors."""
    if not upstream:
        return view.prompt
    if len(upstream) > 1:
        raise TransformFailed("a stage with several inputs needs a transform to join them", function="(none)")
    (result,) = upstream.values()
    if result.tensors:
        return {name: pieces[0] if len(pieces) == 1 else list(pieces) for name, pieces in result.tensors.items()}
    return {"prompt_token_ids": result.token_ids}


def prompt_size(prompt: Any) -> int:
    """A prompt's cost in bytes, roughly: what admission counts. Tensors by their size, containers by their content."""
    if isinstance(prompt, str | bytes | bytearray | memoryview):
        return len(prompt)
    if (nbytes := getattr(prompt, "nbytes", None)) is not None:
        return int(nbytes)
    if isinstance(prompt, Mapping):
        return sum(map(prompt_size, prompt.values()))
    if isinstance(prompt, Sequence):
        return 8 * len(prompt) if prompt and isinstance(prompt[0], int | float) else sum(map(prompt_size, prompt))
    return 8
