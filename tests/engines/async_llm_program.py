"""The same questions for AsyncLLM and for AsyncOmni; as a program: AsyncLLM's answers, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import attrs

from omni_actors.pipelines.tiny_omni import pipeline

QUESTION = "what is two plus three"
GIBBERISH = {"type": "token", "prompt_token_ids": [7, 3, 9]}  # of a real question this model is too sure
FREE = {"temperature": 2.0, "max_tokens": 24, "ignore_eos": True}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "greedy": (QUESTION, {"temperature": 0, "max_tokens": 32}),
    "seeded": (GIBBERISH, {**FREE, "seed": 3}),
    "n=2": (GIBBERISH, {**FREE, "seed": 5, "n": 2}),
    "n=2, each with its end": (GIBBERISH, {**FREE, "ignore_eos": False, "seed": 11, "n": 2, "stop": ["e"]}),
    "stop string": (GIBBERISH, {**FREE, "seed": 5, "stop": ["a", "o"]}),
    "stop string, shown": (GIBBERISH, {**FREE, "seed": 5, "stop": ["a", "o"], "include_stop_str_in_output": True}),
    "stop string of two": (GIBBERISH, {**FREE, "seed": 8, "stop": ["zq", "qz", "th"], "max_tokens": 60}),
    "stop token": (GIBBERISH, {**FREE, "seed": 5, "stop_token_ids": [4, 5, 6, 7, 8]}),
    "logprobs": (QUESTION, {"temperature": 0, "max_tokens": 12, "logprobs": 2}),
    "logprobs, n=2": (GIBBERISH, {**FREE, "seed": 5, "n": 2, "logprobs": 1}),
    "prompt logprobs": (QUESTION, {"temperature": 0, "max_tokens": 6, "prompt_logprobs": 1}),
    "token ids alone": (QUESTION, {"temperature": 0, "max_tokens": 12, "detokenize": False}),
    "at least": (QUESTION, {"temperature": 0, "max_tokens": 40, "min_tokens": 38}),
    "bias": (QUESTION, {"temperature": 0, "max_tokens": 6, "logit_bias": {5: 50.0}}),
}
KINDS = ("DELTA", "CUMULATIVE", "FINAL_ONLY")
SESSIONS: dict[str, list[tuple[Any, dict[str, Any] | None]]] = {
    "no piece": [],
    "one piece": [([7, 3, 9], None)],
    "three pieces": [([7, 3, 9], None), ([4, 5], None), ([6, 6, 6], {"temperature": 0, "max_tokens": 9})],
    "in words": [(QUESTION, None), (" minus four", None)],
    "logprobs": [([7, 3, 9], {**FREE, "seed": 3, "logprobs": 1}), ([4], {**FREE, "seed": 4, "logprobs": 1})],
}
"""Streamed input: prompts with params of their own, or the session's."""
SESSION_PARAMS = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
SESSION_KINDS = ("DELTA", "CUMULATIVE")


def thinker() -> Any:
    """tiny-omni's first stage alone, as it is but for its transform: both get the same prompt."""
    whole = pipeline()
    stage = attrs.evolve(whole.stage("thinker"), transform=None)
    return attrs.evolve(whole, stages=(stage,))


async def all_answers(engine: Any) -> dict[str, Any]:
    """What it says to each case, in each kind of output."""
    answers = {f"{name}: {kind}": await answer(engine, name, kind) for name in CASES for kind in KINDS}
    for name in SESSIONS:
        for kind in SESSION_KINDS:
            answers[f"session, {name}: {kind}"] = await session(engine, name, kind, in_turn=True)
    return answers


async def answer(engine: Any, name: str, kind: str) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    prompt, given = CASES[name]
    params = SamplingParams(**given, output_kind=RequestOutputKind[kind])
    if isinstance(prompt, str):
        prompt = rendered(engine, prompt)
    outputs = [output async for output in engine.generate(prompt, params, f"{name}, {kind}")]
    return added_up(outputs, delta=kind == "DELTA")


async def session(engine: Any, name: str, kind: str, *, in_turn: bool) -> dict[str, Any]:
    """What is said to a session's pieces. ``in_turn``: each is given when the one before has been answered."""
    from vllm import SamplingParams
    from vllm.engine.protocol import StreamingInput
    from vllm.sampling_params import RequestOutputKind

    answered = asyncio.Event()

    def params(given: dict[str, Any] | None) -> Any:
        return SamplingParams(**(given or SESSION_PARAMS), output_kind=RequestOutputKind[kind])

    async def pieces() -> Any:
        for prompt, given in SESSIONS[name]:
            # vLLM extends the list that it gets.
            inputs = rendered(engine, prompt if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)})
            yield StreamingInput(inputs, given and params(given))
            if in_turn:
                await answered.wait()
            answered.clear()

    text, tokens, reasons, logprobs, prompt, prompt_tokens = "", [], [], [], None, []
    async for output in engine.generate(pieces(), params(None), f"session, {name}, {kind}"):
        (choice,) = output.outputs
        text, tokens = (text, tokens) if kind == "DELTA" else ("", [])
        text, tokens = text + choice.text, tokens + list(choice.token_ids)
        logprobs = (logprobs if kind == "DELTA" else []) + (_logprobs(choice.logprobs) or [])
        prompt, prompt_tokens = output.prompt, list(output.prompt_token_ids)
        if choice.finish_reason is not None:
            reasons.append(choice.finish_reason)
            answered.set()
    return {
        "text": text,
        "tokens": tokens,
        "reasons": reasons if in_turn else reasons[-1:],
        "logprobs": logprobs,
        "prompt": prompt,
        "prompt_token_ids": prompt_tokens,
    }


def rendered(engine: Any, prompt: Any) -> Any:
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    parsed = parse_model_prompt(engine.model_config, prompt)
    (inputs,) = engine.renderer.render_cmpl([parsed], engine.renderer.default_cmpl_tok_params)
    return inputs


def added_up(outputs: list[Any], *, delta: bool) -> dict[str, Any]:
    """All that was said, however it was cut; in JSON's terms."""
    first, last = outputs[0], outputs[-1]
    choices: dict[int, dict[str, Any]] = {}
    for output in outputs:
        assert (output.request_id, output.prompt) == (first.request_id, first.prompt)
        assert output.prompt_token_ids == first.prompt_token_ids
        for choice in output.outputs:
            before = choices.get(choice.index) if delta else None
            choices[choice.index] = _choice(choice, before or {"text": "", "tokens": [], "logprobs": []})
            if not delta and before is None:
                choices[choice.index] = _choice(choice, {"text": "", "tokens": [], "logprobs": []})
    return {
        "request_id": first.request_id,
        "prompt": first.prompt,
        "prompt_token_ids": list(first.prompt_token_ids),
        "prompt_logprobs": _logprobs(first.prompt_logprobs),
        "choices": {str(index): choices[index] for index in sorted(choices)},
        "finished": [output.finished for output in outputs].index(True) == len(outputs) - 1 and last.finished,
    }


def _choice(choice: Any, before: dict[str, Any]) -> dict[str, Any]:
    return {
        "text": before["text"] + choice.text,
        "tokens": before["tokens"] + list(choice.token_ids),
        "logprobs": before["logprobs"] + (_logprobs(choice.logprobs) or []),
        "cumulative_logprob": choice.cumulative_logprob,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }


def _logprobs(positions: Any) -> Any:
    if positions is None:
        return None
    return [
        position and {str(token): [one.logprob, one.rank, one.decoded_token] for token, one in position.items()}
        for position in positions
    ]


async def reference() -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from omni_actors.stages.vllm._frontend import engine_args

    stage = thinker().stages[0]
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args(stage), disable_log_stats=True))
    try:
        answers = await all_answers(llm)
    finally:
        llm.shutdown()
    sys.__stdout__.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    from omni_actors.stages.vllm._kind import _CPU_ENV, _ENV

    for variable, value in {**_ENV, **_CPU_ENV, **thinker().stages[0].env}.items():
        os.environ.setdefault(variable, value)
    asyncio.run(reference())
