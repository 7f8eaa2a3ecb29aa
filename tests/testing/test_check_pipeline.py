"""check_pipeline, as its users see it: their own pipelines, transforms and splitters; fake engines; no model."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import strategies as st

from omni_actors import ConfigError, InputSpec, InvalidRequest, Limits, PipelineSpec, StageSpec, UsageError
from omni_actors.runtime._handler import RequestHandler
from omni_actors.testing import (
    FakeCoreBehaviour,
    FakeFrontend,
    FakeParams,
    check_pipeline,
    fake_tokens,
    ops,
    prove,
    replay,
    scenario_from_json,
)
from omni_actors.testing._scripted import chunks, on_fakes, tokens
from omni_actors.testing.sim._history import Got, TerminalSeen
from omni_actors.testing.sim._scenario import Scenario
from omni_actors.wire.omni import Tensor

HERE = f"{__name__}:"
TEXT = st.text("ab .\n", max_size=6)


# ---------------------------------------------------------------------- the user's functions


def first_line(upstream, request):
    return upstream["poet"].text.splitlines()[0]


def any_line(upstream, request):
    return upstream["poet"].text or "nothing"


def as_it_is(upstream, request):
    return upstream["poet"].text


def polite(upstream, request):
    """Refuses, on purpose, what it cannot work with."""
    if not upstream["poet"].text.strip():
        raise InvalidRequest("there is nothing to paint")
    return {"caption": upstream["poet"].text}


def lines(text: str, finished: bool):
    *complete, rest = text.split("\n")
    if finished and not rest:
        raise RuntimeError("an answer that ends with a line end")
    return ([*complete, rest], "") if finished else (complete, rest)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Specs name functions by dotted path; pytest's importlib mode gives this module a name that no import finds."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or sys.modules[first_line.__module__])


def poem(transform: str, *, engine: str = "vllm", split: str | None = None, **more) -> PipelineSpec:
    edge = InputSpec(stage="poet", mode="segments", split=HERE + split) if split else InputSpec(stage="poet")
    return PipelineSpec(
        name="poem",
        stages=[
            StageSpec(name="poet", engine="vllm", model="no/such-model", output="text", params={"top_k": 3}),
            StageSpec(name="reader", engine=engine, model="nowhere:Reader", inputs=[edge],
                      transform=HERE + transform, output="audio"),
        ],
        **more,
    )  # fmt: skip


def failure(*args, **how) -> str:
    with pytest.raises(AssertionError) as caught:
        check_pipeline(*args, **how)
    return str(caught.value)


# ---------------------------------------------------------------------- bugs of the pipeline


def test_a_transform_that_cannot_take_an_empty_answer():
    words = failure(poem("first_line"), {"poet": TEXT}, examples=100, seed=1)
    assert "transform: request r0 failed by a bug of the pipeline" in words
    assert "first_line of stage reader raised IndexError: list index out of range" in words
    assert 'return upstream["poet"].text.splitlines()[0]' in words
    assert "upstream = {'poet': StageResult(stage='poet', finish_reason='stop')}" in words
    assert "request = RequestView(request_id='r0'" in words


def test_what_it_prints_runs_again_and_is_small():
    words = failure(poem("first_line"), {"poet": TEXT}, examples=100, seed=1)
    json = next(line for line in words.splitlines() if line.startswith("{"))
    scenario = scenario_from_json(json)
    assert [type(op) for op in scenario.ops] == [ops.Submit]
    assert scenario.fakes["poet"] == {"script": [""]}

    history, violations = replay(scenario, poem("first_line"))
    assert [violation.invariant for violation in violations] == ["transform"]
    assert [event.error for event in history.of(TerminalSeen)] == ["TransformFailed"]
    assert replay(scenario, poem("any_line"))[1] == []
    assert "seed=1" in words.splitlines()[-1]


def test_a_splitter_that_cannot_take_every_end():
    words = failure(poem("as_it_is", split="lines"), {"poet": TEXT}, examples=100, seed=1)
    assert "lines of edge poet->reader raised RuntimeError: an answer that ends with a line end" in words
    assert "finished = True" in words


def test_a_transform_whose_prompt_its_stage_cannot_take():
    words = failure(poem("as_it_is"), {"poet": TEXT}, examples=100, seed=1)
    assert "the prompt is empty" in words
    assert "prompt = ''" in words


def test_a_refusal_that_is_meant_is_no_bug():
    assert check_pipeline(poem("polite", engine="generation"), {"poet": TEXT}, examples=40, seed=1).proved


def test_failures_may_be_allowed():
    proof = check_pipeline(poem("first_line"), {"poet": TEXT}, examples=40, seed=1, allow_failures=True)
    assert proof.proved
    assert proof.seen["error TransformFailed"] > 0


def test_a_pipeline_without_bugs_is_proved_with_all_that_can_happen_to_it():
    proof = check_pipeline(poem("any_line"), {"poet": TEXT}, examples=200, seed=1)
    assert proof.proved
    assert proof.seen["edge poet->reader"] > 20
    assert {"terminal finished", "terminal aborted", "terminal failed", "fault kill"} <= proof.seen.keys()


# ---------------------------------------------------------------------- bugs of the runtime


def test_a_bug_of_the_runtime_is_found_by_the_same_call(monkeypatch):
    monkeypatch.setattr(RequestHandler, "_tell_engines", lambda self, leases: None)
    words = failure(poem("any_line"), {"poet": TEXT}, examples=200, seed=1)
    assert words.startswith(("I3:", "I10:", "I11:", "I16:"))


def test_a_named_pipeline_is_found_again_from_the_command_line(monkeypatch):
    monkeypatch.setattr(RequestHandler, "_tell_engines", lambda self, leases: None)
    assert "omni-actors prove tiny-omni --examples 100 --seed " in failure("tiny-omni", examples=200, seed=1)


# ---------------------------------------------------------------------- what the fakes make


def test_the_stages_make_what_the_strategies_drew():
    outputs = {"poet": st.just("a rose"), "reader": st.just(["one ", {"audio": Tensor("uint8", (1,), b"\x02")}])}
    pipeline = poem("any_line", engine="generation")
    assert prove(pipeline, outputs=outputs, examples=10, seed=1).violation is None
    drawn = {"poet": {"script": [tokens("a rose")]}, "reader": {"script": [chunks(["one ", b"\x01"])]}}
    asked = Scenario(ops=(ops.Submit(at=0.1, request="r"),), fakes=drawn)
    history, violations = replay(asked, pipeline)
    heard = list(history.of(Got))
    assert violations == []
    assert "".join(chr(token) for event in heard if event.stage == "poet" for token in event.data) == "a rose"
    assert [event.stage for event in heard].count("reader") == 2


def test_only_the_engines_are_replaced():
    spec = on_fakes(poem("any_line", engine="my-own-kind", drain_s=7.0), Scenario())
    assert [(stage.engine, stage.model) for stage in spec.stages] == [("fake-core", ""), ("fake", "")]
    assert (spec.drain_s, spec.stage("reader").transform) == (7.0, HERE + "any_line")
    assert spec.stage("poet").params == {"top_k": 3}


def test_token_ids_are_an_llms_output_too():
    assert tokens((5, 151_643)) == [5, 151_643]
    with pytest.raises(UsageError, match=r"text or a list of token ids, not \[0\.5\]"):
        tokens([0.5])


def test_a_chunk_is_text_bytes_or_a_mapping():
    assert chunks("hello") == [{"meta": {"text": "hello"}}]
    assert chunks(b"\x00") == [{"tensors": {"data": {"dtype": "uint8", "shape": (1,), "data": "AA=="}}}]
    sound = {"audio": Tensor("float32", (1,), bytes(4)), "sample_rate": 24_000}
    (chunk,) = chunks([sound])
    assert chunk["meta"] == {"sample_rate": 24_000}
    assert chunk["tensors"]["audio"]["dtype"] == "float32"
    with pytest.raises(UsageError, match="a chunk holds text, bytes, tensors and plain values"):
        chunks([{"audio": object()}])


def test_prompts_are_the_users_and_limits_too():
    prompts = st.sampled_from(["a", {"prompt": "b"}, [{"role": "user", "content": "c"}]])
    proof = prove(
        poem("any_line", limits=Limits(max_requests=1)), outputs={"poet": TEXT}, prompts=prompts, examples=60, seed=1
    )
    assert proof.violation is None, str(proof)
    assert proof.seen["refused Overloaded"] > 0


def test_prompts_that_json_cannot_hold_are_refused():
    with pytest.raises(UsageError, match="a prompt must be a value that JSON can hold"):
        prove(poem("any_line"), prompts=st.just(object()), examples=20)


def test_outputs_of_an_unknown_stage_are_refused():
    with pytest.raises(UsageError, match="unknown stage 'poets'; did you mean 'poet'"):
        check_pipeline(poem("any_line"), {"poets": TEXT})
    with pytest.raises(UsageError, match="outputs belong to the stages of a pipeline"):
        prove(outputs={"poet": TEXT})


def test_an_unknown_pipeline_is_refused_by_name():
    with pytest.raises(ConfigError, match="unknown pipeline 'tiny-ommi'; did you mean 'tiny-omni'"):
        check_pipeline("tiny-ommi")


# ---------------------------------------------------------------------- the demo's pipeline, and what is imported

PROVE_TINY = """
import sys
from hypothesis import strategies as st
from omni_actors.testing import check_pipeline
proof = check_pipeline("tiny-omni", {"thinker": st.text("ab .!?", max_size=30)}, examples=40, seed=5)
print(proof)
print("loaded:", *{"vllm", "torch", "transformers", "onnxruntime"} & {name.split(".")[0] for name in sys.modules})
"""


def test_the_demos_pipeline_is_proved_without_an_engines_library(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROVE_TINY], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "proved: 40 scenarios from seed 5, no violation" in done.stdout
    assert done.stdout.rstrip().endswith("loaded:")


def test_a_deploy_file_is_a_pipeline(tmp_path):
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("pipeline: tiny-omni\nstages:\n  thinker:\n    replicas: 2\n")
    assert check_pipeline(deploy, examples=10, seed=1).proved


# ---------------------------------------------------------------------- scripted fakes


def scripted(**more) -> FakeFrontend:
    args = {"script": ["a rose"], **more}
    return FakeFrontend(StageSpec(name="poet", engine="fake-core", engine_args=args, params={"top_k": 3}))


def works(frontend: FakeFrontend, prompt, params=None):
    (work,) = frontend.prepare(["k"], prompt, params, stream=True, text=True)
    return work.body


def test_a_scripted_llm_takes_what_the_real_one_takes():
    chat = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image"}]},
    ]
    body = works(scripted(), chat, {"min_p": 0.1, "temperature": 0.0})
    assert body.prompt_token_ids == [ord(letter) for letter in "a\nb"]
    assert body.sampling_params.max_tokens is None, "no limit but the script's own end"
    assert works(scripted(), "a", {"max_tokens": 2}).sampling_params.max_tokens == 2


def test_any_other_fake_is_strict():
    with pytest.raises(InvalidRequest, match="unknown sampling param 'min_p'"):
        works(scripted(script=[]), "a", {"min_p": 0.1})


def test_the_prompt_alone_decides_which_line_is_said():
    behaviour = FakeCoreBehaviour(script=("one", (7, 8), ""))
    said = {prompt: fake_tokens([prompt], behaviour) for prompt in range(60)}
    assert {tuple(line) for line in said.values()} == {(111, 110, 101), (7, 8), ()}
    assert said == {prompt: fake_tokens([prompt], behaviour) for prompt in range(60)}
    assert fake_tokens([1], FakeCoreBehaviour(script=("one",)), FakeParams(max_tokens=2)) == [111, 110]
