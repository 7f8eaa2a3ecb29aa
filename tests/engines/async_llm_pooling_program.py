"""The same prompts to pool for AsyncLLM and for AsyncOmni; as a program: AsyncLLM's answers, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import attrs

from omni_actors.pipelines.tiny_omni import pipeline

POOLING = {"runner": "pooling", "convert": "embed"}
QUESTION, TOKENS = "what is two plus three", [7, 3, 9, 4, 5]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": (QUESTION, {"task": "embed"}),
    "token ids": ({"prompt_token_ids": TOKENS}, {"task": "embed"}),
    "not normalized": ({"prompt_token_ids": TOKENS}, {"task": "embed", "use_activation": False}),
    "each token": ({"prompt_token_ids": TOKENS}, {"task": "token_embed"}),
    "no task": ({"prompt_token_ids": TOKENS}, {}),
    "as long as it may be": ({"prompt_token_ids": TOKENS * 51 + [1]}, {"task": "embed"}),
}


def embedder() -> Any:
    """tiny-omni's first stage as one that embeds."""
    whole = pipeline()
    stage = whole.stage("thinker")
    arguments = {**stage.engine_args, **POOLING}
    stage = attrs.evolve(stage, transform=None, params={}, output="embedding", engine_args=arguments)
    return attrs.evolve(whole, stages=(stage,))


async def answer(engine: Any, name: str, **more: Any) -> dict[str, Any]:
    from vllm import PoolingParams
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    prompt, given = CASES[name]
    parsed = parse_model_prompt(engine.model_config, prompt)
    (rendered,) = engine.renderer.render_cmpl([parsed], engine.renderer.default_cmpl_tok_params)
    (output,) = [output async for output in engine.encode(rendered, PoolingParams(**given), name, **more)]
    return {
        "type": type(output).__name__,
        "request_id": output.request_id,
        "data": output.outputs.data.tolist(),
        "prompt_token_ids": list(output.prompt_token_ids),
        "finished": output.finished,
    }


async def reference() -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from omni_actors.stages.vllm._frontend import engine_args

    stage = embedder().stages[0]
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args(stage), disable_log_stats=True))
    try:
        answers: dict[str, Any] = {name: await answer(llm, name) for name in CASES}
        answers["tasks"] = sorted(await llm.get_supported_tasks())
    finally:
        llm.shutdown()
    sys.__stdout__.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    from omni_actors.stages.vllm._kind import _CPU_ENV, _ENV

    for variable, value in {**_ENV, **_CPU_ENV, **embedder().stages[0].env}.items():
        os.environ.setdefault(variable, value)
    asyncio.run(reference())
