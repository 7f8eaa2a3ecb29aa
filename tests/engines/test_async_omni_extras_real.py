"""AsyncOmni on a real engine with LoRA and prompt embeddings, and how streamed input fails, is left and is refused."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import io
import json
import shutil
import tempfile
import time
from pathlib import Path

import attrs
import httpx
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

_spec = importlib.util.spec_from_file_location("async_llm_program", Path(__file__).with_name("async_llm_program.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)

TOKENS = [7, 3, 9]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
ENDLESS = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}


def thinker():
    whole = cases.thinker()
    stage = whole.stages[0]
    more = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2, "enable_prompt_embeds": True}
    return attrs.evolve(whole, stages=(attrs.evolve(stage, engine_args={**stage.engine_args, **more}),))


@pytest.fixture(scope="module")
def omni():
    pytest.importorskip("vllm")
    from omni_actors_asyncio import AsyncOmni

    with pytest.MonkeyPatch.context() as patch:
        base = Path(tempfile.mkdtemp(prefix="oa-"))  # socket paths must be short
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        omni = asyncio.run(AsyncOmni.open(thinker()))
        try:
            yield omni
        finally:
            report = asyncio.run(omni.close())
            shutil.rmtree(base, ignore_errors=True)
        assert (report.stopped, report.killed) == (("thinker/0",), ())


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> str:
    """A random adapter of rank 4 for the queries and the values."""
    import torch
    from safetensors.torch import save_file

    folder, model = tmp_path_factory.mktemp("adapter"), json.loads((weights() / "config.json").read_text())
    hidden, wide = model["hidden_size"], model["head_dim"]
    random, tensors = torch.Generator().manual_seed(0), {}
    for layer in range(model["num_hidden_layers"]):
        for part, heads in (("q_proj", model["num_attention_heads"]), ("v_proj", model["num_key_value_heads"])):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, hidden, generator=random)
            tensors[f"{name}.lora_B.weight"] = torch.randn(heads * wide, 4, generator=random)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def weights() -> Path:
    return Path(thinker().stages[0].model)


def embeddings(tokens):
    """The model's own, of these tokens: as a prompt they say what the tokens say."""
    from safetensors.torch import load_file

    return load_file(weights() / "model.safetensors")["model.embed_tokens.weight"][tokens].float()


async def said(omni, prompt=None, **more) -> list[int]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(**GREEDY, output_kind=RequestOutputKind.FINAL_ONLY)
    prompt = {"prompt_token_ids": TOKENS} if prompt is None else prompt
    (output,) = [output async for output in omni.generate(prompt, params, "r", **more)]
    return list(output.outputs[0].token_ids)


# ---------------------------------------------------------------------- LoRA


def test_an_adapter_comes_changes_what_is_said_and_goes(omni, adapter):
    from vllm.lora.request import LoRARequest

    async def main():
        lora = LoRARequest("other", 1, adapter)
        plain = await said(omni)
        assert await omni.add_lora(lora)
        assert await omni.list_loras() == {1}
        assert await omni.pin_lora(1)
        changed, again = await said(omni, lora_request=lora), await said(omni)
        assert await omni.remove_lora(1)
        return plain, changed, again, await omni.list_loras()

    plain, changed, again, left = asyncio.run(main())
    assert (again, left) == (plain, set())
    assert changed != plain


def test_vllms_lora_routes(omni, adapter):
    from omni_actors_asyncio.server import ServeOptions, application

    async def main():
        app = await application(omni, ServeOptions(spec=thinker()))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http:
            ask = {"prompt": TOKENS, **GREEDY, "return_token_ids": True}
            loaded = await http.post("/v1/load_lora_adapter", json={"lora_name": "other", "lora_path": adapter})
            assert loaded.status_code == 200, loaded.text
            models = [model["id"] for model in (await http.get("/v1/models")).json()["data"]]
            answers = [await http.post("/v1/completions", json={**ask, "model": model}) for model in models]
            unloaded = await http.post("/v1/unload_lora_adapter", json={"lora_name": "other"})
            assert unloaded.status_code == 200, unloaded.text
            gone = await http.post("/v1/completions", json={**ask, "model": "other"})
        return models, [answer.json()["choices"][0]["token_ids"] for answer in answers], gone.status_code

    models, (plain, changed), gone = asyncio.run(main())
    assert (models, gone) == (["tiny-omni", "other"], 404)
    assert changed != plain


# ---------------------------------------------------------------------- embeddings as a prompt


def test_embeddings_say_what_their_tokens_say(omni):
    async def main():
        return await said(omni), await said(omni, {"prompt_embeds": embeddings(TOKENS)})

    tokens, embeds = asyncio.run(main())
    assert embeds == tokens


def test_a_request_that_vllm_has_prepared(omni):
    """An EngineCoreRequest, deprecated as it is: its own params win, and how to output is what is said beside it."""
    from vllm import SamplingParams

    async def main():
        answers = []
        for inputs in (
            {"type": "embeds", "prompt_embeds": embeddings(TOKENS)},
            {"type": "token", "prompt_token_ids": TOKENS},
        ):
            params = SamplingParams(**{**GREEDY, "max_tokens": 5})
            request = omni.input_processor.process_inputs("x", inputs, params, ("generate",))
            answers.append(await said(omni, request))
        return await said(omni), answers

    whole, answers = asyncio.run(main())
    assert answers == [whole[:5], whole[:5]]


def test_embeddings_over_http(omni):
    import torch
    from omni_actors_asyncio.server import ServeOptions, application

    async def main():
        packed = io.BytesIO()
        torch.save(embeddings(TOKENS), packed)
        app = await application(omni, ServeOptions(spec=thinker()))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http:
            data = base64.b64encode(packed.getvalue()).decode()
            ask = {"prompt_embeds": data, "prompt": None, **GREEDY, "return_token_ids": True}
            answer = await http.post("/v1/completions", json={**ask, "model": "tiny-omni"})
            assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["token_ids"], await said(omni)

    embeds, tokens = asyncio.run(main())
    assert embeds == tokens


# ---------------------------------------------------------------------- streamed input


class Pieces:
    """An input that gives its first piece at once, and waits with the next one. Knows how it ended."""

    def __init__(self, *, error: Exception | None = None, second=None) -> None:
        from vllm.engine.protocol import StreamingInput

        self.ended: list[str] = []
        self.go_on, self.over = asyncio.Event(), asyncio.Event()
        self._kind, self._error, self._second = StreamingInput, error, second

    async def give(self):
        try:
            yield self._kind({"type": "token", "prompt_token_ids": TOKENS})
            await self.go_on.wait()
            if self._error is not None:
                raise self._error
            if self._second is not None:
                yield self._kind(self._second)
        finally:
            self.ended.append("ended")
            self.over.set()


def session(omni, pieces: Pieces, given=GREEDY, request_id="session", **more):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(**{**given, **more.pop("params", {})}, output_kind=RequestOutputKind.DELTA)
    return omni.generate(pieces.give(), params, request_id, **more)


async def free(omni) -> tuple[int, bool]:
    """What the runtime still holds, and whether the engine does not; asked behind what that has to confirm."""
    free = await omni.reset_prefix_cache()
    return (await omni.statistics()).requests, free


async def until_piece_ends(stream) -> list[int]:
    tokens = []
    async for output in stream:
        tokens += output.outputs[0].token_ids
        if output.outputs[0].finish_reason is not None:
            break
    return tokens


def test_between_two_pieces_the_engine_owes_nothing(omni):
    """One lease, at rest; then the session goes on, in its own engine state."""

    async def main():
        pieces = Pieces(second={"type": "token", "prompt_token_ids": [4]})
        stream = session(omni, pieces)
        first = await until_piece_ends(stream)
        resting = await omni.statistics(), await omni._cross(stalled)
        pieces.go_on.set()
        second = [token async for output in stream for token in output.outputs[0].token_ids]
        return first, second, resting, pieces.ended, await free(omni)

    async def stalled(bridge):
        client = bridge.omni._stages["thinker"].replicas[0].client
        return client.owed_since

    first, second, (statistics, owed), ended, left = asyncio.run(main())
    assert (len(first), len(second)) == (12, 12)
    assert (statistics.leases, statistics.requests, owed) == (1, 1, None)
    assert (ended, left) == (["ended"], (0, True))


def test_an_input_that_raises_fails_the_request(omni):
    class Broken(Exception):
        pass

    async def main():
        pieces = Pieces(error=Broken("the microphone is gone"))
        stream = session(omni, pieces, ENDLESS)
        await anext(stream)
        pieces.go_on.set()
        with pytest.raises(Broken, match="microphone"):
            async for _ in stream:
                pass
        return pieces.ended, await free(omni)

    assert asyncio.run(main()) == (["ended"], (0, True))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"type": "token", "prompt_token_ids": [1] * 300}, "256"),
        ({"type": "token", "prompt_token_ids": [10_000_000]}, "vocabulary"),
        ({"prompt": ""}, "empty"),
        ("embeds", "prompt_embeds"),
    ],
)
def test_a_piece_that_is_refused_fails_the_request(omni, second, words):
    from vllm.exceptions import VLLMClientError

    async def main():
        piece = {"type": "embeds", "prompt_embeds": embeddings(TOKENS)} if second == "embeds" else second
        pieces = Pieces(second=piece)
        stream = session(omni, pieces, ENDLESS)
        await anext(stream)
        pieces.go_on.set()
        with pytest.raises(VLLMClientError, match=words):
            async for _ in stream:
                pass
        return pieces.ended, await free(omni)

    assert asyncio.run(main()) == (["ended"], (0, True))


@pytest.mark.parametrize("given", [GREEDY, ENDLESS], ids=["between two pieces", "while it answers"])
def test_leaving_ends_the_input_and_frees_the_engine(omni, given):
    async def main():
        pieces = Pieces()
        stream = session(omni, pieces, given)
        if given is GREEDY:
            await until_piece_ends(stream)
        else:
            await anext(stream)
        began = time.monotonic()
        await stream.aclose()
        took_s = time.monotonic() - began
        await asyncio.wait_for(pieces.over.wait(), 10)  # its task ends in its own time
        return took_s, await free(omni)

    took_s, left = asyncio.run(main())
    assert left == (0, True)
    assert took_s < 2


def test_leaving_before_the_first_piece(omni):
    async def main():
        async def never():
            try:
                await asyncio.Event().wait()
                yield
            finally:
                ended.append("ended")

        from vllm import SamplingParams

        ended = []
        waiting = asyncio.ensure_future(anext(omni.generate(never(), SamplingParams(), "r")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return ended, await free(omni)

    assert asyncio.run(main()) == (["ended"], (0, True))


def test_an_abort_ends_a_session_and_hands_back_what_it_made(omni):
    async def main():
        pieces = Pieces()
        stream = session(omni, pieces, request_id="spoken")
        first = await until_piece_ends(stream)
        (report,) = await omni.abort("spoken")
        (last,) = [output async for output in stream]
        return first, report, last, pieces.ended, await free(omni)

    first, report, last, ended, left = asyncio.run(main())
    assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
    assert report.terminals[0].token_ids("thinker") == first
    assert (report.unconfirmed, ended, left) == ((), ["ended"], (0, True))


def test_what_vllm_streams_no_input_with_is_refused_in_its_words(omni):
    from vllm import PoolingParams, SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RequestOutputKind

    async def main():
        for params in (
            SamplingParams(n=2),
            SamplingParams(stop=["x"]),
            SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY),
            PoolingParams(),
        ):
            with pytest.raises(VLLMValidationError, match="Input streaming not currently supported"):
                await anext(omni.generate(Pieces().give(), params, "r"))
        with pytest.raises(NotImplementedError):
            await anext(session(omni, Pieces(), reasoning_ended=True))
        return await free(omni)

    assert asyncio.run(main()) == (0, True)


def test_many_sessions_at_once_say_what_one_says(omni):
    async def one():
        pieces = Pieces(second={"type": "token", "prompt_token_ids": [4]})
        pieces.go_on.set()
        return [token async for output in session(omni, pieces) for token in output.outputs[0].token_ids]

    async def main():
        alone = await one()
        together = await asyncio.gather(*(one() for _ in range(32)))
        return alone, together, await free(omni)

    alone, together, left = asyncio.run(main())
    assert len(alone) == 24
    assert together == [alone] * 32
    assert left == (0, True)
