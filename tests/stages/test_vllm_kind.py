"""VllmKind: what can be said about a stage before anything is started."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings

import msgspec
import pytest

from omni_actors._errors import ConfigError
from omni_actors.config.specs import StageSpec
from omni_actors.stages.vllm import KIND
from omni_actors.stages.vllm._known import known_engine_args, known_sampling_params

pytest.importorskip("vllm")


def spec(tmp_path, **changes):
    return StageSpec(**{"name": "thinker", "engine": "vllm", "model": str(tmp_path)} | changes)


def test_a_good_spec_passes(tmp_path):
    KIND.check(spec(tmp_path, engine_args={"max_model_len": 256}, params={"temperature": 0}))
    KIND.check(spec(tmp_path, model="Qwen/Qwen3-0.6B"))


@pytest.mark.parametrize("model", ["/no/such/folder", "./weights", "a/b/c", ""])
def test_a_missing_model_is_named(tmp_path, model):
    with pytest.raises(ConfigError) as caught:
        KIND.check(spec(tmp_path, model=model))
    assert "stages.thinker.model" in str(caught.value)
    assert model in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine_args": {"max_modle_len": 1}}, r"stages\.thinker\.engine_args\.max_modle_len.*'max_model_len'"),
        ({"params": {"temprature": 1}}, r"stages\.thinker\.params\.temprature.*'temperature'"),
        ({"fixed_params": {"stop_tokens": 1}}, r"stages\.thinker\.fixed_params\.stop_tokens.*'stop_token_ids'"),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        KIND.check(spec(tmp_path, **changes))


def test_the_names_read_from_the_source_are_vllms():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm import AsyncEngineArgs, SamplingParams

    assert known_engine_args() == {f.name for f in dataclasses.fields(AsyncEngineArgs) if not f.name.startswith("_")}
    assert known_sampling_params() == {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}


def test_the_child_gets_data_only(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    stage = spec(tmp_path, engine_args={"max_model_len": 64}, devices="0,1", env={"MY": "x"}, python="py")
    launch = KIND.launch(stage, {"handshake": "ipc://h"}, replica=1, generation=2)

    assert (launch.name, launch.generation) == ("thinker/1", 2)
    assert list(launch.argv) == ["py", "-m", "omni_actors.engines.core_proc"]
    payload = msgspec.msgpack.decode(launch.payload)
    assert payload["engine_args"] == {"model": str(tmp_path), "max_model_len": 64}
    assert (payload["handshake"], payload["log_stats"]) == ("ipc://h", False)
    assert payload["env"] == dict(launch.env)
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert launch.env["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert launch.env["MY"] == "x"
    assert "OMP_NUM_THREADS" not in launch.env
    assert "HF_HUB_OFFLINE" not in launch.env
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_several_replicas_share_no_sender_cache(tmp_path):
    launch = KIND.launch(spec(tmp_path, replicas=2), {"handshake": "h"}, replica=0, generation=1)
    assert msgspec.msgpack.decode(launch.payload)["engine_args"]["mm_processor_cache_gb"] == 0
    assert launch.argv[0] == sys.executable


def test_arguments_that_are_no_data_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="plain data"):
        KIND.launch(spec(tmp_path, engine_args={"f": object()}), {"handshake": "h"}, replica=0, generation=1)
