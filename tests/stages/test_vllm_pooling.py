"""A stage whose model pools: its front-end, its params, and what the kind checks. Real vLLM, no engine."""

from __future__ import annotations

import warnings

import attrs
import pytest

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.pipelines.tiny_omni import pipeline
from omni_actors.stages.vllm import VllmKind

pytest.importorskip("vllm")

TASKS = ["embed", "token_embed"]


def stage(**changes):
    thinker = pipeline().stage("thinker")
    arguments = {**thinker.engine_args, "runner": "pooling", "convert": "embed"}
    return attrs.evolve(thinker, transform=None, output="embedding", engine_args=arguments, **{"params": {}, **changes})


def make(**changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from omni_actors.stages.vllm._frontend import VllmFrontend

        return VllmFrontend(stage(**changes))


@pytest.fixture(scope="module")
def frontend():
    made = make(fixed_params={"use_activation": False})
    made.answered("get_supported_tasks", TASKS)
    return made


def prepare(frontend, prompt, params=None, **options):
    (work,) = frontend.prepare(["k-1"], prompt, params, stream=True, text=True, options=options)
    return work


def test_it_asks_each_new_engine_what_its_model_can_do(frontend):
    assert (frontend.pooling, tuple(frontend.asks)) == (True, ("get_supported_tasks",))


def test_before_the_engine_has_said_so_no_task_is_taken():
    with pytest.raises(InvalidRequest, match="does not support pooling"):
        prepare(make(), [7], {"task": "embed"})


def test_params_are_vllms_or_a_mapping_and_the_stages_win(frontend):
    from vllm import PoolingParams

    for given in (PoolingParams(task="embed"), {"task": "embed"}, {"task": "embed", "use_activation": True}):
        work = prepare(frontend, [7, 3], given)
        pooling = work.body.pooling_params
        assert (pooling.task, pooling.use_activation, work.body.sampling_params) == ("embed", False, None)
        assert (work.key, work.body.request_id, work.body.external_req_id, work.stream) == ("k-1", "k-1", "k-1", False)
    assert prepare(frontend, [7, 3]).body.pooling_params.task == "token_embed"  # vLLM's choice


def test_the_callers_params_are_left_alone(frontend):
    from vllm import PoolingParams

    given = PoolingParams()
    prepare(frontend, [7, 3], given)
    assert (given.task, given.use_activation) == (None, None)


def test_a_prompt_may_be_as_long_as_the_model_for_nothing_is_to_be_added(frontend):
    assert len(prepare(frontend, [7] * 256, {"task": "embed"}).body.prompt_token_ids) == 256
    with pytest.raises(InvalidRequest, match="257 tokens are too many: the limit is 256"):
        frontend.check([7] * 257, None)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"tsak": "embed"}, "tsak"),
        ({"dimensions": "many"}, "int"),
        ({"task": "classify"}, "Unsupported task"),
        ({"task": "embed", "dimensions": 3}, "Matryoshka"),
        (7, "not int"),
    ],
)
def test_what_it_does_not_take_is_the_callers_fault(frontend, params, words):
    with pytest.raises(InvalidRequest, match=words):
        prepare(frontend, [7], params)


def test_it_generates_nothing(frontend):
    from vllm import SamplingParams

    with pytest.raises(InvalidRequest, match="PoolingParams"):
        frontend.samples(SamplingParams())
    with pytest.raises(InvalidRequest, match="streamed input"):
        prepare(frontend, [7], {"task": "embed"}, resumable=True)


def test_reasoning_is_noted_on_the_request(frontend):
    body = prepare(frontend, [7], {"task": "embed"}, reasoning_ended=True, reasoning_parser_kwargs={"a": 1}).body
    assert (body.reasoning_ended, body.reasoning_parser_kwargs) == (True, {"a": 1})


def test_the_specs_params_are_checked_before_anything_starts():
    VllmKind().check(stage(params={"task": "embed"}))
    with pytest.raises(ConfigError, match="vLLM does not know this"):
        VllmKind().check(stage(params={"temperature": 0}))
    with pytest.raises(ConfigError, match="dimensions"):
        make(params={"dimensions": "many"})
