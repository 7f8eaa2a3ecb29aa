"""Models as targets: what is taken for one, who is asked, and what its deploy file, options and --set become."""

import pytest

from omni_actors._errors import ConfigError
from omni_actors.config import InputSpec, ModelSpec, PipelineSpec, StageSpec, environment_changes, resolve, validate

ENGINES = ("vllm-omni",)
THEIRS = "async_chunk: false\nstages:\n- {stage_id: 0, devices: '0'}\n"


def made(model, options):
    stages = (
        StageSpec(
            name="thinker", engine="vllm-omni", model=model, engine_args={**options, "stage_id": 0}, output="text",
        ),
        StageSpec(
            name="talker", engine="vllm-omni", model=model, replicas=2, devices="4,5",
            inputs=(InputSpec(stage="thinker", mode="chunks"),), transform="a.b:c", params={"seed": 1, "top_k": 2},
        ),
    )  # fmt: skip
    sources = {("stages", "talker", "devices"): "theirs.yaml:7", ("stages", "talker", "params", "seed"): "option seed"}
    return ModelSpec(PipelineSpec(name="pair", stages=stages), "the registry", sources)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Who knows models knows one of two stages."""
    monkeypatch.setattr("omni_actors.config._models.load_object", lambda path: made)


def asked(target, **how):
    """The model and the options that were asked about."""
    thinker = resolve(target, engines=ENGINES, **how).spec.stage("thinker")
    return thinker.model, {name: value for name, value in thinker.engine_args.items() if name != "stage_id"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return str(tmp_path / "model")


@pytest.fixture
def theirs(tmp_path):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    return str(tmp_path / "theirs.yaml")


def test_a_folder_a_hub_id_and_a_deploy_file_of_theirs_are_models(folder, theirs):
    assert asked(folder) == (folder, {})
    assert asked("Qwen/Qwen2.5-Omni-7B", options={"dtype": "half"}) == ("Qwen/Qwen2.5-Omni-7B", {"dtype": "half"})
    assert asked(theirs) == ("", {"deploy_config": theirs})
    assert asked(theirs, model=folder) == (folder, {"deploy_config": theirs})


@pytest.mark.parametrize(
    "text",
    ["base_config: other.yaml\n", "stages: [{stage_id: 0}]\n", "connectors: {}\n", "pipeline: x\nasync_chunk: true\n"],
)
def test_a_deploy_file_of_theirs_is_told_by_its_keys(tmp_path, text):
    (tmp_path / "deploy.yaml").write_text(text)
    assert asked(str(tmp_path / "deploy.yaml"))[0] == ""


def test_each_value_has_its_source_and_overrides_come_last(folder):
    found = resolve(folder, ["talker.deadlines.edge_s=5", "talker.inputs[0].parts_in_flight=2"], engines=ENGINES)
    rows = {row.path: (row.value, row.source) for row in found.rows()}
    assert rows["talker.devices"] == ("4,5", "theirs.yaml:7")
    assert rows["talker.params.seed"] == (1, "option seed")
    assert rows["talker.params.top_k"] == (2, "the registry")
    assert rows["talker.inputs[0].mode"] == ("chunks", "the registry")
    assert rows["talker.deadlines.edge_s"] == (5.0, "--set")
    assert rows["talker.inputs[0].parts_in_flight"] == (2, "--set")
    assert rows["thinker.replicas"] == (1, "default")


def test_what_does_not_go_together_is_refused(folder, theirs):
    for target, how, words in (
        (folder, {"model": "another/one"}, "is the model already"),
        (theirs, {"options": {"deploy_config": "x.yaml"}}, "a deploy file already"),
        ("tiny-omni", {"options": {"dtype": "half"}}, "'tiny-omni' is not a model that vLLM-Omni runs"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve(target, engines=ENGINES, **how)


def test_a_folder_without_a_configuration_is_no_model(tmp_path):
    with pytest.raises(ConfigError, match="this is a folder, not a file"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(("target", "who"), [("org/name", "'org/name' is a model"), ("", "a deploy file of vLLM-Omni")])
def test_without_vllm_omni_it_says_what_to_install(monkeypatch, target, who):
    from omni_actors.vllm_omni import model_spec

    monkeypatch.setattr("omni_actors.vllm_omni._pipeline.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"{who}.* is not installed; install omni-actors\[omni\]"):
        model_spec(target, {})


@pytest.mark.parametrize(
    ("devices", "replicas", "each"),
    [
        (None, 2, [None, None]),
        ("0,1", 1, ["0,1"]),
        ("0", 3, ["0", "0", "0"]),
        ("4,5", 2, ["4", "5"]),
        ("4, 5,6,7", 2, ["4,5", "6,7"]),
    ],
)
def test_replicas_share_the_devices_out_among_them(devices, replicas, each):
    stage = StageSpec(name="a", engine="vllm-omni", devices=devices, replicas=replicas, output="text")
    assert [stage.devices_of(replica) for replica in range(replicas)] == each
    spec = PipelineSpec(name="one", stages=(stage,))
    changes = [(change.stage, change.after) for change in environment_changes(spec, {})]
    several = [(f"a/{replica}", seen) for replica, seen in enumerate(each)]
    assert changes == ([] if devices is None else several if each[0] != devices else [("a", devices)])


def test_devices_that_cannot_be_shared_out_are_refused():
    stage = StageSpec(name="a", engine="vllm-omni", devices="0,1,2", replicas=2, output="text")
    with pytest.raises(ConfigError, match="3 devices cannot be shared out among 2 replicas; name as many for each"):
        validate(PipelineSpec(name="one", stages=(stage,)), engines=ENGINES)
