"""``Omni`` for scripts: lists and generators in order, one error for one bad prompt, and nothing left."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
from omni_actors_asyncio import Omni
from omni_actors_asyncio._progress import Meter

from omni_actors import InvalidRequest, Kind, RequestFailed, RequestTimeout, RuntimeClosed, StartupFailed, UsageError
from omni_actors.config import Limits
from omni_actors.testing import FakeCoreBehaviour, FakeParams, MemoryWorld, fake_tokens
from omni_actors.testing.rigs import core, pipeline, speech


def said(prompt: str, tokens: int = 10) -> str:
    made = fake_tokens([ord(c) for c in prompt], FakeCoreBehaviour(tokens=tokens), FakeParams(max_tokens=None))
    return "".join(map(chr, made))


def llm(**more) -> Omni:
    limits = more.pop("limits", Limits())
    stage = {"output": "text", "tokens": 10, "token_s": 0.001, **more}
    return Omni(pipeline(core("llm", **stage), limits=limits), world=MemoryWorld())


def holds(omni: Omni) -> int:
    """Requests that its engines have not released."""

    async def look() -> int:
        return omni._bridge.omni.statistics().requests

    return omni._bridge.run(look).result(5)


def test_a_list_in_order():
    prompts = [f"prompt {number}" for number in range(40)]
    with llm() as omni:
        answers = omni.generate(prompts)
        assert [answer.text() for answer in answers] == [said(prompt) for prompt in prompts]
        assert holds(omni) == 0


@pytest.mark.parametrize("prompt", ["hello", [104, 105], {"prompt": "hello"}, [{"role": "user", "content": "hello"}]])
def test_one_prompt_is_a_list_of_one(prompt):
    with llm() as omni:
        (answer,) = omni.generate(prompt)
    assert answer.kind is Kind.FINISHED
    assert len(answer.text()) == 10


def test_one_bad_prompt_is_one_error_in_the_list():
    with llm(reject="bad") as omni:
        good, empty, bad, late = omni.generate(["good", "", "bad", "late"])
    assert (good.text(), late.text()) == (said("good"), said("late"))
    assert isinstance(empty, InvalidRequest)
    assert isinstance(bad, RequestFailed)
    assert bad.terminal.kind is Kind.FAILED


def test_params_for_each_and_not_for_fewer():
    with llm() as omni:
        lengths = [len(answer.text()) for answer in omni.generate(["a", "b"], [{"max_tokens": 2}, {"max_tokens": 3}])]
        assert lengths == [2, 3]
        assert [len(a.text()) for a in omni.generate(["a", "b"], {"max_tokens": 4})] == [4, 4]
        with pytest.raises(UsageError, match="as many prompts"):
            omni.generate(["a", "b"], [None])


def test_every_modality_is_in_the_answer():
    with Omni(speech(), world=MemoryWorld()) as omni:
        (answer,) = omni.generate("hello")
        (text,) = omni.generate("hello", modalities=["text"])
        (late,) = omni.generate("hello", timeout_s=0.01)
    assert set(answer.results) == {"thinker", "talker", "vocoder"}
    assert set(text.results) == {"thinker"}
    assert isinstance(late, RequestTimeout)


def test_a_generator_gives_the_first_before_the_last_is_asked_for():
    asked = []

    def prompts():
        for number in range(100):
            asked.append(number)
            yield str(number)

    with llm(limits=Limits(max_requests=20)) as omni:
        answers = omni.generate(prompts(), stream=True)
        assert asked == []
        first = next(answers)
        assert len(asked) == 10
        rest = list(answers)
        assert [a.text() for a in (first, *rest)] == [said(str(number)) for number in range(100)]


@pytest.mark.parametrize("how", ["close", "forget"])
def test_a_generator_that_is_left_early_leaves_nothing(how):
    with llm(tokens=8_000, params={"max_tokens": None}) as omni:
        answers = omni.generate(["short", *(f"x{n}" for n in range(8))], [{"max_tokens": 2}, *[None] * 8], stream=True)
        assert len(next(answers).text()) == 2
        assert holds(omni) == 8
        if how == "close":
            answers.close()
        del answers
        gc.collect()
        assert holds(omni) == 0


def test_in_a_notebook_where_a_loop_is_running():
    async def cell():
        with llm() as omni:
            return omni.generate(["a", "b"])

    assert [answer.text() for answer in asyncio.run(cell())] == [said("a"), said("b")]


def test_without_with_and_closed_twice():
    omni = llm()
    assert omni.health().ready
    assert omni.close() is omni.close()
    assert omni.health() is None
    with pytest.raises(RuntimeClosed):
        omni.generate("x")


def test_several_threads():
    texts = {}
    with llm() as omni:

        def ask(name):
            texts[name] = [answer.text() for answer in omni.generate([name] * 5)]

        threads = [threading.Thread(target=ask, args=(f"thread {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == {name: [said(name)] * 5 for name in texts}
    assert len(texts) == 4


def test_two_runtimes_in_one_process():
    with llm() as one, llm(tokens=3) as two:
        assert (one.generate("x")[0].text(), two.generate("x")[0].text()) == (said("x"), said("x", 3))


def test_closing_while_it_generates_answers_all_of_them():
    with llm(tokens=8_000, params={"max_tokens": None}) as omni:
        answers = omni.generate(["a", "b"], [{"max_tokens": 2}, None], stream=True)
        next(answers)
        omni.close(drain_s=0)
        (last,) = answers
    assert isinstance(last, RequestFailed)
    assert "aborted" in str(last)
    assert last.terminal.text()


def test_what_does_not_start_says_why_and_leaves_no_thread():
    broken = core("llm", output="text", handshake="exit", stderr="no such weights")
    with pytest.raises(StartupFailed, match="no such weights"):
        Omni(pipeline(broken), world=MemoryWorld())


def test_the_bar_is_for_terminals_and_for_those_who_want_it(capsys):
    with llm() as omni:
        omni.generate(["a", "b"])
        assert capsys.readouterr().err == ""
        omni.generate(["a", "b"], progress=True)
        assert "2/2" in (shown := capsys.readouterr().err)
        assert "tokens/s" in shown


def test_rates():
    meter = Meter(tokens=100, began=time.monotonic() - 2)
    assert meter.rates() in ("50 tokens/s", "49 tokens/s")
    meter.audio_s = 4
    assert meter.rates().endswith("RTF 0.50")
