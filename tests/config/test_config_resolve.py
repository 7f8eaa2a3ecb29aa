"""Resolving: precedence, the source of every value, the forms a file may take, and what must not be shown."""

import os
import time

import pytest

from omni_actors._errors import ConfigError
from omni_actors.config import (
    Deadlines,
    InputSpec,
    Limits,
    PipelineSpec,
    Resolved,
    StageSpec,
    load_object,
    load_pipeline,
    resolve,
    stage_environment,
    validate,
)  # fmt: skip

ENGINES = ("vllm", "generation")

TWO = PipelineSpec(
    name="two",
    stages=(
        StageSpec(
            name="thinker", engine="vllm", model="org/thinker", engine_args={"max_model_len": 64, "seed": 7},
            params={"stop_token_ids": [1, 2], "seed": 0}, output="text",
        ),
        StageSpec(name="vocoder", engine="generation", inputs=(InputSpec(stage="thinker"),), output="audio"),
    ),
    limits=Limits(max_requests=8),
)  # fmt: skip


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """One pipeline, ``two``, and two engine kinds."""
    names = {"omni_actors.pipelines": {"two": "pipes.two:made"}, "omni_actors.engines": dict.fromkeys(ENGINES, "")}
    for module in ("_registry", "_sources", "_validate"):
        monkeypatch.setattr(f"omni_actors.config.{module}.registered", names.__getitem__)
    monkeypatch.setattr("omni_actors.config._registry.load_object", {"pipes.two:made": lambda: TWO}.__getitem__)


@pytest.fixture
def deploy(tmp_path):
    """Writes a deploy file and returns its path."""

    def write(text):
        file = tmp_path / "deploy.yaml"
        file.write_text(text)
        return str(file)

    return write


def sources(resolved: Resolved):
    """Where each value came from, by path."""
    return {row.path: (row.value, row.source) for row in resolved.rows()}


def test_a_pipeline_resolves_to_itself():
    assert resolve("two").spec == TWO


def test_each_layer_overrides_the_one_below_key_by_key(deploy):
    file = deploy(
        "pipeline: two\ndrain_s: 9\nstages:\n  thinker:\n    engine_args: {seed: 8, dtype: float32}\n    replicas: 2\n"
    )
    resolved = resolve(file, ["thinker.engine_args.seed=9", "thinker.replicas=3", "limits.max_bytes=1_000"])
    shown = sources(resolved)
    assert shown["thinker.engine_args.max_model_len"] == (64, "pipeline two")
    assert shown["thinker.engine_args.dtype"] == ("float32", "deploy.yaml:5")
    assert shown["thinker.engine_args.seed"] == (9, "--set")
    assert shown["thinker.replicas"] == (3, "--set")
    assert shown["thinker.deadlines.start_s"] == (600.0, "default")
    assert shown["limits.max_requests"] == (8, "pipeline two")
    assert shown["limits.max_bytes"] == (1000, "--set")
    assert shown["drain_s"] == (9.0, "deploy.yaml:2")
    assert shown["name"] == ("two", "pipeline two")
    assert resolved.spec.stage("thinker").engine_args == {"max_model_len": 64, "seed": 9, "dtype": "float32"}


def test_a_seed_keeps_the_stages_stop_tokens(deploy):
    file = deploy("pipeline: two\nparams:\n  thinker: {seed: 5}\n")
    shown = sources(resolve(file))
    assert shown["thinker.params.seed"] == (5, "deploy.yaml:3")
    assert shown["thinker.params.stop_token_ids"] == ([1, 2], "pipeline two")


def test_later_overrides_win():
    assert resolve("two", ["drain_s=1", "drain_s=2"]).spec.drain_s == 2.0


def test_overrides_reach_into_lists_and_take_flow_values():
    spec = resolve("two", [
        "vocoder.inputs[0].mode=segments", "vocoder.inputs[0].split=pkg.text:cut", "thinker.env={A: 1, B: 1.10}",
        "thinker.devices=0", "stages.thinker.deadlines.hang_s=12", "name=other",
    ]).spec  # fmt: skip
    assert spec.stage("vocoder").inputs == (InputSpec(stage="thinker", mode="segments", split="pkg.text:cut"),)
    assert spec.stage("thinker").env == {"A": "1", "B": "1.10"}
    assert spec.stage("thinker").devices == "0"
    assert spec.stage("thinker").deadlines == Deadlines(hang_s=12.0)
    assert spec.name == "other"


def test_the_rows_can_be_given_back_as_overrides():
    rows = [row for row in resolve("two", ["thinker.replicas=2"]).rows() if row.source != "default"]
    again = [f"{row.path}={row.value}" for row in rows if not isinstance(row.value, dict | list)]
    assert resolve("two", [*again, "thinker.replicas=2"]).spec == resolve("two", ["thinker.replicas=2"]).spec


def test_a_file_of_its_own_with_a_list_of_stages_is_named_after_itself(deploy):
    spec = resolve(
        deploy("stages:\n- {name: a, engine: vllm}\n- {name: b, engine: vllm, inputs: [a], output: text}\n")
    ).spec
    assert spec == PipelineSpec(
        name="deploy",
        stages=(
            StageSpec(name="a", engine="vllm"),
            StageSpec(name="b", engine="vllm", inputs=(InputSpec(stage="a"),), output="text"),
        ),
    )


def test_a_stage_can_be_added_to_a_pipeline_but_not_misspelt(deploy):
    added = "pipeline: two\nstages:\n  painter: {engine: generation, inputs: [thinker], output: image}\n"
    assert [stage.name for stage in resolve(deploy(added)).spec.stages] == ["thinker", "vocoder", "painter"]
    with pytest.raises(ConfigError, match=r"deploy.yaml:3: .*unknown stage 'thinkr'; did you mean 'thinker'"):
        resolve(deploy("pipeline: two\nstages:\n  thinkr: {replicas: 2}\n"))


def test_models_are_relative_to_the_file(deploy, tmp_path):
    (tmp_path / "models" / "a").mkdir(parents=True)
    stage = "{engine: vllm, output: text, model: "
    file = deploy(f"stages: {{a: {stage}./models/a}}, b: {stage}models/a}}, c: {stage}org/name}}}}\n")
    spec = resolve(os.path.relpath(file)).spec
    assert [stage.model for stage in spec.stages] == [f"{tmp_path}/models/a", f"{tmp_path}/models/a", "org/name"]


def test_scalars_are_yaml_1_2(deploy):
    values = "{a: 0x1F, b: 1e3, c: ~, d: 2024-01-01, e: 1:30, f: True, g: 'on', h: -.5, i: y, j: 1_000, k: 0o17}"
    file = deploy(f"stages: {{a: {{engine: vllm, output: text, engine_args: {values}}}}}\n")
    assert resolve(file).spec.stages[0].engine_args == {
        "a": 31, "b": 1000.0, "c": None, "d": "2024-01-01", "e": "1:30", "f": True, "g": "on", "h": -0.5, "i": "y",
        "j": 1000, "k": 15,
    }  # fmt: skip


def test_the_environment_difference_hides_secrets_and_names_only_changes(deploy):
    env = "{HF_TOKEN: hunter2, KEPT: same, URL: 'redis://me:hunter2@host/0', OMP_NUM_THREADS: 1}"
    resolved = resolve("two", [f"thinker.env={env}", "thinker.devices='0,1'", "thinker.engine_args.api_key=hunter2"])
    changes = resolved.environment({"KEPT": "same", "HF_TOKEN": "hunter1", "OMP_NUM_THREADS": "8"})
    assert {(change.stage, change.name, change.before, change.after) for change in changes} == {
        ("thinker", "CUDA_VISIBLE_DEVICES", None, "0,1"),
        ("thinker", "HF_TOKEN", "***", "***"),
        ("thinker", "URL", None, "redis://***@host/0"),
        ("thinker", "OMP_NUM_THREADS", "8", "1"),
    }
    assert "hunter" not in str(resolved.rows())
    assert sources(resolved)["thinker.params.stop_token_ids"][0] == [1, 2]
    assert stage_environment(resolved.spec.stage("thinker"))["HF_TOKEN"] == "hunter2"


def test_resolving_is_fast(deploy):
    file = deploy("pipeline: two\nstages:\n  thinker:\n    replicas: 2\n")
    resolve(file)
    began = time.perf_counter()
    resolve(file)
    assert time.perf_counter() - began < 0.05


def test_validate_names_the_path_of_a_spec_made_in_python():
    twice = PipelineSpec(name="p", stages=(TWO.stages[0], TWO.stages[0]))
    with pytest.raises(ConfigError, match=r"^\$\.stages\[1\]\.name: two stages are called 'thinker'"):
        validate(twice)
    odd = PipelineSpec(name="p", stages=(StageSpec(name="a", engine="vllm", output="smell"),))
    with pytest.raises(ConfigError, match=r"\$\.stages\.a\.output: unknown modality 'smell'") as caught:
        validate(odd)
    assert caught.value.stage == "a"
    validate(PipelineSpec(name="p", stages=(StageSpec(name="a", engine="mine", output="text"),)), engines={"mine"})


def test_a_dotted_path_leads_to_the_object_or_to_the_nearest_name():
    assert load_object("os.path:join") is os.path.join
    assert load_object("omni_actors.config.specs:PipelineSpec.stage") is PipelineSpec.stage
    for path, says in {
        "os.path:jion": "posixpath has no 'jion'; did you mean 'join'?",
        "omni_actors.confgi:x": "there is no module 'omni_actors.confgi'; did you mean 'config'?",
        "no_such_package_here:x": "there is no module 'no_such_package_here'",
        "os.path.join": "is not a dotted path; write package.module:name",
        "os:path:join": "is not a dotted path",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_object(path)
        assert says in str(caught.value)
        assert caught.value.path == path


def test_a_module_that_fails_to_import_is_told_with_its_cause(tmp_path, monkeypatch):
    (tmp_path / "broken_transform_mod.py").write_text("1 / 0\n")
    (tmp_path / "needy_transform_mod.py").write_text("import no_such_dependency_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="importing 'broken_transform_mod' failed: ZeroDivisionError") as caught:
        load_object("broken_transform_mod:f")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ConfigError, match="importing 'needy_transform_mod' failed: No module named"):
        load_object("needy_transform_mod:f")


def test_a_pipeline_that_is_none_or_that_raises_is_refused(monkeypatch):
    def angry():
        raise RuntimeError("no weights")

    monkeypatch.setattr(
        "omni_actors.config._registry.load_object", {"a.b:angry": angry, "a.b:text": "hello"}.__getitem__
    )
    with pytest.raises(ConfigError, match=r"pipeline 'a\.b:angry' failed: RuntimeError: no weights"):
        load_pipeline("a.b:angry")
    with pytest.raises(ConfigError, match="is a str, not a PipelineSpec"):
        load_pipeline("a.b:text")
