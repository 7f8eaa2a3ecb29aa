"""The wire against four versions of vLLM: what each one's own classes say, and what they read in our frames.

Recorded by ``tools/golden/record.py`` with each version; only the installed one runs here.
"""

from __future__ import annotations

import inspect
import itertools
import json
import warnings
from pathlib import Path

import msgspec
import pytest

from omni_actors.stages.vllm import _conversation
from omni_actors.testing import _core_wire as twin
from omni_actors.testing._core_wire import FakeAdd, FakeCoreCodec, FakeOutput, FakeOutputs, FakeParams
from omni_actors.wire.vllm import Handshake, codec
from omni_actors.wire.vllm.shortcut import Shortcut

GOLDEN = {
    path.stem.removeprefix("vllm-"): json.loads(path.read_text())
    for path in sorted(Path(__file__).parents[1].glob("golden/vllm-*.json"))
}
VERSIONS = list(GOLDEN)

CALLS = [
    ("is_sleeping", ()),
    ("has_work", ()),
    ("get_supported_tasks", ()),
    ("pause_scheduler", ("abort", True)),
    ("resume_scheduler", ()),
    ("is_scheduler_paused", ()),
    ("sleep", (1, "keep")),
    ("wake_up", (["weights"],)),
    ("reset_mm_cache", ()),
    ("reset_encoder_cache", ()),
    ("reset_prefix_cache", (True, False)),
    ("profile", (True, "prefix")),
    ("profile", (False,)),
    ("add_lora", ({},)),
    ("remove_lora", (1,)),
    ("list_loras", ()),
    ("pin_lora", (1,)),
    ("collective_rpc", ("method", 1.0, (), {})),
    ("set_weight_version", ("v",)),
    ("get_weight_version", ()),
]
"""Every method of the engine that we call, as we call it."""
SINCE_0_32 = [
    ("release_kv_cache_memory", ()),
    ("compute_weight_checksums", ()),
    ("profile", (True, "prefix", 1, 2)),
]


@pytest.fixture(params=VERSIONS)
def golden(request):
    return GOLDEN[request.param]


def frames(golden, name):
    return [bytes.fromhex(frame) for frame in golden["says"][name]]


@pytest.fixture(scope="module")
def installed():
    pytest.importorskip("vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return codec.EngineCoreCodec()


def test_each_struct_grew_at_its_end_only():
    for older, newer in itertools.pairwise(VERSIONS):
        for name in ("EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs", "UtilityOutput"):
            fields = GOLDEN[older]["structs"][name]
            assert GOLDEN[newer]["structs"][name][: len(fields)] == fields, (older, newer, name)


def test_the_twins_fields_are_where_every_version_has_them(golden):
    for ours, theirs in ((FakeAdd, "EngineCoreRequest"), (FakeOutput, "EngineCoreOutput"),
                         (FakeOutputs, "EngineCoreOutputs")):  # fmt: skip
        fields = golden["structs"][theirs]
        known = ours.__struct_fields__
        assert [name for name, place in zip(known, fields, strict=False) if name != place] == []


def test_the_meaning_of_every_output_field_is_known(golden):
    assert Shortcut({}, golden["structs"]["EngineCoreOutput"])._usable


def test_numbers_mean_the_same(golden):
    reasons = golden["finish_reasons"]
    assert [reasons[name] for name in _conversation._FINISH_REASONS] == list(range(len(reasons)))
    assert (reasons["abort"], reasons["error"]) == (codec.FINISH_ABORT, codec.FINISH_ERROR)
    kinds = {name: bytes.fromhex(value) for name, value in golden["request_types"].items()}
    assert (kinds["ADD"], kinds["ABORT"], kinds["UTILITY"]) == (twin.ADD, twin.ABORT, twin.UTILITY)


def test_it_reads_our_requests_and_addresses(golden):
    params = FakeParams(max_tokens=4, stop=["x"], output_kind=1)
    ours = FakeAdd("k", [1], None, params, None, 1.0, None, None, None, priority=2, external_req_id="k")
    read = golden["reads"]["add"]
    assert [frame.hex() for frame in FakeCoreCodec().encode_add(ours)] == read["frames"]
    add = read["says"]
    assert (add["request_id"], add["prompt_token_ids"], add["priority"]) == ("k", [1], 2)
    assert (add["external_req_id"], add["arrival_time"], add.get("client_index", 0)) == ("k", 1.0, 0)
    assert (add["sampling_params"]["max_tokens"], add["sampling_params"]["stop"]) == (4, ["x"])

    hello = msgspec.msgpack.encode({"status": "HELLO", "local": True, "headless": False})
    reply = Handshake(input_address="ipc://i", output_address="ipc://o").on_handshake([b"\0\0", hello])
    assert reply[1].hex() == golden["reads"]["init"]["frames"][0]
    assert golden["reads"]["init"]["says"] == {"inputs": ["ipc://i"], "outputs": ["ipc://o"]}


def test_we_read_its_readiness(golden):
    handshake = Handshake(input_address="ipc://i", output_address="ipc://o")
    handshake.on_handshake([b"\0\0", msgspec.msgpack.encode({"status": "HELLO"})])
    handshake.on_input([b"\0\0", *frames(golden, "ready")])
    assert (handshake.response.max_model_len, handshake.response.num_gpu_blocks) == (128, 7)
    assert (handshake.response.block_size, handshake.response.vllm_version) == (16, "1")


@pytest.mark.parametrize("reader", ["installed", "twin"])
def test_we_read_its_steps_and_answers(golden, reader, installed):
    decode = (installed if reader == "installed" else FakeCoreCodec()).decode_outputs
    step = decode(frames(golden, "step"))
    first, second, third = step.outputs
    assert (first.request_id, first.new_token_ids, first.finish_reason, step.timestamp) == ("k-1", [9], None, 3.5)
    assert (second.finish_reason, second.stop_reason) == (0, 7)
    assert (third.finish_reason, third.mm_cache_miss_hashes) == (codec.FINISH_ERROR, ["aa"])
    answer = decode(frames(golden, "answer")).utility_output
    assert (answer.call_id, answer.failure_message, answer.result.result) == (5, None, [True, "x"])
    refusal = decode(frames(golden, "refusal")).utility_output
    assert (refusal.call_id, refusal.failure_message, refusal.result) == (6, "Server shutting down", None)


def test_we_read_its_numbers_and_tensors(golden, installed):
    stats = installed.decode_outputs(frames(golden, "step")).scheduler_stats
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (3, 2, 0.5)
    (output,) = installed.decode_outputs(frames(golden, "logprobs")).outputs
    assert output.new_logprobs.logprob_token_ids.tolist() == [[1, 2]]
    (output,) = installed.decode_outputs(frames(golden, "pooled")).outputs
    assert output.pooling_output.tolist() == [0.5, 0.25]


def test_its_request_begins_as_the_installed_ones_does(golden, installed):
    """A version appends fields to the array; what is there keeps its place."""
    from .test_vllm_codec import request

    theirs = msgspec.msgpack.decode(frames(golden, "add")[0])
    ours = msgspec.msgpack.decode(installed.encode_add(request())[1])
    shorter = min(len(theirs), len(ours))
    assert theirs[:shorter] == ours[:shorter]


@pytest.mark.parametrize(("method", "args"), CALLS)
def test_every_engine_has_the_methods_that_we_call(golden, method, args):
    assert_binds(golden["engine"], method, args)


@pytest.mark.parametrize(("method", "args"), SINCE_0_32)
@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= "0.32"])
def test_newer_engines_have_more(version, method, args):
    assert_binds(GOLDEN[version]["engine"], method, args)


def test_what_we_feed_its_processors_and_loggers_is_what_they_take(golden):
    processors = golden["processor"]
    outputs = ([], 1.0, None) if golden["version"] < "0.32" else ([], 1.0, None, "version")
    assert_binds(processors["OutputProcessor"], "process_outputs", outputs)
    assert_binds(processors["OutputProcessor"], "add_request", (None, None, None, 0, None))
    assert_binds(processors["OutputProcessor"], "abort_requests", ([], True))
    assert_binds(processors["IterationStats"], "update_from_output", (None, 1.0, True, None, None, None))
    finished = ("reason", "key", 1, None, None, 0)
    assert_binds(processors["IterationStats"], "update_from_finished_request", finished)
    names = [name for name, _, _ in processors["IterationStats"]["update_from_finished_request"]["takes"]]
    assert names == ["finish_reason", "request_id", "num_prompt_tokens", "max_tokens_param", "req_stats",
                     "num_cached_tokens"]  # fmt: skip
    assert_binds(processors["LoRARequestStates"], "request_finished", ("key", None))
    assert_binds(processors["StatLoggerManager"], "record", (None, None, None, 0))
    made = {"vllm_config", "engine_idxs", "custom_stat_loggers", "enable_default_loggers"}
    assert made <= {name for name, _, _ in processors["StatLoggerManager"]["__init__"]["takes"]}
    assert {"_gauge_cls", "_counter_cls", "_histogram_cls"} <= set(processors["PrometheusStatLogger"])


def assert_binds(members, method, args):
    kinds = inspect.Parameter
    takes = [
        kinds(name, getattr(kinds, kind), default=kinds.empty if default is None else default)
        for name, kind, default in members[method]["takes"]
    ]
    inspect.Signature(takes).bind(*args)
