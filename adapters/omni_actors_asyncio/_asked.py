"""What a caller of ``generate`` asks for, in vLLM's words, as what the runtime is asked for.

Everything that vLLM's signature has is passed on or refused with a reason; nothing is dropped.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest

from omni_actors import InvalidRequest

__all__ = ["ReasoningInputs", "output_kind", "plain_prompt", "streamed", "text_of", "tokens_of"]


def plain_prompt(prompt: Any, options: dict[str, Any]) -> Any:
    """What the runtime takes. A finished EngineCoreRequest (deprecated in vLLM) is taken apart, if it is tokens only.

    Raises NotImplementedError for an input stream, InvalidRequest for an EngineCoreRequest that carries data.
    """
    if isinstance(prompt, AsyncGenerator):
        raise NotImplementedError("streaming input (a generator of StreamingInput) is not supported; send it as one")
    if not isinstance(prompt, EngineCoreRequest):
        return prompt
    if prompt.prompt_token_ids is None or prompt.prompt_embeds is not None or prompt.mm_features:
        raise InvalidRequest("an EngineCoreRequest with embeddings or multi-modal data: pass the rendered prompt")
    for name in ("lora_request", "trace_headers", "data_parallel_rank", "reasoning_ended", "reasoning_parser_kwargs"):
        if (value := getattr(prompt, name, None)) is not None:
            options[name] = value
    inputs: dict[str, Any] = {"type": "token", "prompt_token_ids": prompt.prompt_token_ids}
    if prompt.cache_salt is not None:
        inputs["cache_salt"] = prompt.cache_salt
    return inputs


def output_kind(sampling: Any) -> RequestOutputKind:
    """What the caller wants to get; vLLM's default is CUMULATIVE."""
    if isinstance(sampling, SamplingParams):
        return sampling.output_kind
    given = sampling.get("output_kind") if isinstance(sampling, Mapping) else None
    return RequestOutputKind.CUMULATIVE if given is None else RequestOutputKind(given)


def streamed(sampling: Any) -> Any:
    """The same params with DELTA output: the runtime streams always, so that an abort can hand back what there is.

    Raises InvalidRequest for pooling params and other strangers.
    """
    if isinstance(sampling, SamplingParams):
        params = copy.copy(sampling)
        params.output_kind = RequestOutputKind.DELTA
        return params
    if sampling is None or isinstance(sampling, Mapping):
        return {**(sampling or {}), "output_kind": RequestOutputKind.DELTA.value}
    raise InvalidRequest(f"sampling params are vLLM's SamplingParams or their fields, not {type(sampling).__name__}")


def text_of(prompt: Any, text: str | None) -> str | None:
    """What ``RequestOutput.prompt`` will say."""
    if text is not None:
        return text
    if isinstance(prompt, str):
        return prompt
    found = _decoder(prompt).get("prompt")
    return found if isinstance(found, str) else None


def tokens_of(prompt: Any) -> list[int]:
    """The prompt's token ids, as far as they are known before it is processed."""
    if isinstance(prompt, list | tuple) and prompt and type(prompt[0]) is int:
        return list(prompt)
    return list(_decoder(prompt).get("prompt_token_ids") or ())


def _decoder(prompt: Any) -> Mapping[str, Any]:
    """The half of an encoder-decoder prompt that a RequestOutput shows; the whole of any other."""
    if not isinstance(prompt, Mapping):
        return {}
    inner = prompt.get("decoder_prompt")
    return inner if isinstance(inner, Mapping) else prompt


class ReasoningInputs:
    """vLLM's InputProcessor, whose ``process_inputs`` also takes the two things that AsyncLLM sets on the request."""

    def __init__(self, processor: Any) -> None:
        process = processor.process_inputs
        signature = inspect.signature(process)
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in ("reasoning_ended", "reasoning_parser_kwargs")
        ]

        def process_inputs(
            *args: Any,
            reasoning_ended: bool | None = None,
            reasoning_parser_kwargs: dict[str, Any] | None = None,
            **kwargs: Any,
        ) -> Any:
            request = process(*args, **kwargs)
            if reasoning_ended is not None:
                request.reasoning_ended = reasoning_ended
            if reasoning_parser_kwargs is not None:
                request.reasoning_parser_kwargs = reasoning_parser_kwargs
            return request

        known = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        process_inputs.__signature__ = signature.replace(parameters=[*known, *more])  # type: ignore[attr-defined]
        self.process_inputs = process_inputs
