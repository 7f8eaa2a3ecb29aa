"""What is proved: generated pipelines or a user's own, how one scenario of it is run, and how it is judged.

Importing this module imports hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from omni_actors._errors import UsageError
from omni_actors.config import PipelineSpec, StageSpec, did_you_mean
from omni_actors.lifecycle import Kind
from omni_actors.wire.omni import Tensor

from ._scripted import broken_functions, chunks, denoises, on_fakes, tokens, wire_of
from .invariants import Violation, check, interferes, replays
from .sim._history import History, TerminalSeen
from .sim._scenario import Scenario, Submit
from .sim._simulate import simulate
from .strategies import behaviours, scenarios

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Subject", "edges", "subject"]

SCRIPT_LINES = 8
"""Outputs that a stage's fake chooses from."""


@attrs.frozen
class Subject:
    """What is proved: generated pipelines (``spec`` None) or one of a user's. ``drawn``: something comes from a user's
    strategies, and only Hypothesis knows how to make that smaller.
    """

    spec: PipelineSpec | None
    scenarios: SearchStrategy[Scenario]
    allow_failures: bool = False
    drawn: bool = False

    def run(self, scenario: Scenario) -> History:
        """One run."""
        return simulate(scenario, None if self.spec is None else on_fakes(self.spec, scenario))

    def judge(self, scenario: Scenario, *, deep: bool = False) -> tuple[History, list[Violation]]:
        """``deep``: also by comparison with other runs."""
        history = self.run(scenario)
        found = check(history)
        if self.spec is not None and not self.allow_failures:
            found += broken_functions(history)
        if deep and not found:
            found = self._compared(scenario, history)
        return history, found

    def _compared(self, scenario: Scenario, history: History) -> list[Violation]:
        found = list(replays(history, self.run(scenario)))
        if not found and (unfinished := _unfinished(history)):
            found += interferes(history, self.run(scenario.without(unfinished)))
        return found


def _unfinished(history: History) -> list[str]:
    asked = [op.request for op in (history.scenario or Scenario()).ops if isinstance(op, Submit)]
    finished = {event.request for event in history.of(TerminalSeen) if event.kind == Kind.FINISHED.value}
    return [request for request in asked if request not in finished]


def subject(
    spec: PipelineSpec | None,
    outputs: Mapping[str, SearchStrategy[Any]],
    prompts: SearchStrategy[Any] | None,
    allow_failures: bool,
) -> Subject:
    """What ``prove`` proves with these arguments. Raises UsageError."""
    asked = None if prompts is None else prompts.map(_as_json)
    if spec is None:
        if outputs:
            raise UsageError("outputs belong to the stages of a pipeline, and none was given")
        return Subject(None, scenarios(prompts=asked), drawn=prompts is not None)
    names = [stage.name for stage in spec.stages]
    for name in outputs:
        if name not in names:
            raise UsageError(f"outputs for an unknown stage {name!r}; {did_you_mean(name, names, known='stages')}")
    fakes = st.fixed_dictionaries({s.name: _fake(s, outputs.get(s.name)) for s in spec.stages})
    return Subject(spec, scenarios(spec, prompts=asked, fakes=fakes), allow_failures, drawn=True)


def _as_json(prompt: Any) -> Any:
    """The prompt as it will be when the scenario is read again."""
    try:
        return msgspec.json.decode(msgspec.json.encode(prompt))
    except (TypeError, ValueError) as error:
        raise UsageError(f"a prompt must be a value that JSON can hold: {error}") from error


def _fake(stage: StageSpec, outputs: SearchStrategy[Any] | None) -> SearchStrategy[dict[str, Any]]:
    """What one stage's fake does: a script, and now and then a fault of its own."""
    wire = wire_of(stage.engine)
    makes = _default_outputs(stage) if outputs is None else outputs
    one = makes.map(tokens) if wire == "core" else makes.map(chunks)
    script = st.lists(one, min_size=1, max_size=SCRIPT_LINES)
    told = behaviours(wire, scripted=True, steps=denoises(stage))
    return st.tuples(told, script).map(lambda drawn: {**drawn[0], "script": drawn[1]})


def _default_outputs(stage: StageSpec) -> SearchStrategy[Any]:
    """Short texts with spaces, sentence ends, line ends, empty ones too; short sounds; small pictures; a few bytes."""
    texts = st.text("ab1 .!?\n", max_size=12)
    if wire_of(stage.engine) == "core":
        return texts
    if stage.output == "text":
        return st.lists(texts, max_size=3)
    if stage.output == "audio":
        sound = st.integers(0, 8).map(lambda n: {"audio": Tensor("float32", (n,), bytes(4 * n)), "sample_rate": 24_000})
        return st.lists(sound, max_size=3)
    if stage.output == "image":
        pixels = st.binary(max_size=4).map(lambda data: Tensor("uint8", (1, len(data), 3), data * 3))
        return st.lists(pixels.map(lambda image: {"image": image}), max_size=3)
    return st.lists(st.binary(max_size=4), max_size=3)


def edges(spec: PipelineSpec) -> list[str]:
    """The edges of a pipeline, as a proof counts them."""
    return [f"edge {edge.stage}->{stage.name}" for stage in spec.stages for edge in stage.inputs]
