"""What AsyncOmni is for the users of vLLM-Omni's: its arguments, outputs, errors and routes, without an engine."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from omni_actors import (
    ConfigError,
    EdgeTimeout,
    EngineDead,
    EngineRejected,
    InvalidRequest,
    Output,
    Overloaded,
    RequestTimeout,
    RuntimeClosed,
    StageFailed,
    StageSpec,
    StageUnavailable,
    TensorChunk,
    TextChunk,
    TransformFailed,
)  # fmt: skip
from omni_actors.config import PipelineSpec
from omni_actors.lifecycle import Timing

DOCS = Path(__file__).parents[2] / "docs" / "vllm_omni_routes.md"


@pytest.fixture(scope="module", autouse=True)
def imported():
    """vLLM-Omni warns of much when it is first imported."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import omni_actors_asyncio.drop_in  # noqa: F401


# ---------------------------------------------------------------------- arguments


def options(model="a/model", **given):
    from omni_actors_asyncio.drop_in._options import ModelOptions

    return ModelOptions.of(model, given)


def test_arguments_go_where_they_belong():
    made = options(
        deploy_config="mine.yaml", stage_overrides={"0": {"max_num_seqs": 2}}, stage_1_gpu_memory_utilization=0.5,
        dtype="bfloat16", stage_init_timeout=20, init_timeout=700, log_stats=True, output_modalities=["audio"],
        tts_batch_max_items=3, tts_max_instructions_length=9, port=8000, enable_orch_monitor=True,
    )  # fmt: skip
    assert dict(made.pipeline) == {
        "deploy_config": "mine.yaml",
        "stage_overrides": {"0": {"max_num_seqs": 2}},
        "stage_1_gpu_memory_utilization": 0.5,
        "dtype": "bfloat16",
        "stage_init_timeout": 20.0,
    }
    assert (made.log_stats, made.output_modalities) == (True, ("audio",))
    assert (made.tts_batch_max_items, made.tts_max_instructions_length) == (3, 9)


def test_a_stage_has_no_longer_than_all_of_them():
    assert options(stage_init_timeout=900, init_timeout=30).pipeline["stage_init_timeout"] == 30.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"depoly_config": "a"}, "depoly_config: not an argument .* did you mean 'deploy_config'"),
        ({"log_requests": True}, "log_requests: not an argument"),
        ({"client_config": {}}, "client_config spreads vLLM-Omni's own processes"),
        ({"stage_id": 1}, "stage_id spreads"),
    ],
)
def test_what_is_no_argument_is_said(given, words):
    with pytest.raises(ConfigError, match=words):
        options(**given)


def test_without_a_model():
    with pytest.raises(ConfigError, match="which model"):
        options(model="")


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (InvalidRequest("stage 'b': too long", stage="b"), 400, "stage 'b': too long"),
        (TransformFailed("f of stage b raised KeyError: 'x'", function="f", stage="b"), 502, "f of stage b raised Key"),
        (
            StageFailed("b/0 (pid 7) died", dead=EngineDead("", signal="SIGKILL"), stage="b"), 503,
            "stage b died under this request (SIGKILL); try again",
        ),
        (
            StageUnavailable("no replica of stage b became ready: b/0 (pid 7) is dead; its last words:\nx", stage="b"),
            503, "no replica of stage b became ready: b/0 is dead",
        ),
        (EdgeTimeout("nothing came", edge="a->b", stage="b"), 503, "stage b: nothing came"),
        (Overloaded("a full house"), 503, "a full house"),
        (RequestTimeout("too late", stage="b"), 504, "stage b: too late"),
        (EngineRejected("b/0: no", stage="b"), 500, "b/0: no"),
    ],
)  # fmt: skip
def test_errors_are_vllm_omnis_with_stage_and_cause(error, status, words):
    from omni_actors_asyncio.drop_in._errors import as_vllm_omni
    from vllm.entrypoints.serve import create_error_response
    from vllm.v1.engine.exceptions import EngineGenerateError
    from vllm_omni.entrypoints.serve.utils.errors import _build_engine_error_payload
    from vllm_omni.errors import OmniClientError

    made = as_vllm_omni(error, {"a": 0, "b": 1})
    assert made.__cause__ is error
    assert isinstance(made, OmniClientError if status == 400 else EngineGenerateError)
    assert create_error_response(made).error.code == status
    body, code = _build_engine_error_payload(made, request_id="mine")
    assert code == status
    assert body["error"]["message"].startswith(words)
    assert "pid" not in body["error"]["message"]
    assert body["error"]["error_stage_id"] == (1 if error.stage else None)


def test_a_closed_runtime_and_strangers():
    from omni_actors_asyncio.drop_in._errors import as_vllm_omni
    from vllm_omni.entrypoints.omni_base import OmniEngineDeadError

    assert isinstance(as_vllm_omni(RuntimeClosed("closed"), {}), OmniEngineDeadError)
    mine = KeyError("mine")
    assert as_vllm_omni(mine, {}) is mine


# ---------------------------------------------------------------------- outputs


def natives(*texts):
    from vllm.outputs import CompletionOutput, RequestOutput

    for number, text in enumerate(texts):
        last = number == len(texts) - 1
        choice = CompletionOutput(0, text, [number], None, None, finish_reason="stop" if last else None)
        yield Output(
            request_id="r",
            stage="a",
            modality="text",
            payload=TextChunk(
                text=text,
                token_ids=[number],
                finish_reason=choice.finish_reason,
                native=RequestOutput("key", "hi", [7, 8], None, [choice], last),
            ),
        )


def sounds(*lengths):
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm_omni.outputs.mm_outputs import MultimodalCompletionOutput, MultimodalPayload

    for number, length in enumerate(lengths):
        reason = "stop" if number == len(lengths) - 1 else None
        made = torch.full((length,), float(number))
        choice = CompletionOutput(0, "", [], None, None, finish_reason=reason)
        if length:
            payload = MultimodalPayload(tensors={"audio": made}, metadata={"sr": 24_000})
            choice = MultimodalCompletionOutput(
                multimodal_output=payload, index=0, text="", token_ids=[], cumulative_logprob=None, logprobs=None,
                finish_reason=reason,
            )  # fmt: skip
        tensors = {"audio": made.numpy()} if length else {}
        native = RequestOutput("key", None, [0], None, [choice], reason is not None)
        yield Output(
            request_id="r", stage="b", modality="audio",
            payload=TensorChunk(tensors=tensors, meta={"sample_rate": 24_000}, finish_reason=reason, native=native),
        )  # fmt: skip


def results(**kinds):
    from omni_actors_asyncio.drop_in._metrics import StageInfo
    from omni_actors_asyncio.drop_in._results import Results
    from vllm.sampling_params import RequestOutputKind

    a = Timing(stage="a", ready_at=1.0, submitted_at=1.0, first_at=1.2, finished_at=2.0, tokens=3, replica=0)
    b = Timing(stage="b", ready_at=2.0, submitted_at=2.0, first_at=2.5, finished_at=2.5, replica=1)
    ticket = SimpleNamespace(
        came={"a": [1.2, 1.6, 2.0]}, done={"a": {"a": a}, "b": {"a": a, "b": b}}, replicas={"a": 0, "b": 1},
        submitted_at=0.5, prompt_tokens=2,
    )  # fmt: skip
    stages = {"a": StageInfo(number=0, name="a", kind="text"), "b": StageInfo(number=1, name="b", kind="audio")}
    return Results("r", ticket, stages, {name: RequestOutputKind[kind] for name, kind in kinds.items()})


def taken(made, outputs):
    return [each for each in map(made.take, outputs) if each is not None]


@pytest.mark.parametrize(
    ("kind", "texts", "tokens"),
    [
        ("DELTA", ["a", "b", "c"], [[0], [1], [2]]),
        ("CUMULATIVE", ["a", "ab", "abc"], [[0], [0, 1], [0, 1, 2]]),
        ("FINAL_ONLY", ["abc"], [[0, 1, 2]]),
    ],
)
def test_text_in_the_kind_asked_for(kind, texts, tokens):
    from vllm_omni.outputs import OmniRequestOutput

    found = taken(results(a=kind), natives("a", "b", "c"))
    assert all(type(each) is OmniRequestOutput for each in found)
    assert [each.outputs[0].text for each in found] == texts
    assert [each.outputs[0].token_ids for each in found] == tokens
    assert [each.finished for each in found] == [False] * (len(texts) - 1) + [True]
    assert {(each.request_id, each.stage_id, each.final_output_type, each.prompt) for each in found} == {
        ("r", 0, "text", "hi")
    }


@pytest.mark.parametrize(("kind", "lengths"), [("DELTA", [2, 3, None]), ("CUMULATIVE", [2, 5, 5]), ("FINAL_ONLY", [5])])
def test_sound_in_the_kind_asked_for(kind, lengths):
    """The last output has none: it says that it was the last."""
    found = taken(results(b=kind), sounds(2, 3, 0))
    audio = [(each.multimodal_output or {}).get("audio") for each in found]
    assert [None if each is None else len(each) for each in audio] == lengths
    assert found[-1].finished
    if kind == "FINAL_ONLY":
        assert audio[0].tolist() == [0, 0, 1, 1, 1]
        assert found[0].outputs[0].finish_reason == "stop"


def test_an_aborted_request_says_what_was_not_read():
    made = results(a="DELTA", b="DELTA")
    first, second, *_ = natives("a", "b", "c")
    made.take(first)
    end = made.abort("b", [second])
    assert (end.stage_id, end.finished, end.outputs[0].text) == (0, True, "b")
    assert end.outputs[0].finish_reason == "abort"


def test_an_aborted_request_whose_text_was_complete_ends_where_it_was_heading():
    made = results(a="FINAL_ONLY", b="DELTA")
    taken(made, natives("a", "b"))
    end = made.abort("b", [])
    assert (end.stage_id, end.final_output_type, end.outputs[0].finish_reason) == (1, "audio", "abort")


def test_metrics_are_vllm_omnis_measured_by_the_runtime():
    made = results(a="DELTA", b="DELTA")
    taken(made, natives("a", "b", "c"))
    last = taken(made, sounds(24_000))[-1]
    assert last.stage_durations == {"stage_0_gen_ms": 1000.0, "stage_1_gen_ms": 500.0}
    assert last.peak_memory_mb == 0.0
    assert last.metrics["stage_id"] == 1
    text, sound = last.metrics["stage_metrics"]["0"], last.metrics["stage_metrics"]["1"]
    assert (text["stage_name"], text["num_tokens_in"], text["num_tokens_out"]) == ("a", 2, 3)
    assert text["serving_time_to_first_output_ms"] == pytest.approx(700)
    assert text["inter_output_latencies_ms"] == pytest.approx([400, 400])
    assert text["finish_reason"] == "stop"
    assert (sound["audio_frames"], sound["audio_sample_rate"], sound["audio_duration_s"]) == (24_000, 24_000, 1.0)
    assert last.replica_id == 1


# ---------------------------------------------------------------------- routes


def rows():
    """``METHOD path``: what the table says of it."""
    found = {}
    for line in DOCS.read_text().splitlines():
        if match := re.match(r"\| `([A-Z]+) (\S+)` \| ([^|]+) \|", line):
            found[match[1], match[2]] = match[3].strip()
    return found


def test_the_table_has_every_route_of_theirs():
    from omni_actors_asyncio.server._omni_app import bare_app
    from omni_actors_asyncio.server._options import ServeOptions, vllm_args

    spec = PipelineSpec(name="m", stages=(StageSpec(name="a", engine="vllm-omni", model="m"),))
    app = bare_app(vllm_args(ServeOptions(spec=spec)), ("generate", "speech"), profiler=True)
    routes = {
        (method, route.path)
        for route in app.routes
        for method in getattr(route, "methods", None) or ("WS",)
        if method != "HEAD"
    }
    ours = {("GET", "/ready"), ("POST", "/v1/omni/abort")}
    assert set(rows()) == routes - {("WS", "/metrics")} | ours
    assert set(rows().values()) == {"works as is", "ours", "not yet"}
