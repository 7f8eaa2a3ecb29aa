"""Prompts: what kinds there are, how heavy they are, and how vLLM's renderer makes engine input of them.

Kinds: text, token ids, vLLM's prompt dicts (text, token ids or embeddings, multi-modal data beside them), chat
messages, and input that was rendered before (a dict with ``type``). All that vLLM says against a prompt becomes
InvalidRequest.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from omni_actors._errors import InvalidRequest

from ._quick_text import MOST_CHARS, QuickText

__all__ = ["MOST_CHARS", "MOST_TOKENS", "PromptRenderer", "check_prompt", "is_chat"]

MOST_TOKENS = 32_768
"""Of what is rendered at once, as ``MOST_CHARS`` of text."""
_TOKEN_KEYS = frozenset(("type", "prompt_token_ids"))
_PROMPT_KEYS = ("prompt_token_ids", "prompt", "prompt_embeds", "encoder_prompt", "type")


def is_chat(prompt: Any) -> bool:
    """A list of messages."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], Mapping) and "role" in prompt[0]


def check_prompt(stage: str, prompt: Any, max_model_len: int, *, room: int = 1) -> None:
    """Raise InvalidRequest for a prompt that is none, is empty, or leaves less than ``room`` tokens. Microseconds."""
    if isinstance(prompt, Mapping):
        key = next((key for key in _PROMPT_KEYS if key in prompt), None)
        if key is None:
            raise _invalid(stage, f"a prompt dict has one of {', '.join(_PROMPT_KEYS[:3])}; got {sorted(prompt)[:8]}")
        if key in ("prompt_token_ids", "prompt"):
            check_prompt(stage, prompt[key], max_model_len, room=room)
        return
    if not isinstance(prompt, str | list | tuple):
        kind = type(prompt).__name__
        raise _invalid(stage, f"a prompt is text, token ids, a vLLM prompt dict or chat messages, not {kind}")
    if not prompt:
        raise _invalid(stage, "the prompt is empty")
    if isinstance(prompt, str) or is_chat(prompt):
        return
    if type(prompt[0]) is not int:
        raise _invalid(stage, f"token ids are whole numbers, not {type(prompt[0]).__name__}")
    if len(prompt) > max_model_len - room:
        what = "leave no room to answer" if room else "are too many"
        raise _invalid(stage, f"the prompt's {len(prompt)} tokens {what}: the limit is {max_model_len} in all")


def _invalid(stage: str, words: str) -> InvalidRequest:
    return InvalidRequest(f"stage {stage!r}: {words}", stage=stage)


class PromptRenderer:
    """vLLM's renderer, made thread-safe: tokenizers are not, and multi-modal data must be processed one at a time.

    Plain text that asks for nothing special does not meet it (see ``QuickText``).
    """

    def __init__(self, renderer: Any, model_config: Any) -> None:
        from vllm.renderers.inputs.preprocess import parse_model_prompt
        from vllm.renderers.params import ChatParams

        self._renderer, self._model_config = renderer, model_config
        self._parse, self._chat_params = parse_model_prompt, ChatParams
        self._lock = threading.Lock()
        self._quick = QuickText(renderer, model_config)
        self._quick.take_over()

    def heavy(self, prompt: Any) -> bool:
        """Whether rendering takes about a millisecond or more, or would wait for another thread that renders."""
        if isinstance(prompt, str):
            return len(prompt) > MOST_CHARS or (self._lock.locked() and not self._quick.usable)
        if isinstance(prompt, Mapping):
            tokens = prompt["prompt_token_ids"] if prompt.get("type") == "token" else _only_tokens(prompt)
            if tokens is not None:
                return len(tokens) > MOST_TOKENS
            return "prompt" not in prompt or len(prompt) > 1 or self.heavy(prompt["prompt"])
        if is_chat(prompt):
            return not _short(prompt) or self._lock.locked()
        return len(prompt) > MOST_TOKENS

    def render(self, prompt: Any, *, tokenization: Mapping[str, Any], chat: Mapping[str, Any]) -> Any:
        """Engine input. ``tokenization`` and ``chat`` are vLLM's tokenization_kwargs and chat_template_kwargs."""
        if isinstance(prompt, Mapping) and "type" in prompt:
            return prompt
        tokens = None if tokenization else _only_tokens(prompt)
        if tokens is not None and not self._model_config.is_encoder_decoder:
            return {"type": "token", "prompt_token_ids": list(tokens)}
        if not tokenization and (quick := self._quick.render(prompt)) is not None:
            return quick
        with self._lock:
            if is_chat(prompt):
                return self._render_chat(prompt, tokenization, chat)
            return self._render_completion(prompt, tokenization)

    def _render_completion(self, prompt: Any, tokenization: Mapping[str, Any]) -> Any:
        params = self._renderer.default_cmpl_tok_params
        if tokenization:
            params = params.with_kwargs(**tokenization)
        plain = dict(prompt) if isinstance(prompt, Mapping) else prompt
        (rendered,) = self._renderer.render_cmpl([self._parse(self._model_config, plain)], params)
        return rendered

    def _render_chat(self, messages: list[Any], tokenization: Mapping[str, Any], chat: Mapping[str, Any]) -> Any:
        # As vLLM's own LLM.chat does it: the template writes the special tokens, so the tokenizer must not.
        params = self._renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False, **tokenization)
        settings: dict[str, Any] = {"add_generation_prompt": True, "continue_final_message": False}
        settings |= {"tokenize": self._tokenizes, **chat}
        _, (rendered,) = self._renderer.render_chat(
            [messages], self._chat_params(chat_template_kwargs=settings), params
        )
        return rendered

    @property
    def _tokenizes(self) -> bool:
        """Mistral's templates make token ids, and so must any template with embeddings in it."""
        mistral = type(self._renderer.tokenizer).__name__.startswith("Mistral")
        return mistral or bool(self._model_config.enable_prompt_embeds)

    def forget_data(self) -> None:
        """Clear the multi-modal sender cache: the engine that held its other half is gone. Waits for a rendering."""
        with self._lock:
            self._renderer.clear_mm_cache()

    def limit_changed(self) -> None:
        """The model's length limit was lowered; vLLM caches params made of it."""
        for name in ("default_cmpl_tok_params", "default_chat_tok_params"):
            self._renderer.__dict__.pop(name, None)


def _only_tokens(prompt: Any) -> Any:
    """The token ids of a prompt that is nothing else: what one stage hands to the next. Else None."""
    tokens = prompt
    if isinstance(prompt, Mapping):
        if not prompt.keys() <= _TOKEN_KEYS or prompt.get("type", "token") != "token":
            return None
        tokens = prompt.get("prompt_token_ids")
    return tokens if isinstance(tokens, list | tuple) and tokens and type(tokens[0]) is int else None


def _short(messages: list[Any]) -> bool:
    contents = [message.get("content") for message in messages]
    return all(isinstance(content, str) for content in contents) and sum(map(len, contents)) <= MOST_CHARS
