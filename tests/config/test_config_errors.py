"""C23: every mistake in a deploy file is a distinct error that names file, line, path and the way out."""

import subprocess
import sys
import time

import attrs
import pytest

from omni_actors._errors import ConfigError
from omni_actors.config import problem_lines, resolve

ENGINES = ("vllm", "generation")

GOOD = """\
name: my-omni
limits: {max_requests: 100}
drain_s: 30
stages:
  thinker:
    engine: vllm
    model: ./models/thinker
    engine_args: {max_model_len: 256}
    output: text
  talker:
    engine: vllm
    model: org/talker
    inputs: [thinker]
  vocoder:
    engine: generation
    model: pkg.voice:Vocoder
    inputs: [{stage: talker, mode: segments, split: pkg.text:sentences}]
    deadlines: {start_s: 120}
    output: audio
"""


@attrs.frozen
class Mistake:
    """One edit of the good file, and what must be said about it."""

    old: str
    new: str
    line: int
    path: str
    says: str
    hint: str


MISTAKES = {
    "segments into a fan-in": Mistake(
        "inputs: [{stage: talker, mode: segments, split: pkg.text:sentences}]",
        "inputs: [thinker, {stage: talker, mode: segments, split: pkg.text:sentences}]\n    transform: a.b:c",
        17, "$.stages.vocoder.inputs[1].mode", "mode 'segments' into a stage with several inputs", "mode: whole",
    ),
    "chunks": Mistake(
        "inputs: [{stage: talker, mode: segments, split: pkg.text:sentences}]",
        "inputs: [{stage: talker, mode: chunks}]",
        17, "$.stages.vocoder.inputs[0].mode", "engines that hand nothing to each other", "mode: segments",
    ),
    "typo key": Mistake(
        "    model: ./", "    modle: ./", 7, "$.stages.thinker.modle",
        "unknown key 'modle'", "did you mean 'model'?",
    ),
    "engine argument in the stage": Mistake(
        "engine_args: {max_model_len: 256}", "max_model_len: 256", 8, "$.stages.thinker.max_model_len",
        "unknown key 'max_model_len'", "belongs under engine_args",
    ),
    "stage key at the top": Mistake(
        "drain_s: 30", "replicas: 2", 3, "$.replicas",
        "unknown key 'replicas'", "belongs under stages.<name>",
    ),
    "top key in a stage": Mistake(
        "    output: text", "    drain_s: 3", 9, "$.stages.thinker.drain_s",
        "unknown key 'drain_s'", "belongs at the top level",
    ),
    "deadline in the stage": Mistake(
        "deadlines: {start_s: 120}", "start_s: 120", 18, "$.stages.vocoder.start_s",
        "unknown key 'start_s'", "belongs under deadlines",
    ),
    "sampling param in the stage": Mistake(
        "    output: text", "    temperature: 0", 9, "$.stages.thinker.temperature",
        "unknown key", "belongs under params",
    ),
    "limit at the top": Mistake(
        "drain_s: 30", "max_bytes: 30", 3, "$.max_bytes",
        "unknown key", "belongs under limits",
    ),
    "typo in limits": Mistake(
        "max_requests", "max_request", 2, "$.limits.max_request",
        "unknown key", "did you mean 'max_requests'?",
    ),
    "duplicate key": Mistake(
        "drain_s: 30", "name: again", 3, "$.name",
        "duplicate key 'name'", "first given on line 1",
    ),
    "duplicate stage": Mistake(
        "  talker:", "  thinker:", 10, "$.stages.thinker",
        "duplicate key 'thinker'", "first given on line 5",
    ),
    "unknown input": Mistake(
        "[thinker]", "[thinkr]", 13, "$.stages.talker.inputs[0]",
        "unknown stage 'thinkr'", "did you mean 'thinker'?",
    ),
    "own input": Mistake("[thinker]", "[talker]", 13, "$.stages.talker.inputs[0]", "is its own input", ""),
    "input twice": Mistake("[thinker]", "[thinker, thinker]", 13, "$.stages.talker.inputs[1]", "an input twice", ""),
    "cycle": Mistake(
        "    output: text", "    inputs: [vocoder]\n    output: text", 9, "$.stages.thinker.inputs",
        "cycle: thinker → talker → vocoder → thinker", "",
    ),
    "missing model": Mistake(
        "./models/thinker", "./models/thinkr", 7, "$.stages.thinker.model",
        "there is no model at", "did you mean 'thinker'?",
    ),
    "missing interpreter": Mistake(
        "    output: text", "    python: ./venv/python", 9, "$.stages.thinker.python",
        "there is no interpreter at", "",
    ),
    "number wanted": Mistake(
        "drain_s: 30", "drain_s: soon", 3, "$.drain_s",
        "expected a number, got the text 'soon'", "",
    ),
    "whole number wanted": Mistake(
        "max_requests: 100", "max_requests: 1.5", 2, "$.limits.max_requests",
        "expected a whole number, got the number 1.5", "",
    ),
    "text wanted": Mistake(
        "model: org/talker", "model: [org]", 12, "$.stages.talker.model",
        "expected text, got a list", "",
    ),
    "mapping wanted": Mistake(
        "{max_model_len: 256}", "[256]", 8, "$.stages.thinker.engine_args",
        "expected a mapping, got a list", "",
    ),
    "list wanted": Mistake("[thinker]", "thinker", 13, "$.stages.talker.inputs", "expected a list", ""),
    "nothing given": Mistake("{max_model_len: 256}", "", 8, "$.stages.thinker.engine_args", "got nothing", "write {}"),
    "negative": Mistake(
        "start_s: 120", "start_s: -1", 18, "$.stages.vocoder.deadlines.start_s",
        "0 or more, not -1", "",
    ),
    "zero": Mistake("start_s: 120", "start_s: 0", 18, "$.stages.vocoder.deadlines.start_s", "more than 0", ""),
    "not finite": Mistake("drain_s: 30", "drain_s: .inf", 3, "$.drain_s", "not inf", ""),
    "below one": Mistake("max_requests: 100", "max_requests: 0", 2, "$.limits.max_requests", "at least 1", ""),
    "unknown engine": Mistake(
        "engine: generation", "engine: generatoin", 15, "$.stages.vocoder.engine",
        "unknown engine kind 'generatoin'", "did you mean 'generation'?",
    ),
    "missing engine": Mistake(
        "    engine: generation\n", "", 14, "$.stages.vocoder",
        "the key 'engine' is missing", "",
    ),
    "unknown modality": Mistake(
        "output: audio", "output: adio", 19, "$.stages.vocoder.output",
        "expected one of text, audio", "'audio'?",
    ),
    "unknown mode": Mistake(
        "mode: segments", "mode: segment", 17, "$.stages.vocoder.inputs[0].mode",
        "expected one of whole", "'segments'?",
    ),
    "split is no dotted path": Mistake(
        "pkg.text:sentences", "pkg.text.sentences", 17, "$.stages.vocoder.inputs[0].split",
        "not a dotted path", "package.module:name",
    ),
    "transform is no dotted path": Mistake(
        "    output: audio", "    transform: mel", 19, "$.stages.vocoder.transform",
        "not a dotted path", "package.module:name",
    ),
    "companions are no dotted path": Mistake(
        "    output: text", "    output: text\n    companions: guide", 10, "$.stages.thinker.companions",
        "not a dotted path", "package.module:name",
    ),
    "companions that nobody sees": Mistake(
        "    output: audio", "    output: audio\n    companions: pkg.cfg:none", 20, "$.stages.vocoder.companions",
        "no stage gets to see", "mode whole",
    ),
    "segments without split": Mistake(
        ", split: pkg.text:sentences", "", 17, "$.stages.vocoder.inputs[0]",
        "'segments' needs a split", "write split:",
    ),
    "split without segments": Mistake(
        "mode: segments, ", "", 17, "$.stages.vocoder.inputs[0].split",
        "has no split", "mode: segments",
    ),
    "several inputs, no transform": Mistake(
        "[{stage: talker", "[thinker, {stage: talker", 14, "$.stages.vocoder",
        "no transform", "needs one",
    ),
    "params of an unknown stage": Mistake(
        "drain_s: 30", "params: {speaker: {seed: 1}}", 3, "$.params.speaker",
        "an unknown stage 'speaker'", "did you mean 'talker'?",
    ),
    "params as a list": Mistake(
        "drain_s: 30", "params: [{seed: 1}]", 3, "$.params",
        "got 1 entries for 3 stages", "write thinker:",
    ),
    "empty stages": Mistake(GOOD[GOOD.index("stages:") :], "stages: {}", 4, "$.stages", "at least one stage", ""),
    "stages missing": Mistake(GOOD[GOOD.index("stages:") :], "", 1, "$", "the key 'stages' is missing", ""),
    "unknown pipeline": Mistake(
        "name: my-omni", "pipeline: tiny-onmi", 1, "$.pipeline",
        "unknown pipeline 'tiny-onmi'", "'tiny-omni'?",
    ),
    "bad stage name": Mistake(
        "  thinker:", "  the thinker:", 5, "$.stages['the thinker']",
        "is no name for a stage", "letter",
    ),
    "no output": Mistake("    output: text", "", 4, "$.stages", "no stage has an output", "set output"),
    "anchor": Mistake(
        "drain_s: 30", "drain_s: &x 30", 3, "$.drain_s",
        "anchors (&x) are not allowed", "write the value out",
    ),
    "alias": Mistake(
        "drain_s: 30", "drain_s: *x", 3, "$.drain_s",
        "aliases (*x) are not allowed", "write the value out",
    ),
    "tag": Mistake("drain_s: 30", "drain_s: !!float 30", 3, "$.drain_s", "tags", "write the plain value"),
    "merge key": Mistake(
        "drain_s: 30", "<<: {a: 1}", 3, "$['<<']",
        "merge keys (<<) are not allowed", "write the values out",
    ),
    "ambiguous word": Mistake(
        "drain_s: 30", "drain_s: on", 3, "$.drain_s",
        "'on' is ambiguous: write true or false", "in quotes",
    ),
    "ambiguous number": Mistake("drain_s: 30", "drain_s: 030", 3, "$.drain_s", "no leading zero", "in quotes"),
    "huge number": Mistake("drain_s: 30", f"drain_s: {'9' * 5000}", 3, "$.drain_s", "is too large", "in quotes"),
    "second document": Mistake("drain_s: 30", "---\na: 1\n---", 3, "$", "a second document", "one file holds one"),
    "list as a key": Mistake("drain_s: 30", "? [a]\n: 1", 3, "$", "a key must be text", ""),
    "broken syntax": Mistake("drain_s: 30", "drain_s: [30", 4, "$", "not valid YAML", ""),
    "too deep": Mistake(
        "drain_s: 30", f"drain_s: {'[' * 40}{']' * 40}", 3, "$.drain_s[0]",
        "nested deeper than 32", "",
    ),
    "control character": Mistake("drain_s: 30", "drain_s: \x07", 3, "$", "is not allowed in YAML", ""),
}  # fmt: skip


@pytest.fixture(autouse=True)
def known_pipelines(monkeypatch):
    """The names are fixed, whatever is installed."""
    names = {
        "omni_actors.pipelines": {"tiny-omni": "nowhere:pipeline"},
        "omni_actors.engines": dict.fromkeys(ENGINES, ""),
    }
    for module in ("_registry", "_sources", "_validate"):
        monkeypatch.setattr(f"omni_actors.config.{module}.registered", names.__getitem__)


@pytest.fixture
def deploy(tmp_path):
    """Writes a deploy file beside a model folder and returns its path."""
    (tmp_path / "models" / "thinker").mkdir(parents=True)

    def write(text):
        file = tmp_path / "deploy.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return write


def refusal(target, *overrides):
    """The ConfigError that resolving gives."""
    with pytest.raises(ConfigError) as caught:
        resolve(target, overrides)
    return caught.value


def test_the_good_file_is_good(deploy):
    assert [stage.name for stage in resolve(deploy(GOOD)).spec.stages] == ["thinker", "talker", "vocoder"]


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_with_its_place_and_the_way_out(deploy, mistake, monkeypatch):
    def no_process(*_args, **_kwargs):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess.Popen, "__init__", no_process)
    assert mistake.old in GOOD
    text = GOOD.replace(mistake.old, mistake.new, 1)
    if mistake.says.startswith("no stage has"):
        text = text.replace("    output: audio\n", "")
    file = deploy(text)
    began = time.perf_counter()
    error = refusal(file)
    assert time.perf_counter() - began < 1
    assert (error.file, error.line) == (file, mistake.line), str(error)
    assert error.path.startswith(mistake.path) if mistake.says.startswith("nested") else error.path == mistake.path
    assert mistake.says in error.problem
    assert mistake.hint in (error.hint or "")
    assert mistake.hint or error.hint is None or "YAML" in mistake.says
    assert len(str(error)) < 500


def test_one_mistake_is_one_line(deploy):
    alone = [
        name for name, mistake in MISTAKES.items() if mistake.says.startswith(("unknown", "expected", "duplicate", "'"))
    ]
    for name in alone:
        lines = problem_lines(refusal(deploy(GOOD.replace(MISTAKES[name].old, MISTAKES[name].new, 1))))
        expected = {"duplicate stage": 2, "duplicate key": 1}.get(name, 1)
        assert len(lines) == expected, (name, lines)


def test_all_mistakes_of_a_file_are_told_at_once(deploy):
    text = (
        GOOD.replace("drain_s: 30", "drain_s: on")
        .replace("    model: ./", "    modle: ./")
        .replace("[thinker]", "[thinkr]")
    )
    error = refusal(deploy(text.replace("output: audio", "output: adio")), "talker.replicas=0")
    assert [line.partition(": $")[2].partition(":")[0] for line in problem_lines(error) if ": $" in line] == [
        ".drain_s", ".stages.thinker.modle", ".stages.talker.inputs[0]", ".stages.vocoder.output",
    ]  # fmt: skip
    assert any(
        line.startswith("--set: talker.replicas=0: replicas must be at least 1") for line in problem_lines(error)
    )


def test_a_stage_list_knows_its_own_paths_and_duplicates(deploy):
    listed = "stages:\n- {name: a, engine: vllm, output: text}\n- {name: a, engine: vllm}\n- {engine: vllm}\n"
    lines = problem_lines(refusal(deploy(listed)))
    assert "deploy.yaml:3: $.stages[1].name: duplicate stage 'a'; first given on line 2" in lines[0]
    assert "deploy.yaml:4: $.stages[2]: expected a mapping with a name" in lines[1]
    misspelt = "stages:\n- {name: a, engine: vllm, output: text, modle: x}\n"
    assert refusal(deploy(misspelt)).path == "$.stages[0].modle"


def test_a_file_that_is_no_deploy_file(deploy, tmp_path):
    assert "the file is empty" in str(refusal(deploy("")))
    assert "expected a mapping at the top level" in str(refusal(deploy("- a\n")))
    assert "not UTF-8" in str(refusal(deploy(b"name: a\nx: \xff\n")))
    assert refusal(deploy(b"name: a\nx: \xff\n")).line == 2
    assert "larger than 1 MiB" in str(refusal(deploy("#" * ((1 << 20) + 1))))
    assert "this is a folder" in str(refusal(f"{tmp_path}/models"))


@pytest.mark.parametrize("levels", [33, 900, 5_000, 100_000])
def test_no_depth_exhausts_the_stack(deploy, levels):
    for opening, closing in ("[", "]"), ("{a: ", "}"):
        assert refusal(deploy(f"drain_s: {opening * levels}{closing * levels}")).line == 1
    block = "\n".join(" " * depth + "a:" for depth in range(min(levels, 1000)))
    assert "nested deeper" in str(refusal(deploy(block)))


def test_a_missing_file_and_an_unknown_name_suggest_the_nearest(deploy, tmp_path):
    deploy(GOOD)
    error = refusal(f"{tmp_path}/deplyo.yaml")
    assert error.problem == "there is no such file"
    assert error.file == f"{tmp_path}/deplyo.yaml"
    assert error.hint == f"did you mean '{tmp_path}/deploy.yaml'?"
    assert "there is no folder" in refusal(f"{tmp_path}/nowhere/deploy.yaml").hint
    assert "did you mean 'tiny-omni'?" in refusal("tiny-onmi").hint


@pytest.mark.parametrize(("override", "says"), {
    "thinker.replicas=two": "expected a whole number, got the text 'two'",
    "thinkr.replicas=2": "unknown stage 'thinkr'; did you mean 'thinker'?",
    "stages.thinkr.replicas=2": "unknown stage 'thinkr'; did you mean 'thinker'?",
    "thinker.engine_arg.max_model_len=2": "unknown key 'engine_arg'; did you mean 'engine_args'?",
    "thinker.max_model_len=2": "unknown key 'max_model_len'; belongs under engine_args",
    "drian_s=3": "unknown stage or key 'drian_s'; did you mean 'drain_s'?",
    "thinker.nice=20": "nice must be at most 19, not 20",
    "thinker.nice=-1": "nice must be at least 0, not -1",
    "limits.max_requests=-1": "max_requests must be at least 1, not -1",
    "thinker.model.name=x": "cannot set 'name' here",
    "talker.inputs[1].mode=whole": "cannot set item [1]: the list has 1 items",
    "talker.inputs.mode=whole": "a list: write [0]",
    "thinker.engine_args.x=[1": "not valid YAML",
    "thinker.engine_args.x=on": "ambiguous",
    "thinker.replicas": "expected path=value; write thinker.replicas=2",
    "=3": "expected path=value",
    "thinker..x=3": "not a path",
    "[0].x=3": "not a path",
}.items())  # fmt: skip
def test_a_wrong_override_is_named_by_its_own_text(deploy, override, says):
    error = refusal(deploy(GOOD), override)
    assert error.file == "--set"
    assert error.line is None
    assert says in str(error)
    assert error.path == override or error.path == repr(override) or not override.partition("=")[0]


def test_a_secret_in_an_override_is_not_repeated(deploy):
    assert "hunter2" not in str(refusal(deploy(GOOD), "thinker.env.HF_TOKEN=[hunter2]"))


def test_config_imports_no_engine_and_no_event_loop():
    heavy = ("trio", "zmq", "vllm", "asyncio", "yaml")
    code = f"import sys, omni_actors.config; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"
