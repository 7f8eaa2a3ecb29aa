"""All deploy files of the installed vLLM-Omni: each becomes our graph, as its own resolver says, or is refused by name.

Nothing is started, and there are no weights: a model is a folder with a ``config.json``.
"""

from __future__ import annotations

import json
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from omni_actors import ConfigError
from omni_actors.config import resolve

DEPLOY = Path(find_spec("vllm_omni").origin).parent / "deploy"
FILES = sorted(file.name for file in DEPLOY.glob("*.yaml"))
KINDS = {"llm": "vllm-omni", "diffusion": "vllm-omni-diffusion"}

DUPLEX = "duplex sessions"
COMPANIONS = "companions"
REFUSED = {
    **dict.fromkeys(("Gr00tN1d7", "pi0", "pi05", "cosmos3_policy_droid"), "got the text 'action"),
    **dict.fromkeys(
        (
            "aura_omni", "minicpmo_4_5", "minicpmo_4_5_2gpu", "minicpmo_4_5_3gpu", "minicpmo_4_5_3gpu_stage1_replicas",
            "minicpmo_4_5_4gpu_stage1_replicas", "minicpmo_4_5_8x4090", "minicpmo_4_5_8x4090_stage1_replicas",
            "nemotron_labs_voicechat_duplex", "qwen3_omni_duplex",
        ),
        DUPLEX,
    ),
    **dict.fromkeys(
        (
            "audex_s2s", "audex_s2s_30b", "audex_tts", "audex_tts_30b", "breeze_tts", "breeze_tts_2",
            "breeze_tts_2_throughput", "breeze_tts_throughput", "minimax_music3", "minimax_music3_2gpu",
        ),
        COMPANIONS,
    ),
    "hunyuan-image-3-mooncakeconnector": "vLLM's own KV connectors",
    "hunyuan_image_3_moe": "MooncakeTransferEngineConnector",
    "minimax_h3_disaggregated_nixl": "NixlConnector",
    "minimax_h3_disaggregated_turbo_nixl": "NixlConnector",
    "qwen3_omni_moe_mori_intranode": "MoriTransferEngineConnector",
    "qwen3_tts_forced_aligner": "forced_aligner",
}  # fmt: skip
"""By file: words of the refusal. What is not here becomes a graph."""

NAMED_OTHERWISE = {"qwen3_omni_duplex": "qwen3_omni_moe", "qwen3_omni_moe_mori_intranode": "qwen3_omni_moe",
                   "moss_sound_effect": "moss_tts_delay", "moss_ttsd": "moss_tts_delay",
                   "moss_voice_generator": "moss_tts_delay", "step_audio2_ci": "step_audio_2_asr"}  # fmt: skip


@pytest.fixture(autouse=True)
def no_second_try(monkeypatch):
    """Where transformers does not know a type, vLLM asks again after two seconds."""
    from vllm.transformers_utils import repo_utils

    monkeypatch.setattr(repo_utils, "time", types.SimpleNamespace(sleep=lambda seconds: None))


def pipeline_of(file):
    """The key of the registry that ``file`` is for: its own word, or that of the file whose name is how its begins."""
    from vllm_omni.config.pipeline_registry import OMNI_PIPELINES
    from vllm_omni.config.stage_config import resolve_deploy_yaml

    said = resolve_deploy_yaml(DEPLOY / file).get("pipeline") or NAMED_OTHERWISE.get(Path(file).stem)
    if said:
        return said
    keys = {}
    for key, pipeline in OMNI_PIPELINES.items():
        keys[Path(getattr(pipeline, "default_deploy_config_name", None) or key).stem] = key
        keys.setdefault(key, key)
    return keys[max((name for name in keys if file.startswith(name)), key=len)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder that is a model of this pipeline to vLLM-Omni."""
    root = tmp_path_factory.mktemp("models")

    def made(kind):
        (root / kind).mkdir(exist_ok=True)
        (root / kind / "config.json").write_text(json.dumps({"model_type": kind}))
        return str(root / kind)

    return made


def ours(target, **how):
    return resolve(target, engines=KINDS.values(), **how)


def theirs(model, **options):
    """vLLM-Omni's own resolution, asked in its own way: what it would give its orchestrator."""
    from vllm_omni.config.resolver import resolve_omni_config

    return resolve_omni_config(
        model,
        trust_remote_code=None,
        deploy_config_path=options.pop("deploy_config", None),
        cli_overrides=options,
        stage_overrides=options.pop("stage_overrides", None),
        strategy_config_path=None,
    )


def chunked(resolution, stage, file):
    """Whether vLLM-Omni would open this stage before it has input, as its orchestrator decides it."""
    from vllm_omni.engine import stage_init_utils as init

    transfer = init.load_omni_transfer_config_for_model("", str(DEPLOY / file))
    spec = init.get_stage_connector_spec(transfer, stage.stage_id, async_chunk=True)
    receives = stage.connector_config.async_chunk and (spec.get("extra") or {}).get("role") != "sender"
    return bool(receives and stage.input_sources)


def graph(spec):
    return {
        stage.name: (stage.engine, [(e.stage, e.mode) for e in stage.inputs], stage.output, stage.replicas)
        for stage in spec.stages
    }


def expected(resolution, file):
    names = {stage.stage_id: stage.model_stage for stage in resolution.stage_configs}
    return {
        stage.model_stage: (
            KINDS[stage.stage_type.value],
            [(names[s], "chunks" if chunked(resolution, stage, file) else "whole") for s in stage.input_sources],
            stage.final_output_type if stage.final_output else None,
            stage.runtime_config.num_replicas,
        )
        for stage in resolution.stage_configs
    }


@pytest.mark.parametrize("file", FILES)
def test_every_deploy_file_is_our_graph_or_is_refused_by_name(file, model):
    folder = model(pipeline_of(file))
    refused = REFUSED.get(Path(file).stem)
    if refused is not None:
        with pytest.raises(ConfigError) as error:
            ours(folder, options={"deploy_config": str(DEPLOY / file)})
        assert refused in str(error.value)
        assert error.value.path
        return
    spec = ours(folder, options={"deploy_config": str(DEPLOY / file)}).spec
    resolution = theirs(folder, deploy_config=str(DEPLOY / file))
    assert graph(spec) == expected(resolution, file)
    for stage, other in zip(spec.stages, resolution.stage_configs, strict=True):
        assert dict(stage.env) == {name: str(value) for name, value in (other.runtime_config.env or {}).items()}
        assert stage.params.keys() == (other.model_config.default_sampling_params or {}).keys()
        assert stage.fixed_params.keys() == other.sampling_constraints.keys()
        devices = [stage.devices_of(replica) for replica in range(stage.replicas)]
        assert ",".join(filter(None, devices)) == (other.runtime_config.devices or "")


def test_the_table_of_refusals_names_only_files_that_there_are():
    assert {f"{stem}.yaml" for stem in REFUSED} <= set(FILES)
    assert (len(FILES), len(REFUSED)) == (110, 30)


def test_a_deploy_file_that_names_its_pipeline_is_a_target_of_its_own(model):
    spec = ours(str(DEPLOY / "minicpmo_4_5_turn.yaml")).spec
    assert [stage.name for stage in spec.stages] == ["llm", "tts", "code2wav"]
    assert {stage.model for stage in spec.stages} == {""}
    folder = model("minicpmo_4_5")
    assert ours(str(DEPLOY / "minicpmo_4_5_turn.yaml"), model=folder).spec.stages[0].model == folder


def test_options_reach_their_resolver_and_overrides_our_spec(model):
    folder = model("qwen3_tts")
    options = {"stage_1_num_replicas": 2, "stage_overrides": {"0": {"devices": "3"}}}
    found = ours(folder, overrides=["code2wav.deadlines.edge_s=7"], options=options)
    stages = {stage.name: stage for stage in found.spec.stages}
    first, last = found.spec.stages
    assert first.devices == "3"
    assert [last.devices_of(replica) for replica in range(last.replicas)] == ["0", "1"]
    assert stages["code2wav"].deadlines.edge_s == 7
    sources = {row.path: row.source for row in found.rows()}
    assert sources[f"{first.name}.devices"] == "option stage_overrides"
    assert sources["code2wav.replicas"] == "option stage_1_num_replicas"
    assert sources["code2wav.deadlines.edge_s"] == "--set"
    assert sources["code2wav.params.max_tokens"].startswith("qwen3_tts.yaml:")
    assert sources["code2wav.output"] == "vLLM-Omni's qwen3_tts"
    assert [(c.stage, c.after) for c in found.environment({}) if c.name == "CUDA_VISIBLE_DEVICES"][1:] == [
        ("code2wav/0", "0"),
        ("code2wav/1", "1"),
    ]


def test_devices_are_counted_within_those_that_are_visible(model, monkeypatch):
    from vllm_omni.platforms import current_omni_platform

    monkeypatch.setenv(current_omni_platform.device_control_env_var, "6,7")
    spec = ours(model("qwen3_tts"), options={"stage_1_num_replicas": 2}).spec
    assert [spec.stages[1].devices_of(replica) for replica in range(2)] == ["6", "7"]


def test_a_file_based_on_another_says_which_line_of_which(model, tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text(
        "async_chunk: false\nstages:\n  - {stage_id: 0, devices: '5', default_sampling_params: {seed: 1, top_k: 3}}\n"
    )
    over = tmp_path / "over.yaml"
    over.write_text("base_config: base.yaml\nstages:\n  - stage_id: 0\n    default_sampling_params:\n      seed: 2\n")
    found = ours(model("qwen2_5_omni"), options={"deploy_config": str(over)})
    rows = {row.path: (row.value, row.source) for row in found.rows()}
    assert rows["thinker.devices"] == ("5", "base.yaml:3")
    assert rows["thinker.params.top_k"] == (3, "base.yaml:3")
    assert rows["thinker.params.seed"] == (2, "over.yaml:5")
    assert rows["thinker.params.detokenize"] == (True, "vLLM-Omni's qwen2_5_omni")


def test_the_block_of_the_platform_is_on_top_of_the_file_and_options_on_top_of_both(model, tmp_path):
    from vllm_omni.platforms import current_omni_platform

    block = f"platforms:\n  {current_omni_platform.device_name}:\n    stages:\n    - {{stage_id: 0, devices: '6,8'}}\n"
    stage = "stages:\n- {stage_id: 0, devices: '5', runtime: {num_replicas: 2, devices: '5'}, env: {A: 1, B: 2}}\n"
    file = tmp_path / "file.yaml"
    file.write_text(f"async_chunk: false\n{stage}{block}")
    folder, options = model("qwen2_5_omni"), {"deploy_config": str(file)}

    def rows(**more):
        found = ours(folder, options=options | more)
        return {row.path: (row.value, row.source) for row in found.rows()}

    first = rows()
    assert first["thinker.devices"] == ("6,8", "file.yaml:7")
    assert first["thinker.replicas"] == (2, "file.yaml:3")
    assert first["thinker.env.A"] == ("1", "file.yaml:3")
    over = rows(stage_0_num_replicas=3, stage_overrides={"0": {"devices": "3,4,5"}})
    assert over["thinker.replicas"] == (3, "option stage_0_num_replicas")
    assert over["thinker.devices"] == ("3,4,5", "option stage_overrides")


NO_SUCH = {
    "an option that there is not": ({"deploy_confg": "x"}, "deploy_confg", "did you mean 'deploy_config'"),
    "a file that there is not": ({"deploy_config": "nowhere.yaml"}, "model", "not found"),
    "several machines": ({"omni_master_address": "10.0.0.1"}, "omni_master_address", "several machines"),
    "one stage": ({"stage_id": 0}, "stage_id", "one stage alone"),
    "ray": ({"worker_backend": "ray"}, "worker_backend", "ray"),
    "ray by stage": (
        {"stage_0_distributed_executor_backend": "ray"}, "stages.0.distributed_executor_backend", "ray",
    ),
    "the aligner": ({"forced_aligner": "some/model"}, "forced_aligner", "time stamps"),
    "engines in a replica": ({"stage_0_data_parallel_size": 2}, "stages.0.data_parallel_size", "several engines"),
    "devices for nobody": ({"stage_0_num_replicas": 3, "stage_0_devices": "0,1"}, "stages.devices", "need either"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", NO_SUCH)
def test_options_that_are_not_run_are_refused_by_name(mistake, model):
    options, path, words = NO_SUCH[mistake]
    with pytest.raises(ConfigError) as error:
        ours(model("qwen3_tts"), options=options)
    assert error.value.path == path
    assert words in str(error.value)


WRONG = {
    "a key that there is not": ("conectors: {}\n", "conectors", "did you mean 'connectors'"),
    "a connector that there is not": (
        "stages:\n  - {stage_id: 0, output_connectors: {to_stage_1: shm}}\n", "connectors", "Undefined connector",
    ),
    "an edge that there is not": (
        "stages: [{stage_id: 0}, {stage_id: 1}]\nedges: [{from: 1, to: 0}]\n", "edges", "no input from stage 1",
    ),
    "an argument that there is not": ("stages: [{stage_id: 0, max_nums_seqs: 1}]\n", "model", "max_nums_seqs"),
    "an argument of an edge that there is not": (
        "stages: [{stage_id: 0}]\nedges: [{from: 0, to: 1, depth: 3}]\n", "edges[0].depth", "no such key",
    ),
    "a stage that there is not": ("stages: [{stage_id: 7}]\n", "stages.7", "no such stage; known: 0, 1"),
    "another output than the registry's": (
        "stages: [{stage_id: 1, final_output_type: text}]\n", "stages.1.final_output_type", "the registry says 'audio'",
    ),
    "no mapping": ("[1, 2]\n", "model", "refuses it"),
    "no YAML": ("a: [1\n", "model", "refuses it"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_wrong_with_a_deploy_file_is_said(mistake, model, tmp_path):
    text, path, words = WRONG[mistake]
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        ours(model("qwen3_tts"), options={"deploy_config": str(file)})
    assert error.value.path == path
    assert words in str(error.value)


def test_an_argument_that_no_diffusion_stage_has_is_refused(model, tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text("async_chunk: false\nstages: [{stage_id: 0}, {stage_id: 1, num_steps_ahead: 1}]\n")
    with pytest.raises(ConfigError, match="num_steps_ahead"):
        ours(model("glm_image"), options={"deploy_config": str(file)})


def test_what_is_no_model_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match="did not resolve to a registered Omni pipeline"):
        ours(model("llama"))
    with pytest.raises(ConfigError, match=r"its config\.json is neither in the hub's cache"):
        ours("nobody/nothing-at-all")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="vLLM-Omni refuses it"):
        ours(str(tmp_path / "broken"))
    with pytest.raises(ConfigError, match="is the model already"):
        ours(model("qwen3_tts"), model="another/one")
    with pytest.raises(ConfigError, match="is not a model that vLLM-Omni runs"):
        ours("tiny-omni", options={"deploy_config": "x.yaml"})
