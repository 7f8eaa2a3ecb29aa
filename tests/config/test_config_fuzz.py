"""Whatever a deploy file or an override contains, the result is a spec or a ConfigError."""

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors._errors import ConfigError
from omni_actors.config import PipelineSpec, resolve

VALID = """\
name: my-omni
limits: {max_requests: 100}
params: {talker: {temperature: 0.5}}
stages:
  thinker:
    engine: vllm
    engine_args: {max_model_len: 256, list: [1, {a: b}]}
    env: {OMP_NUM_THREADS: 1}
    devices: 0
    output: text
  talker: {engine: vllm, inputs: [thinker]}
  vocoder:
    engine: generation
    inputs: [{stage: talker, mode: segments, split: pkg.text:cut}]
    deadlines: {start_s: 120, hang_s: null}
    output: audio
"""
ENGINES = ("vllm", "generation")
FRAGMENTS = [
    "", " ", "\n", "  ", "- ", "{", "}", "[", "]", ": ", ",", "&a ", "*a", "!x ", "|", ">", "'", '"', "#", "---\n",
    "\t", "null", "true", "on", "-1", "0", "1e999", ".nan", "9" * 30, "<<", "\\ud800", '"\\uD800"', '"\\0"', "\x00",
    "é", "💥", "%", "?",
]  # fmt: skip


def outcome(target, overrides=()):
    """The spec, or the words of the refusal; anything else comes out as itself."""
    try:
        resolved = resolve(target, overrides, engines=ENGINES)
    except ConfigError as error:
        return str(error)
    assert resolved.rows()
    return resolved.spec


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes a deploy file and returns its path."""
    file = tmp_path_factory.mktemp("fuzz") / "deploy.yaml"

    def put(data):
        file.write_bytes(data)
        return str(file)

    return put


@given(seed=st.integers(0, 2**32), edits=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_a_mutated_file_is_a_spec_or_an_error_with_its_file(write, seed, edits):
    rng, text = random.Random(seed), VALID
    for _ in range(edits):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(FRAGMENTS) + text[at + rng.choice((0, 0, 1, 3, 12)) :]
    result = outcome(write(text.encode("utf-8", "surrogatepass")))
    assert isinstance(result, PipelineSpec) or "deploy.yaml" in result


@given(lines=st.permutations(VALID.splitlines()), kept=st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_shuffled_lines_are_a_spec_or_an_error(write, lines, kept):
    outcome(write("\n".join(lines[:kept]).encode()))


@given(data=st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_refused(write, data):
    assert isinstance(outcome(write(data)), str)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters, max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = st.sampled_from([
    "thinker", "thinker.name", "thinker.engine", "thinker.engine_args", "thinker.env", "thinker.devices",
    "thinker.model", "talker.inputs", "talker.inputs[0]", "talker.params", "vocoder.deadlines",
    "vocoder.deadlines.hang_s", "limits", "vocoder.inputs[0].mode", "stages", "stages.thinker", "name", "drain_s",
    "description", "thinker.cheap",
])  # fmt: skip


@given(path=PATHS | st.text(max_size=12), value=VALUES.map(repr) | st.text(max_size=16))
@settings(max_examples=200, deadline=None)
def test_any_override_is_a_spec_or_an_error(write, path, value):
    outcome(write(VALID.encode()), [f"{path}={value}"])


@given(target=st.text(max_size=12))
@settings(max_examples=50, deadline=None)
def test_any_target_is_refused(target):
    assert isinstance(outcome(target), str)
