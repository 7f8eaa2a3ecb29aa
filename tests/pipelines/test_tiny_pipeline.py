"""tiny-omni's graph and the functions between its stages: what each engine is asked, given what the last one made."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from omni_actors._errors import InvalidRequest
from omni_actors.pipelines.tiny_omni import paint, pipeline, speak, think, voice
from omni_actors.pipelines.tiny_omni._questions import Part
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS, Alphabet, alphabet, words_of

MAX_WEIGHTS_BYTES = 8_000_000
ENGINE_LIBRARIES = {"torch", "vllm", "transformers", "diffusers", "hibari", "onnxruntime", "numpy", "pocketsphinx"}


def request(prompt: object) -> SimpleNamespace:
    return SimpleNamespace(prompt=prompt, request_id="r", modalities=("text", "audio"))


def test_a_text_question_becomes_a_chat_message() -> None:
    assert think({}, request("What is two plus three?")) == [{"role": "user", "content": "What is two plus three?"}]


@pytest.mark.parametrize("prompt", [{"prompt_token_ids": [1, 2]}, [{"role": "user", "content": "hi"}], [3, 4]])
def test_other_prompts_pass_untouched(prompt: object) -> None:
    assert think({}, request(prompt)) is prompt


def test_a_blank_question_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        think({}, request(" \n"))


def test_a_sentence_becomes_words_and_the_mark_that_begins_audio() -> None:
    said = SimpleNamespace(text="Two plus three is five.")
    ids = speak({"thinker": said}, request("?"))["prompt_token_ids"]
    words = {number: word for word, number in alphabet().words.items()}
    assert [words[i] for i in ids[:-1]] == ["two", "plus", "three", "is", "five", "."]
    assert ids[-1] == alphabet().begin_audio


def test_an_unknown_word_is_unknown_and_not_an_error() -> None:
    said = SimpleNamespace(text="Seven elephants.")
    assert alphabet().words["<unk>"] in speak({"thinker": said}, request("?"))["prompt_token_ids"]


def test_pieces_become_phonemes_without_marks_and_end_in_a_full_stop() -> None:
    table = Alphabet(
        words={"<unk>": 0, "two": 1},
        pieces=[[62, 156], [63], [16, 58]],
        closing=[4],
        offset=2,
        begin_audio=5,
        end_audio=6,
    )
    assert table.read("Two apes") == [1, 0, 5]
    assert table.spoken([2, 4, 3, 1, 6]) == [62, 156, 16, 58, 63, 4]
    assert table.spoken([6]) == [4]


def test_voice_spells_out_what_the_talker_wrote() -> None:
    table = alphabet()
    made = SimpleNamespace(token_ids=[table.offset + len(table.pieces) - 1, table.end_audio])
    assert voice({"talker": made}, request("?")) == {"phonemes": [*table.pieces[-1], *table.closing]}


def test_words_are_lower_case_and_marks_stand_alone() -> None:
    assert words_of(" Two  is two. NINE,") == ["two", "is", "two", ".", "nine", ","]


def test_the_marks_lie_behind_words_and_pieces() -> None:
    table = alphabet()
    assert table.offset == len(table.words) == max(table.words.values()) + 1
    assert table.begin_audio == table.offset + len(table.pieces)
    assert table.end_audio == table.begin_audio + 1


@pytest.mark.parametrize(
    ("sentence", "number"),
    [
        ("Seven plus eight is fifteen.", 15),
        ("Nine minus nine is zero.", 0),
        ("2 plus 3 is 5.", 5),
        ("Two and 40 apples", 40),
        ("Hello there.", None),
        ("That is 99999.", None),
    ],
)
def test_a_sentence_becomes_the_number_at_its_end(sentence: str, number: int | None) -> None:
    assert paint({"thinker": SimpleNamespace(text=sentence)}, request("?")) == {"number": number}


def test_the_graph_is_thinker_talker_vocoder_and_a_branch_to_the_painter() -> None:
    spec = pipeline()
    assert [(s.name, s.engine, s.output) for s in spec.stages] == [
        ("thinker", "vllm", "text"),
        ("talker", "vllm", None),
        ("vocoder", "generation", "audio"),
        ("painter", "diffusion", "image"),
    ]
    edges = {s.name: (i.stage, i.mode) for s in spec.stages for i in s.inputs}
    assert edges == {
        "talker": ("thinker", "segments"),
        "vocoder": ("talker", "whole"),
        "painter": ("thinker", "segments"),
    }
    assert spec.stage("talker").fixed_params["stop_token_ids"] == [alphabet().end_audio]


def test_every_dotted_path_leads_to_something_callable() -> None:
    stages = pipeline().stages
    paths = [s.transform for s in stages] + [i.split for s in stages for i in s.inputs]
    paths += [stages[2].model, stages[3].engine_args["pipeline_class"]]
    for path in filter(None, paths):
        module, _, name = path.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_weights_are_small_enough_to_ship_and_readable_by_all() -> None:
    files = [file for file in WEIGHTS.rglob("*") if file.is_file()]
    assert {file.relative_to(WEIGHTS).parts[0] for file in files} == {"thinker", "talker", "painter"}
    assert sum(file.stat().st_size for file in files) < MAX_WEIGHTS_BYTES
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in files)


def test_the_longest_conversation_fits_the_context() -> None:
    part = Part(7, "plus", 7)
    question = ", please. ".join([f"Hello, could you tell me what {part.words} is"] * 4)
    letters = len(" ".join([part.sentence] * 4))
    thinker, talker = pipeline().stage("thinker"), pipeline().stage("talker")
    assert letters + 1 <= thinker.params["max_tokens"]
    assert len(words_of(question)) + 2 + thinker.params["max_tokens"] <= thinker.engine_args["max_model_len"]
    assert len(words_of(part.sentence)) + 1 + talker.params["max_tokens"] <= talker.engine_args["max_model_len"]


def test_the_host_imports_it_in_no_time_and_without_any_engine() -> None:
    program = (
        "import sys, time, omni_actors.config.specs\n"
        "start = time.perf_counter()\n"
        "import omni_actors.pipelines.tiny_omni as t; t.pipeline()\n"
        "took = time.perf_counter() - start\n"
        f"print(took, *{ENGINE_LIBRARIES!r} & set(sys.modules))\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    answers = [run.stdout.split() for run in runs]
    assert [heavy for _, *heavy in answers] == [[], [], []]
    assert min(float(took) for took, *_ in answers) < 0.030
