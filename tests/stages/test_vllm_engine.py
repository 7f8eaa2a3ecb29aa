"""The client against a real vLLM engine: one engine for all of these tests, a tiny random model."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import warnings

import pytest
import trio

from omni_actors._errors import EngineRejected
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import Released
from omni_actors.stages.vllm import KIND
from omni_actors.transport import ZmqTransport

pytestmark = [pytest.mark.engine, pytest.mark.process]
pytest.importorskip("vllm")

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(120))]
GREEDY = {"temperature": 0, "ignore_eos": True}


def make_model(folder):
    """Two random layers; word ``w7`` is token 10."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(WORDS)}, "unk_token": "<unk>"},
    }  # fmt: skip
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<pad>"}
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, eos_token_id=1, pad_token_id=0,
        bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))


class Stage:
    def __init__(self, client, frontend):
        self.client, self.frontend = client, frontend
        self.events = {}
        self.changed = trio.Event()
        self._keys = iter(range(10_000))

    async def emit(self, events):
        for event in events:
            self.events.setdefault(event.key, []).append(event)
        self.changed.set()
        self.changed = trio.Event()

    def submit(self, params, *, prompt="w1 w2 w3", n=1, **how):
        keys = [f"k-{next(self._keys)}" for _ in range(n)]
        how = {"stream": True, "text": True} | how
        for work in self.frontend.prepare(keys, prompt, params, **how):
            self.client.submit(work)
        return keys

    async def until(self, key, done):
        while not done(self.events.get(key, [])):
            await self.changed.wait()
        return self.events[key]

    async def finished(self, key):
        events = await self.until(key, lambda events: events and getattr(events[-1], "finished", True))
        return [event.payload for event in events]

    async def released(self, key):
        return await self.until(key, lambda events: Released(key) in events)


@contextlib.asynccontextmanager
async def open_stage(folder):
    from omni_actors.stages._process import open_launcher

    engine_args = {"dtype": "float32", "max_model_len": 256, "enforce_eager": True, "max_num_seqs": 64}
    spec = StageSpec(
        name="thinker", engine="vllm", model=str(folder / "model"), engine_args=engine_args, env={"HF_HUB_OFFLINE": "1"}
    )
    transport = ZmqTransport(folder)
    made = []
    client = KIND.client(spec, lambda: made[0], transport, replica=0, generation=1)
    launch = KIND.launch(spec, client.addresses, replica=0, generation=1)
    async with open_launcher(cookie=f"test-{secrets.token_hex(8)}") as launcher:
        process = await launcher.spawn(launch)
        try:
            made.append(await trio.to_thread.run_sync(KIND.frontend, spec))
            with trio.fail_after(300):
                await client.handshake()
            yield Stage(client, made[0]), process
        finally:
            process.terminate()
            with trio.move_on_after(20, shield=True):
                await process.wait()
            await process.destroy(2)
            client.close()
            transport.close()


async def scenarios(stage):
    client = stage.client

    (key,) = stage.submit({**GREEDY, "max_tokens": 6})
    streamed = await stage.finished(key)
    assert len(streamed) == 6
    assert (streamed[-1].finish_reason, streamed[-1].prompt_tokens) == ("length", 3)

    (key,) = stage.submit({**GREEDY, "max_tokens": 6}, stream=False)
    (whole,) = await stage.finished(key)
    assert whole.text == "".join(chunk.text for chunk in streamed)
    assert whole.native.finished

    (key,) = stage.submit({**GREEDY, "max_tokens": 6}, stream=False, text=False)
    (raw,) = await stage.finished(key)
    assert raw.token_ids == whole.token_ids == [token for chunk in streamed for token in chunk.token_ids]
    assert (raw.text, raw.native) == ("", None)

    # A stop string ends it before the engine does; the engine forgets it after the barrier.
    word = WORDS[whole.token_ids[2]]
    (key,) = stage.submit({**GREEDY, "max_tokens": 200, "stop": [word]})
    events = await stage.released(key)
    last = events[-2]
    assert last.finished
    assert not last.released
    assert (last.payload.finish_reason, last.payload.stop_reason) == ("stop", word)
    assert await client.call("reset_prefix_cache", timeout_s=10) is True

    (key,) = stage.submit({**GREEDY, "max_tokens": 2, "logprobs": 2, "prompt_logprobs": 1})
    first, second = await stage.finished(key)
    assert len(first.logprobs) == len(second.logprobs) == 1
    assert set(first.logprobs[0]) >= set(first.token_ids)
    assert len(first.native.prompt_logprobs) == 3

    sampled = {"n": 2, "seed": 7, "temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    texts = [[chunk.text for chunk in await stage.finished(key)] for key in stage.submit(sampled, n=2)]
    again = [[chunk.text for chunk in await stage.finished(key)] for key in stage.submit(sampled, n=2)]
    assert texts == again
    assert texts[0] != texts[1]
    (key,) = stage.submit({**sampled, "n": 1, "seed": 8})
    assert [chunk.text for chunk in await stage.finished(key)] == texts[1]

    # Many aborted midway, some of them not even begun: all confirmed, and nothing is left in the engine.
    keys = [key for _ in range(20) for key in stage.submit({**GREEDY, "max_tokens": 200})]
    await stage.until(keys[0], lambda events: len(events) >= 5)
    client.abort(keys)
    counts = {key: len(stage.events.get(key, [])) for key in keys}
    for key in keys:
        assert (await stage.released(key))[counts[key] :] == [Released(key)]
    assert await client.call("reset_prefix_cache", timeout_s=10) is True

    with pytest.raises(EngineRejected, match="no_such_method"):
        await client.call("no_such_method", timeout_s=10)
    client.ping()
    while client.owed_since is not None:
        await stage.client.call("is_sleeping", timeout_s=10)


async def test_one_engine_from_handshake_to_clean_exit(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "model").mkdir()
    before = dict(os.environ)
    with warnings.catch_warnings(), trio.fail_after(400):
        warnings.simplefilter("ignore")
        await trio.to_thread.run_sync(make_model, tmp_path / "model")
        async with open_stage(tmp_path) as (stage, process):
            assert stage.frontend.vllm_config.cache_config.num_gpu_blocks > 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.client.serve, stage.emit)
                await scenarios(stage)
                nursery.cancel_scope.cancel()
            process.terminate()
            assert await process.wait() == 0
    assert {name: value for name, value in os.environ.items() if name.startswith("VLLM")} == {
        name: value for name, value in before.items() if name.startswith("VLLM")
    }
