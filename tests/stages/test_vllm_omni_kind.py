"""The engine kind ``vllm-omni`` as far as it goes without vLLM-Omni: what it refuses, what it sends, what it names."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import msgspec
import numpy as np
import pytest
import torch

from omni_actors._errors import ConfigError
from omni_actors.config import Deadlines, StageSpec, load_object
from omni_actors.lifecycle import RequestView, StageResult
from omni_actors.vllm_omni import KIND, HandedOver, _kind, handed_over
from omni_actors.vllm_omni._names import name_of
from omni_actors.vllm_omni._wire import _Sounds
from omni_actors.vllm_omni.cpu import register
from omni_actors.vllm_omni.diffusion import KIND as DIFFUSION

SPEC = StageSpec(name="thinker", engine="vllm-omni", model="org/model", engine_args={"stage_id": 1, "dtype": "float32"})


@pytest.fixture
def installed(monkeypatch):
    def install(version):
        monkeypatch.setattr(_kind, "version", lambda package: version)

    return install


def test_without_vllm_omni_it_says_what_to_install():
    with pytest.raises(ConfigError, match="vLLM-Omni is not installed") as caught:
        KIND.check(SPEC)
    assert "omni-actors[omni]" in str(caught.value)
    assert caught.value.path == "stages.thinker.engine"


def test_another_version_is_refused_with_the_one_that_works(installed):
    installed("0.31.0")
    with pytest.raises(ConfigError, match=r"vLLM-Omni 0\.31\.0 is installed") as caught:
        KIND.check(SPEC)
    assert "runs vLLM-Omni 0.30" in str(caught.value)
    installed("0.30.2")
    KIND.check(SPEC)


def test_a_stage_that_nobody_numbered_is_refused(installed):
    installed("0.30.0")
    with pytest.raises(ConfigError, match="which of the model's stages") as caught:
        KIND.check(StageSpec(name="thinker", engine="vllm-omni", model="org/model"))
    assert caught.value.path == "stages.thinker.engine_args.stage_id"


def test_an_engine_is_launched_with_data():
    launch = KIND.launch(SPEC, {"handshake": "ipc://h"}, replica=1, generation=2)
    assert launch.argv[1:] == ("-m", "omni_actors.vllm_omni.stage_core")
    told = msgspec.msgpack.decode(launch.payload)
    assert told.pop("env")["VLLM_OMNI_REPLICA_ID"] == "1"
    assert told == {
        "model": "org/model", "options": {"dtype": "float32"}, "stage_id": 1, "replica": 1, "devices": None,
        "handshake": "ipc://h",
    }  # fmt: skip


def test_a_diffusion_engine_is_launched_with_data(installed):
    installed("0.30.0")
    DIFFUSION.check(SPEC)
    spec = attrs.evolve(SPEC, devices="4")
    launch = DIFFUSION.launch(spec, {"address": "ipc://a", "identity": "i"}, replica=1, generation=2)
    assert launch.argv[-2:] == ("-m", "omni_actors.engines.generation")
    told = msgspec.msgpack.decode(launch.payload)
    assert told["env"]["VLLM_OMNI_REPLICA_ID"] == "1"
    assert told["class"] == "omni_actors.vllm_omni.diffusion:OmniDiffusion"
    args = {"model": "org/model", "options": {"dtype": "float32"}, "stage_id": 1, "devices": "4"}
    assert told["args"] == args
    assert (told["address"], told["identity"]) == ("ipc://a", "i")


def test_a_diffusion_stage_is_refused_for_the_same_reasons():
    with pytest.raises(ConfigError, match="vLLM-Omni is not installed"):
        DIFFUSION.check(SPEC)


def launched(spec):
    launch = KIND.launch(spec, {"handshake": "ipc://h"}, replica=0, generation=1)
    return launch.env, msgspec.msgpack.decode(launch.payload)


def test_an_engine_is_told_its_devices_for_platforms_with_a_variable_of_their_own():
    environment, told = launched(attrs.evolve(SPEC, devices="4,5"))
    assert (environment["CUDA_VISIBLE_DEVICES"], told["devices"]) == ("4,5", "4,5")


def test_the_deadline_of_an_edge_is_also_that_of_vllm_omnis_own_waiting(monkeypatch):
    name = "VLLM_OMNI_INPUT_WAIT_TIMEOUT_S"
    monkeypatch.delenv(name, raising=False)
    spec = attrs.evolve(SPEC, deadlines=Deadlines(edge_s=90))
    assert launched(spec)[0][name] == "90"
    assert launched(attrs.evolve(spec, env={name: "5"}))[0][name] == "5"
    monkeypatch.setenv(name, "7")
    assert name not in launched(spec)[0]


def test_a_deploy_file_alone_cannot_be_run(installed):
    installed("0.30.0")
    with pytest.raises(ConfigError, match="a deploy file has no model; --model") as caught:
        KIND.check(attrs.evolve(SPEC, model=""))
    assert caught.value.path == "stages.thinker.model"


def test_what_is_no_data_cannot_be_launched_with():
    spec = StageSpec(name="s", engine="vllm-omni", model="m", engine_args={"stage_id": 0, "hook": object()})
    with pytest.raises(ConfigError, match="plain data") as caught:
        KIND.launch(spec, {"handshake": "ipc://h"}, replica=0, generation=1)
    assert caught.value.path == "stages.s.engine_args"


def test_the_outputs_before_are_handed_over_with_what_the_user_said():
    first, second = object(), object()
    upstream = {"a": StageResult(stage="a", native=first), "b": StageResult(stage="b", native=second)}
    view = RequestView("me", {"prompt": "hi"}, ("audio",), {})
    given = handed_over(upstream, view)
    assert given == HandedOver(sources=(first, second), prompt={"prompt": "hi"}, modalities=("audio",))
    assert handed_over({}, view).sources == ()


def test_the_functions_between_stages_get_a_text_as_a_mapping():
    view = RequestView("me", "hi", (), {})
    assert handed_over({"a": StageResult(stage="a", native=object())}, view).prompt == {"prompt": "hi"}
    assert handed_over({}, view).prompt == "hi"


def test_what_companions_made_is_handed_over_by_role():
    main, beside = object(), object()
    made = StageResult(stage="a", native=main, companions={"cfg_text": StageResult(stage="a", native=beside)})
    given = handed_over({"a": made}, RequestView("me", "hi", (), {}))
    assert (given.sources, dict(given.companions)) == ((main,), {"cfg_text": beside})


def test_the_transform_of_its_stages_can_be_found_by_its_path():
    assert load_object("omni_actors.vllm_omni:handed_over") is handed_over


def test_all_leases_of_a_request_have_one_name():
    assert {name_of(f"1f-5aa79c-{stage}") for stage in range(3)} == {"1f-5aa79c"}
    assert name_of("1f-5aa79c-0-c1") == name_of("1f-5aa79c") == "1f-5aa79c"


class Sink:
    def __init__(self):
        self.got = []

    def put(self, output, payload=None):
        self.got.append(payload)


def output(made, *, finished=False):
    choice = SimpleNamespace(multimodal_output=made, finish_reason="stop" if finished else None)
    return SimpleNamespace(outputs=[choice], finished=finished)


def test_what_a_stage_of_sound_makes_is_samples():
    sink = Sink()
    sounds = _Sounds(sink, 16_000)
    sounds.put(output({"audio": [torch.ones(1, 2), torch.zeros(1)], "sr": [torch.tensor(24_000)]}))
    sounds.put(output({"audio": torch.ones(3)}, finished=True))
    sounds.put(output(None, finished=True))
    first, second, third = sink.got
    assert first.tensors["audio"].tolist() == [1.0, 1.0, 0.0]
    assert first.tensors["audio"].dtype == np.float32
    assert (first.meta, first.finish_reason) == ({"sample_rate": 24_000}, None)
    assert (second.tensors["audio"].shape, second.meta, second.finish_reason) == ((3,), {"sample_rate": 16_000}, "stop")
    assert (third.tensors, third.finish_reason) == ({}, "stop")


def test_the_platform_for_cpus_is_there_where_vllm_is_built_for_one():
    assert register() == "omni_actors.vllm_omni.cpu.platform.CPUOmniPlatform"
