"""A stage whose model pools: AsyncOmni.encode gives what AsyncLLM.encode gives, and vLLM's server embeds with it."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest
import uvloop
import yaml

from .reference import opened, said_by

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAM = HERE / "async_llm_pooling_program.py"
cases = load(PROGRAM)
ServerProcess = load(HERE.parent / "serve" / "server_process.py").ServerProcess


@pytest.fixture(scope="module")
def vllms_answers() -> Iterator[Callable[[], dict]]:
    """It makes them while ours starts."""
    with said_by(PROGRAM) as answers:
        yield answers


@pytest.fixture(scope="module")
def omni(vllms_answers):
    with opened(cases.embedder()) as omni:
        yield omni


@pytest.fixture(scope="module")
def said_by_vllm(vllms_answers) -> dict:
    return vllms_answers()


def flat(data) -> list[float]:
    return [number for each in data for number in flat(each)] if isinstance(data, list) else [data]


def near(ours, theirs) -> bool:
    ours, theirs = flat(ours), flat(theirs)
    return len(ours) == len(theirs) and all(abs(a - b) < 1e-5 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", cases.CASES)
def test_it_says_what_vllm_says(omni, said_by_vllm, name):
    more = {"priority": -1, "trace_headers": {"traceparent": "00-1-2-01"}, "reasoning_ended": True}
    ours, theirs = uvloop.run(cases.answer(omni, name, **more)), said_by_vllm[name]
    assert near(ours.pop("data"), theirs["data"])
    assert ours == {key: value for key, value in theirs.items() if key != "data"}


def test_sixty_four_at_once_say_what_one_says(omni, said_by_vllm):
    async def main():
        return await asyncio.gather(*(cases.answer(omni, "token ids") for _ in range(64)))

    assert all(near(ours["data"], said_by_vllm["token ids"]["data"]) for ours in uvloop.run(main()))


def test_it_can_do_what_vllm_can_do(omni, said_by_vllm):
    assert sorted(asyncio.run(omni.get_supported_tasks())) == said_by_vllm["tasks"]


def test_a_question_in_words_and_vllms_params_as_a_mapping(omni, said_by_vllm):
    async def main():
        (output,) = [output async for output in omni.encode(cases.QUESTION, {"task": "embed"}, "r")]
        return output.outputs.data.tolist()

    assert near(asyncio.run(main()), said_by_vllm["text"]["data"])


def test_the_runtimes_own_way(omni, said_by_vllm):
    """No vLLM in sight: a prompt, a task, a tensor. The terminal has it too, and counts the prompt's tokens."""

    async def main():
        stream = omni.generate_omni(cases.QUESTION, {"task": "embed"})
        (output,) = [output async for output in stream]
        return output, stream.terminal

    output, terminal = asyncio.run(main())
    assert output.modality == "embedding"
    assert near(output.payload.tensors["pooled"].tolist(), said_by_vllm["text"]["data"])
    assert output.payload.meta["prompt_token_ids"] == said_by_vllm["text"]["prompt_token_ids"]
    assert terminal.prompt_tokens == len(said_by_vllm["text"]["prompt_token_ids"])
    assert list(terminal.results["thinker"][0].tensors) == ["pooled"]


def test_what_it_cannot_do_is_refused_and_the_engine_lives(omni):
    from vllm import PoolingParams, SamplingParams
    from vllm.exceptions import VLLMClientError
    from vllm.lora.request import LoRARequest

    def encode(params, prompt=(1, 2), **more):
        return omni.encode({"prompt_token_ids": list(prompt)}, params, "r", **more)

    async def main():
        for refused, words in (
            (encode(PoolingParams(task="classify")), "Unsupported task"),
            (encode(PoolingParams(task="embed", dimensions=3)), "Matryoshka"),
            (encode({"tsak": "embed"}), "tsak"),
            (encode(SamplingParams()), "PoolingParams"),
            (encode(None, [1] * 257), "256"),
            (encode(None, [100_000]), "vocabulary"),
            (encode(None, lora_request=LoRARequest("l", 1, "nowhere")), "LoRA is not enabled"),
            (omni.generate({"prompt_token_ids": [1]}, SamplingParams(), "r"), "PoolingParams"),
        ):
            with pytest.raises(VLLMClientError, match=words):
                await anext(refused)
        return await omni.call("thinker", "has_work")

    assert asyncio.run(main()) == [False]


def test_leaving_and_aborting(omni):
    """Paused, so that nothing is answered before it is taken back."""
    from vllm import PoolingParams

    def ask(name):
        return omni.encode({"prompt_token_ids": [7, 3]}, PoolingParams(task="embed"), name)

    async def main():
        await omni.pause_generation()
        left, aborted = asyncio.ensure_future(anext(ask("left"))), asyncio.ensure_future(anext(ask("aborted")))
        while (await omni.statistics()).leases < 2:  # a round trip each
            pass
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        (report,) = await omni.abort("aborted")
        output = await aborted
        leases = (await omni.statistics()).leases
        await omni.resume_generation()
        return report, output, leases, await omni.reset_prefix_cache()

    report, output, leases, forgotten = asyncio.run(main())
    assert (report.known, report.unconfirmed, leases, forgotten) == (True, (), 0, True)
    assert (output.finished, len(output.outputs.data), output.prompt_token_ids) == (True, 0, [7, 3])


def test_vllms_own_server_on_it(omni, said_by_vllm):
    """In this process: /v1/embeddings by the openai SDK, /pooling, /score; what it cannot do is a 4xx."""
    from omni_actors_asyncio.server import ServeOptions, application

    async def main():
        app = await application(omni, ServeOptions(spec=cases.embedder()))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            sdk = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
            made = await sdk.embeddings.create(model="tiny-omni", input=[cases.QUESTION, cases.QUESTION.upper()])
            tokens = await sdk.embeddings.create(model="tiny-omni", input=cases.TOKENS, encoding_format="float")
            pooled = await http.post("/pooling", json={"model": "tiny-omni", "input": cases.QUESTION, "task": "embed"})
            score = await http.post("/score", json={"queries": "two plus three", "documents": ["two plus three"]})
            chat = await http.post("/v1/completions", json={"prompt": "x"})
            with pytest.raises(openai.BadRequestError, match="256"):
                await sdk.embeddings.create(model="tiny-omni", input=[[1] * 300])
        return made, tokens, pooled, score, chat

    made, tokens, pooled, score, chat = asyncio.run(main())
    assert [len(each.embedding) for each in made.data] == [128, 128]
    assert near(made.data[0].embedding, said_by_vllm["text"]["data"])
    assert near(tokens.data[0].embedding, said_by_vllm["token ids"]["data"])
    assert made.usage.prompt_tokens == 2 * len(said_by_vllm["text"]["prompt_token_ids"])
    assert pooled.status_code == 200, pooled.text
    assert near(pooled.json()["data"][0]["data"], said_by_vllm["text"]["data"])
    assert score.status_code == 200, score.text
    assert math.isclose(score.json()["data"][0]["score"], 1, abs_tol=1e-4)
    assert 400 <= chat.status_code < 500


def test_omni_actors_serve(said_by_vllm, tmp_path):
    stage = cases.embedder().stages[0]
    config = {
        "name": "embedder",
        "stages": [
            {
                "name": stage.name,
                "engine": "vllm",
                "model": stage.model,
                "output": "embedding",
                "engine_args": dict(stage.engine_args),
                "env": dict(stage.env),
            }
        ],
    }
    (tmp_path / "embedder.yaml").write_text(yaml.safe_dump(config))
    server = ServerProcess(pipeline=str(tmp_path / "embedder.yaml"), overrides=())
    try:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
            (model,) = sdk.models.list().data
            made = sdk.embeddings.create(model=model.id, input=cases.QUESTION)
        assert near(made.data[0].embedding, said_by_vllm["text"]["data"])
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    finally:
        server.close()
