"""A chat as its stage takes it, made by vLLM's own request model, renderer and defaults.

So a chat with audio has the same prompt and the same sampling params as the same chat without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from ._door import Rendered
from ._refusals import HttpError, public

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VllmChats"]


@attrs.frozen
class VllmChats:
    """A ``Door.render``. ``serving`` gives vLLM's OpenAIServingChat, which is there once the app has its state."""

    serving: Callable[[], Any]

    async def __call__(self, fields: Mapping[str, Any]) -> Rendered:
        serving, request = self.serving(), _validated(fields)
        try:
            return await _rendered(request, serving)
        except HttpError:
            raise
        except Exception as error:
            # vLLM, chat templates and tokenizers raise whatever they like; vLLM's own mapping says whose fault it is.
            answer = serving.create_error_response(error).error
            if answer.code >= 500 and answer.code != 503:
                raise
            retry = 1 if answer.code == 503 else None
            raise HttpError(answer.code, public(answer.message), answer.param, retry, answer.type) from error


def _validated(fields: Mapping[str, Any]) -> Any:
    from pydantic import ValidationError
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.exceptions import VLLMValidationError

    try:
        return ChatCompletionRequest.model_validate({**fields, "stream": True})  # so that stream_options may be given
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
        raise HttpError(400, f"{param}: {first['msg']}" if param else first["msg"], param=param or None) from error
    except (VLLMValidationError, ValueError, TypeError) as error:
        raise HttpError(400, str(error), param=getattr(error, "parameter", None)) from error


async def _rendered(request: Any, serving: Any) -> Rendered:
    made = await serving.render_chat_request(request)
    if not isinstance(made, tuple):
        raise HttpError(made.error.code, made.error.message, param=made.error.param, kind=made.error.type)
    (prompt,) = made[1]
    lora = serving._maybe_get_adapters(request, supports_default_mm_loras=True)
    return Rendered(
        prompt=prompt,
        sampling=request.to_sampling_params(_room(request, prompt, serving), serving.default_sampling_params),
        usage=bool(request.stream_options and request.stream_options.include_usage),
        priority=request.priority,
        options={} if lora is None else {"lora_request": lora},
    )


def _room(request: Any, prompt: Mapping[str, Any], serving: Any) -> int:
    """How many tokens the answer may have: as many as are asked for and fit."""
    used = len(prompt.get("prompt_token_ids") or ())
    room: int = serving.model_config.max_model_len - used
    if room < 1:
        raise HttpError(400, f"the prompt has {used} tokens, which leave no room for an answer", param="messages")
    asked = (request.max_completion_tokens, request.max_tokens, serving.default_sampling_params.get("max_tokens"))
    return min(room, next((limit for limit in asked if limit is not None), room))
