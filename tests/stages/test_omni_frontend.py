"""OmniFrontend and OmniKind: what can be asked, and what starts a child."""

from __future__ import annotations

import sys

import msgspec
import numpy as np
import pytest

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.config.specs import StageSpec
from omni_actors.stages.omni import KIND, OmniFrontend
from omni_actors.testing._omni_kind import FakeOmniKind
from omni_actors.wire import omni as wire

MODEL = "omni_actors.engines.generation:Generator"


def spec(**changes):
    return StageSpec(**{"name": "voice", "engine": "generation", "model": MODEL, **changes})


def prepare(prompt, given=None, keys=("k",), **changes):
    return OmniFrontend(spec(**changes)).prepare(keys, prompt, given, stream=True, text=False, priority=2)


def test_samples_get_an_index_each_and_no_n():
    works = prepare({"x": 1}, {"n": 2, "seed": 7}, keys=("k-s0", "k-s1"))
    assert [w.body for w in works] == [
        wire.Submit("k-s0", {"x": 1}, {"seed": 7}, 0, 2),
        wire.Submit("k-s1", {"x": 1}, {"seed": 7}, 1, 2),
    ]
    assert [(w.key, w.index, w.text) for w in works] == [("k-s0", 0, False), ("k-s1", 1, False)]


def test_defaults_fill_and_fixed_params_win():
    (made,) = prepare([1], {"a": 1, "c": 1}, params={"a": 0, "b": 0}, fixed_params={"c": 9})
    assert made.body.params == {"a": 1, "b": 0, "c": 9}


@pytest.mark.parametrize("prompt", [{"a": [1, b"b", None]}, [], "text", b"raw", (1, 2), np.zeros(3), {}])
def test_prompts_that_are_taken(prompt):
    assert OmniFrontend(spec()).check(prompt, None) == 1
    assert len(prepare(prompt)) == 1


def test_the_callers_array_may_change_afterwards():
    array = np.ones(4, dtype=np.float32)
    (made,) = prepare({"deep": [{"x": array}]})
    array[:] = 0
    assert made.body.prompt["deep"][0]["x"].numpy().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        (None, None, "a prompt of type NoneType"),
        (3, None, "a prompt of type int"),
        ([1], [2], "params must be a mapping, not list"),
        ([1], {"n": 0}, "n must be a whole number from 1"),
        ([1], {"n": True}, "n must be"),
        ([1], {"n": "2"}, "n must be"),
        ({"x": object()}, None, "cannot send a value of type object"),
        ({"x": 2**70}, None, "ints"),
        ([1], {"f": print}, "cannot send"),
        (np.array(["a"]), None, "cannot travel"),
        ("\ud800", None, "surrogates"),
    ],
)
def test_what_cannot_be_asked_is_said_clearly(prompt, params, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        prepare(prompt, params)
    assert caught.value.stage == "voice"
    assert caught.value.message.startswith("stage voice: ")


def test_a_bottomless_prompt_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(InvalidRequest, match="recursion"):
        prepare(loop)


def test_large_prompts_are_heavy():
    frontend = OmniFrontend(spec())
    assert frontend.heavy({"image": np.zeros(1 << 20)})
    assert frontend.heavy(list(range(100_000)))
    assert frontend.heavy("x" * (1 << 21))
    assert not frontend.heavy({"phonemes": [1] * 400})


def test_launch_is_data_for_the_child():
    made = spec(engine_args={"rate": 3, "max_batch": 2}, env={"A": "b"}, devices="0,1")
    launch = KIND.launch(made, {"address": "mem://x", "identity": "voice-1-4"}, replica=1, generation=4)
    assert launch.argv == (sys.executable, "-u", "-m", "omni_actors.engines.generation")
    assert launch.env == {"A": "b", "CUDA_VISIBLE_DEVICES": "0,1"}
    payload = msgspec.msgpack.decode(launch.payload)
    assert payload.pop("path")
    assert payload == {
        "env": {"A": "b", "CUDA_VISIBLE_DEVICES": "0,1"}, "address": "mem://x", "identity": "voice-1-4",
        "class": MODEL, "args": {"rate": 3}, "max_batch": 2,
    }  # fmt: skip


def test_another_interpreter_keeps_its_own_path():
    launch = KIND.launch(spec(python="other"), {}, replica=0, generation=1)
    assert launch.argv[0] == "other"
    assert msgspec.msgpack.decode(launch.payload)["path"] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "no_colon"}, "not the path of a class; write model as 'package.module:Class'"),
        ({"model": ":Class"}, "not the path of a class"),
        ({"model": "json:not a name"}, "not the path of a class"),
        ({"model": "nowhere.module:Class"}, "there is no module 'nowhere.module'; write model as"),
        ({"model": "json.nothing:Class"}, "there is no module 'json.nothing'"),
        ({"engine_args": {"max_batch": 0}}, "max_batch must be a whole number from 1, not 0"),
        ({"engine_args": {"f": object()}}, "engine_args: .*; arguments are plain values"),
    ],
)
def test_wrong_specs_are_found_before_anything_starts(changes, words):
    with pytest.raises(ConfigError, match=words):
        KIND.check(spec(**changes))


def test_check_does_not_import_the_module():
    sys.modules.pop("this", None)
    KIND.check(spec(model="this:Zen"))
    assert "this" not in sys.modules


def test_the_fake_kind_checks_its_behaviour():
    FakeOmniKind().check(spec(engine_args={"chunks": 4}))
    with pytest.raises(ConfigError, match="chunk_s"):
        FakeOmniKind().check(spec(engine_args={"chunk_s": "fast"}))
    with pytest.raises(ConfigError, match="speed"):
        FakeOmniKind().check(spec(engine_args={"speed": 1}))
