"""From a stage's input to work for its engines: the user's transform, its companions, the stage's input processing.

Synchronous, and free of runtime state, so that it runs inline or in a thread alike. What a user's function or a bad
prompt raises becomes an error of that one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors._errors import OmniError, TransformFailed
from omni_actors.lifecycle import blamed
from omni_actors.stages import Work

if TYPE_CHECKING:
    from omni_actors.config.specs import StageSpec
    from omni_actors.lifecycle import Record, RequestView, StageResult
    from omni_actors.stages import StageSupervisor

_EVERYWHERE = frozenset(("trace_headers",))
"""Options that every stage gets. The others are about the prompt, and the model that it goes to."""

MAX_COMPANIONS = 8
"""Of one part of one stage. Guidance takes one or two."""

__all__ = ["MAX_COMPANIONS", "Given", "Piece", "StageInput", "WorkMaker", "Works", "prompt_size"]


class StageInput(msgspec.Struct, frozen=True):
    """What a transform may return instead of a bare prompt: a prompt and params of this one piece of work."""

    prompt: Any
    params: Any = None


class Given(msgspec.Struct, frozen=True):
    """A stage's whole input: its own, and that of the companions, by name."""

    main: StageInput
    companions: Mapping[str, StageInput] = msgspec.field(default_factory=dict)

    @classmethod
    def plain(cls, view: RequestView, root: str) -> Given:
        """The user's prompt as it is."""
        return cls(StageInput(view.prompt, view.params.get(root)))


class Works(msgspec.Struct, frozen=True):
    """What one forward becomes: a Work per sample, and one per companion. They go to one replica together.

    ``nbytes``: the size of the companions' prompts.
    """

    main: list[Work]
    companions: Mapping[str, Work] = msgspec.field(default_factory=dict)
    nbytes: int = 0

    def indexed(self) -> Iterator[tuple[int, Work]]:
        """Each with its lease's index: samples from 0 up, companions from -1 down."""
        yield from ((work.index, work) for work in self.main)
        yield from ((~number, work) for number, work in enumerate(self.companions.values()))


class Piece(msgspec.Struct, frozen=True, kw_only=True):
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

    def transform(self, record: Record, stage: StageSupervisor, upstream: Mapping[str, StageResult]) -> Given:
        """The stage's prompt and params, and its companions' if somebody in this request's plan gets to see them.

        Raises TransformFailed, or what OmniError the functions chose.
        """
        main = self._transformed(stage, upstream, record.view)
        if stage.companions is None or not record.plan.hands_over(stage.spec.name):
            return Given(main)
        return Given(main, _companions(stage, upstream, record.view))

    def _transformed(
        self, stage: StageSupervisor, upstream: Mapping[str, StageResult], view: RequestView
    ) -> StageInput:
        """Its own input, without the companions'."""
        params = view.params.get(stage.spec.name)
        if stage.transform is None:
            return StageInput(_default_prompt(view, upstream), params)
        made = _called(stage.transform, f"transform {stage.spec.transform}", stage.spec, upstream, view)
        return _as_input(made, params)

    def heavy(self, name: str, given: Given) -> bool:
        """Whether making the work takes long enough for a thread. Raises InvalidRequest for a bad prompt or params."""
        heavy = self._heavy(name, given.main.prompt, given.main.params)
        for companion, own in given.companions.items():
            try:
                heavy = self._heavy(name, own.prompt, own.params) or heavy
            except OmniError as error:
                raise blamed(error, name, companion) from error
        return heavy

    def _heavy(self, name: str, prompt: Any, params: Any) -> bool:
        frontend = self._stages[name].frontend
        frontend.check(prompt, params)
        return frontend.heavy(prompt)

    def works(self, record: Record, name: str, part: int, given: Given) -> Works:
        """One Work per sample, and one per companion.

        Raises InvalidRequest; TransformFailed for a front-end that raises something else.
        """
        samples = self._stages[name].frontend.samples(given.main.params)
        keys = [self._lease_key(record, name, part, index) for index in range(samples)]
        options = record.options
        if options and record.stages[name].node.edges:
            options = {key: value for key, value in options.items() if key in _EVERYWHERE}
        main = self._prepare(record, name, keys, given.main.prompt, given.main.params, options)
        return self._beside(record, name, part, main, given, options) if given.companions else Works(main)

    def _beside(
        self, record: Record, name: str, part: int, main: list[Work], given: Given, options: Mapping[str, Any]
    ) -> Works:
        """With the companions' works: one sample each, whatever ``n`` says, and whole, even if the main one grows."""
        options = {key: value for key, value in options.items() if key != "resumable"}
        made: dict[str, Work] = {}
        for number, (companion, own) in enumerate(given.companions.items()):
            keys = [self._lease_key(record, name, part, ~number)]
            try:
                (made[companion],) = self._prepare(record, name, keys, own.prompt, own.params, options)
            except OmniError as error:
                raise blamed(error, name, companion) from error
        return Works(main, made, sum(prompt_size(own.prompt) for own in given.companions.values()))

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
            view = msgspec.structs.replace(record.view, prompt=piece.prompt, params=given)
            first = self._transformed(stage, {}, view)
            prompt, params = first.prompt, first.params
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


def _companions(
    stage: StageSupervisor, upstream: Mapping[str, StageResult], view: RequestView
) -> Mapping[str, StageInput]:
    what = f"companions function {stage.spec.companions}"
    assert stage.companions is not None, "the caller has looked"
    made = _called(stage.companions, what, stage.spec, upstream, view)
    problem = None
    if not isinstance(made, Mapping) or not all(isinstance(name, str) and name for name in made):
        problem = f"returned {type(made).__name__}, not a mapping of names to prompts"
    elif len(made) > MAX_COMPANIONS:
        problem = f"returned {len(made)} companions; there may be {MAX_COMPANIONS}"
    if problem is not None:
        text = f"the {what} of stage {stage.spec.name} {problem}"
        raise TransformFailed(text, function=stage.spec.companions or "", stage=stage.spec.name)
    params = view.params.get(stage.spec.name)
    return {name: _as_input(own, params) for name, own in made.items()}


def _called(
    function: Callable[..., Any], what: str, spec: StageSpec, upstream: Mapping[str, StageResult], view: RequestView
) -> Any:
    """What one of the pipeline's functions makes of these. What it raises is its request's; an OmniError was meant."""
    try:
        return function(upstream, view)
    except OmniError as error:
        error.stage = error.stage or spec.name
        raise
    except Exception as error:
        text = f"the {what} of stage {spec.name} raised {type(error).__name__}: {error}"
        raise TransformFailed(text, function=what.rpartition(" ")[2], stage=spec.name) from error


def _as_input(made: Any, params: Any) -> StageInput:
    """What a function returned; without params of its own it has the request's."""
    if not isinstance(made, StageInput):
        return StageInput(made, params)
    return made if made.params is not None else StageInput(made.prompt, params)


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
