"""What is drawn makes sense, travels as JSON, and gets smaller without Hypothesis too."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st

from omni_actors import InputSpec, PipelineSpec, StageSpec
from omni_actors.config import validate
from omni_actors.lifecycle import Graph
from omni_actors.runtime._open import _graph
from omni_actors.testing import Scenario, Stage, ops, scenario_from_json, strategies
from omni_actors.testing._hypothesis import by_seed_alone
from omni_actors.testing._reduce import smallest

QUICK = settings(
    max_examples=60,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@QUICK
@given(strategies.scenarios())
def test_every_pipeline_is_valid_and_every_scenario_travels(scenario: Scenario):
    spec = scenario.pipeline()
    validate(spec, engines={"fake", "fake-core"})
    assert isinstance(_graph(spec), Graph)
    assert scenario_from_json(scenario.to_json()) == scenario
    assert len({op.request for op in scenario.ops if isinstance(op, ops.Submit)}) <= strategies.MAX_REQUESTS


@QUICK
@given(strategies.scenarios())
def test_operations_name_stages_and_replicas_that_exist(scenario: Scenario):
    replicas = {stage.name: stage.replicas for stage in scenario.stages}
    for op in scenario.ops:
        if (stage := getattr(op, "stage", None)) is not None:
            assert getattr(op, "replica", 0) < replicas[stage]


def test_all_shapes_are_drawn():
    seen = set()

    @seed(1)
    @settings(QUICK, max_examples=200)
    @given(strategies.pipelines())
    def draw(stages):
        seen.add(f"{len(stages)} stages")
        seen.update(f"{stage.wire}, {stage.replicas} replicas" for stage in stages)
        seen.update("segments" for stage in stages if stage.segments)
        seen.update(f"fan-in of {len(stage.inputs)}" for stage in stages)
        seen.update("fan-out" for stage in stages if sum(stage.name in other.inputs for other in stages) > 1)

    with by_seed_alone():
        draw()
    assert {
        "1 stages",
        "5 stages",
        "core, 3 replicas",
        "omni, 3 replicas",
        "segments",
        "fan-in of 3",
        "fan-out",
    } <= seen


def test_the_plainest_scenario_is_plain():
    assert find(strategies.scenarios(), lambda scenario: True, settings=QUICK) == Scenario(
        stages=(Stage(name="a", output="text", behaviour={"tokens": 1}),), buggify=False
    )


def test_a_users_pipeline_stays_outside_of_the_scenario():
    spec = PipelineSpec(name="mine", stages=[StageSpec(name="mine", engine="vllm", output="text")])
    only = st.builds(ops.Kill, at=st.just(0.2), stage=st.just("mine"))
    scenario = find(strategies.scenarios(spec, ops=only), lambda s: len(s.ops) > 2, settings=QUICK)
    assert scenario.stages == ()
    assert {type(op) for op in scenario.ops} <= {ops.Submit, ops.Kill}


def test_the_wires_of_a_users_stages():
    stages = [
        StageSpec(name="llm", engine="vllm", replicas=2),
        StageSpec(name="own", engine="generation", inputs=[InputSpec(stage="llm")], output="image"),
    ]
    found = strategies.places(PipelineSpec(name="mine", stages=stages))
    assert [(place.stage, place.wire, place.replicas) for place in found] == [("llm", "core", 2), ("own", "omni", 1)]


# ---------------------------------------------------------------------- smaller

LARGE = Scenario(
    stages=(
        Stage(name="a", output="text", behaviour={"tokens": 7, "token_s": 0.5}, deadlines={"edge_s": 0.2}),
        Stage(name="b", inputs=("a",), segments=True, replicas=3, cheap=False),
        Stage(name="c", wire="omni", inputs=("a", "b"), output="audio"),
    ),
    ops=(
        ops.Submit(at=0.07, request="r4", pace_s=1.0),
        ops.Submit(at=2.34, request="r5", params={"b": {"n": 2}}, modalities=("audio",)),
        ops.Kill(at=0.5, stage="b", replica=2),
        ops.Abort(at=0.6, id="r5"),
        ops.Stall(at=0.7, stage="c"),
    ),
    seed=99,
    hwm=1,
)


def test_what_is_not_needed_goes():
    def fails(scenario: Scenario) -> bool:
        return any(isinstance(op, ops.Abort) for op in scenario.ops)

    (stage,) = LARGE.stages[:1]
    plain = Scenario(stages=(Stage(name=stage.name, output="text"),), ops=(ops.Abort(at=0.1, id="r5"),), buggify=False)
    assert smallest(LARGE, lambda s: fails(s) and s.stages[0].name == stage.name) == plain


def test_what_is_needed_stays():
    def fails(scenario: Scenario) -> bool:
        asked = [op for op in scenario.ops if isinstance(op, ops.Submit) and op.modalities]
        return bool(asked) and any(stage.replicas == 3 for stage in scenario.stages)

    small = smallest(LARGE, fails)
    assert small.ops == (ops.Submit(at=0.1, request="r0", modalities=("audio",)),)
    assert [stage.name for stage in small.stages] == ["b", "c"]
    assert small.stages[1].inputs == ("b",) or small.stages[1].inputs == ()


def test_the_search_ends():
    calls = []
    smallest(LARGE, lambda scenario: calls.append(scenario) or True, runs=5)
    assert len(calls) == 5
