"""Real engines answer: text, sound, and everything that vLLM's sampling params and prompts can ask for."""

from __future__ import annotations

import pytest
import trio

from omni_actors import InvalidRequest, Kind
from omni_actors.pipelines.tiny_omni._questions import questions

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

QUESTION = "What is two plus three, and nine minus four?"
TEXT = {"modalities": ["text"]}


async def answer(omni, prompt, sampling=None, **how):
    async with omni.generate(prompt, sampling, **how) as stream:
        outputs = [output async for output in stream]
    assert stream.terminal.kind is Kind.FINISHED
    omni.check()
    return outputs, stream.terminal


async def text(omni, prompt, sampling=None, **how) -> str:
    outputs, terminal = await answer(omni, prompt, sampling, **TEXT, **how)
    said = "".join(output.text for output in outputs)
    assert said == terminal.text()
    return said


def test_text_is_right(engines):
    asked = questions(20, seed=7)

    async def ask(omni) -> list[bool]:
        return [await text(omni, question.text) == question.answer for question in asked]

    assert sum(engines.run(ask)) >= 19


def test_each_sentence_is_heard_in_order(engines):
    (question,) = questions(1, seed=3, parts=4)
    outputs, terminal = engines.run(answer, question.text)
    assert terminal.text() == question.answer
    heard = [output for output in outputs if output.modality == "audio"]
    assert [output.part for output in heard] == sorted(output.part for output in heard)
    samples = [0] * 4
    for output in heard:
        if output.audio is not None:
            samples[output.part] += output.audio.nbytes // 4
            assert output.sample_rate > 0
    assert min(samples) > 2000
    assert {timing.stage for timing in terminal.timings} == {"thinker", "talker", "vocoder", "painter"}


def test_each_sentence_is_seen_in_order_and_painted_again_the_same(engines):
    (question,) = questions(1, seed=3, parts=4)
    first, again = (engines.run(lambda omni: answer(omni, question.text, modalities=["image"])) for _ in range(2))
    assert [output.part for output in first[0]] == [0, 1, 2, 3]
    widths = [16 + 144 * len(str(part.value)) for part in question.parts]
    assert [output.image.shape for output in first[0]] == [(160, width, 3) for width in widths]
    assert [output.image for output in first[0]] == [output.image for output in again[0]]
    assert {timing.stage for timing in first[1].timings} == {"thinker", "painter"}


def test_sound_alone_has_no_text(engines):
    outputs, _ = engines.run(lambda omni: answer(omni, QUESTION, modalities=["audio"]))
    assert {output.modality for output in outputs} == {"audio"}


def test_n_choices_are_those_of_n_seeds(engines):
    sampling = {"temperature": 2.0, "max_tokens": 30, "ignore_eos": True}
    gibberish = {"prompt_token_ids": [7, 3, 9]}  # of a real question these models are too sure to say two things

    async def ask(omni):
        outputs, terminal = await answer(omni, gibberish, {**sampling, "n": 3, "seed": 5}, **TEXT)
        alone = [await text(omni, gibberish, {**sampling, "seed": seed}) for seed in (5, 6, 7)]
        return outputs, terminal, alone

    outputs, terminal, alone = engines.run(ask)
    said = ["".join(output.text for output in outputs if output.index == index) for index in range(3)]
    assert said == [terminal.text(index=index) for index in range(3)] == alone
    assert [len(terminal.token_ids("thinker", index)) for index in range(3)] == [30, 30, 30]
    assert len(set(said)) > 1


def test_a_stop_string_ends_it_and_the_engine_forgets_it(engines):
    async def ask(omni):
        outputs, _ = await answer(omni, QUESTION, {"stop": [" is"]}, **TEXT)
        return outputs, await omni.call("thinker", "reset_prefix_cache")

    outputs, forgotten = engines.run(ask)
    assert "".join(output.text for output in outputs) == "Two plus three"
    assert (outputs[-1].payload.finish_reason, outputs[-1].payload.stop_reason) == ("stop", " is")
    assert forgotten == [True]


def test_logprobs(engines):
    """The first of them is no slower than others: nothing is compiled for it."""
    asked = {"logprobs": 2, "max_tokens": 6}
    outputs, _ = engines.run(lambda omni: answer(omni, QUESTION, asked, **TEXT), within_s=8)
    tokens = [token for output in outputs for token in output.payload.token_ids]
    probable = [one for output in outputs for one in output.payload.logprobs]
    assert len(tokens) == len(probable) == 6
    assert all(token in each and len(each) >= 2 for token, each in zip(tokens, probable, strict=True))


def test_sampling_params_objects_mappings_and_one_per_stage_say_the_same(engines):
    from vllm import SamplingParams

    async def ask(omni):
        given = ({"max_tokens": 9}, SamplingParams(temperature=0, max_tokens=9), {"thinker": {"max_tokens": 9}})
        return [await text(omni, QUESTION, one) for one in given]

    first, second, third = engines.run(ask)
    assert first == second == third
    assert first


def test_a_caller_does_not_talk_the_talker_out_of_its_end_mark(engines):
    async def ask(omni) -> list[list[int]]:
        changes = ({"max_tokens": 64, "stop_token_ids": []}, {"temperature": 0.0})
        ends = [await answer(omni, "What is one plus one?", {"talker": change}) for change in changes]
        return [terminal.token_ids("talker") for _, terminal in ends]

    first, second = engines.run(ask)
    assert first == second
    assert 0 < len(first) < 64


def test_priority_is_accepted(engines):
    assert engines.run(lambda omni: text(omni, QUESTION, priority=-3)) == engines.run(text, QUESTION)


def test_text_chat_messages_and_token_ids_are_one_prompt(engines):
    async def ask(omni):
        outputs, terminal = await answer(omni, QUESTION, **TEXT)
        tokens = outputs[0].payload.native.prompt_token_ids
        assert terminal.prompt_tokens == len(tokens)
        chat = [{"role": "user", "content": QUESTION}]
        return [terminal.text(), await text(omni, chat), await text(omni, {"prompt_token_ids": tokens})]

    first, second, third = engines.run(ask)
    assert first == second == third == "Two plus three is five. Nine minus four is five."


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ("", None),
        ("   ", None),
        ("one plus one " * 500, None),
        ({"prompt_token_ids": [1] * 500}, None),
        ({"prompt_token_ids": []}, None),
        (5, None),
        ([{"content": "no role"}], None),
        (QUESTION, {"max_tokns": 5}),
        (QUESTION, {"temperature": -1}),
        (QUESTION, {"n": 0}),
    ],
)
def test_bad_input_names_the_stage_and_leaves_nothing(engines, prompt, sampling):
    async def ask(omni) -> None:
        with pytest.raises(InvalidRequest) as caught:
            async with omni.generate(prompt, sampling):
                pytest.fail("it was taken")
        assert caught.value.stage == "thinker"
        assert omni.in_flight == 0
        omni.check()

    engines.run(ask)


def test_many_at_once_are_right_each(engines):
    asked = questions(32, seed=11, parts=2)
    said: dict[int, str] = {}

    async def ask(omni) -> None:
        async def one(number: int) -> None:
            said[number] = await text(omni, asked[number].text)

        async with trio.open_nursery() as nursery:
            for number in range(len(asked)):
                nursery.start_soon(one, number)

    engines.run(ask)
    assert sum(said[number] == question.answer for number, question in enumerate(asked)) >= 30
