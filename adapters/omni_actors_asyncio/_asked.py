"""What a caller of ``generate`` asks for, in vLLM's words, as what the runtime is asked for.

Everything that vLLM's signature has is passed on or refused with a reason; nothing is dropped.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest

from omni_actors import InvalidRequest

__all__ = ["output_kind", "plain_prompt", "said_params", "streamed", "text_of", "tokens_of"]

_OPTIONS = (
    "lora_request", "trace_headers", "data_parallel_rank", "session_id", "kv_hints", "reasoning_ended",
    "reasoning_parser_kwargs",
)  # fmt: skip


def plain_prompt(prompt: Any, options: dict[str, Any]) -> Any:
    """What the runtime takes. A finished EngineCoreRequest (deprecated in vLLM) is taken apart: rendered input again,
    and what else it says into ``options``.
    """
    if not isinstance(prompt, EngineCoreRequest):
        return prompt
    options |= {name: value for name in _OPTIONS if (value := getattr(prompt, name, None)) is not None}
    salt = {} if prompt.cache_salt is None else {"cache_salt": prompt.cache_salt}
    return _input(prompt) | salt


def _input(request: EngineCoreRequest) -> dict[str, Any]:
    """vLLM's EngineInput, of which ``process_inputs`` made the request."""
    tokens = {} if request.prompt_token_ids is None else {"prompt_token_ids": request.prompt_token_ids}
    if request.prompt_embeds is not None:
        mask = {} if request.prompt_is_token_ids is None else {"is_token_ids": request.prompt_is_token_ids}
        return {"type": "embeds", "prompt_embeds": request.prompt_embeds, **tokens, **mask}
    if not request.mm_features:
        return {"type": "token", **tokens}
    data: dict[str, dict[str, list[Any]]] = {"mm_kwargs": {}, "mm_placeholders": {}, "mm_hashes": {}}
    for feature in request.mm_features:
        for name, value in zip(data, (feature.data, feature.mm_position, feature.mm_hash), strict=True):
            data[name].setdefault(feature.modality, []).append(value)
    return {"type": "multimodal", **tokens, **data}


def said_params(prompt: Any, sampling: Any) -> Any:
    """A finished EngineCoreRequest's own params win, as with AsyncLLM; what is said beside it tells how to output."""
    if not isinstance(prompt, EngineCoreRequest) or prompt.sampling_params is None:
        return sampling
    params = copy.copy(prompt.sampling_params)
    params.output_kind = output_kind(sampling)
    return params


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
