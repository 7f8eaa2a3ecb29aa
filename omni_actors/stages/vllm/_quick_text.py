"""The quick way from a plain text to engine input, past what makes a tokenizer's answer more than token ids.

A text is most of what prompts are, and its way through vLLM's renderer, its pool of tokenizers and the tokenizer's own
layers costs several times what finding the token ids costs. Taken where nothing but the token ids can come of it: a
tokenizer that is the library's own, whose settings are the plain ones, and a renderer that says the same of a few
telling texts. Whatever is refused for its length goes vLLM's own way, and gets its words.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MOST_CHARS", "QuickText"]

MOST_CHARS = 4096
"""A fast tokenizer takes about a millisecond for this; longer texts are no matter of microseconds."""
_SAMPLES = ("Two plus three?", " a  b\n\tc ", "Größe: 漢字 🙂, İx", "1,234.5 + 'it's' <b>&amp;</b>")
_TAKEN_OVER = ("_tokenize_prompt", "_tokenize_prompt_async", "get_eos_token_id")
_ENCODES = ("__call__", "_encode_plus", "_switch_to_input_mode", "_convert_encoding", "set_truncation_and_padding")
"""What a tokenizer class of somebody's own may have changed of the way to the token ids."""


class QuickText:
    """One renderer's. From any thread. ``usable``: whether it is of any use."""

    def __init__(self, renderer: Any, model_config: Any) -> None:
        self._renderer = renderer
        self.usable = _is_plain(renderer.tokenizer) and not model_config.is_encoder_decoder
        if self.usable:
            self._tokenizer = renderer.tokenizer._tokenizer
            self._chars = renderer.tokenizer.max_chars_per_token
            self.usable = self._agrees(model_config)

    def render(self, text: Any) -> dict[str, Any] | None:
        """Engine input, as the renderer's ``render_cmpl`` makes it with its default params; None: that is to be asked.

        Of what is no text as well.
        """
        if not self.usable or not isinstance(text, str):
            return None
        params = self._renderer.default_cmpl_tok_params
        if params.do_lower_case or params.pad_prompt_tokens is not None:
            return None
        tokens = self._tokens(text, params)
        return None if tokens is None else {"type": "token", "prompt_token_ids": tokens, "prompt": text}

    def take_over(self) -> None:
        """Have the renderer itself find token ids this way, for all who use it: the callers of an AsyncOmni, vLLM's own
        server. They save a thread as well, which its async methods send every text to. And the token that ends a text
        is looked up once. To be called once.
        """
        renderer = self._renderer
        if not self.usable or not all(hasattr(renderer, name) for name in _TAKEN_OVER):
            return
        theirs, theirs_async, _ = (getattr(renderer, name) for name in _TAKEN_OVER)

        def tokenized(prompt: Any, params: Any) -> Any:
            return self._tokenized(prompt, params) or theirs(prompt, params)

        async def tokenized_async(prompt: Any, params: Any) -> Any:
            return self._tokenized(prompt, params) or await theirs_async(prompt, params)

        # Asked for every request, and each time looked up among all that the tokenizer calls special.
        end = renderer.get_eos_token_id()
        for name, mine in zip(_TAKEN_OVER, (tokenized, tokenized_async, lambda: end), strict=True):
            setattr(renderer, name, mine)

    def _tokenized(self, prompt: Any, params: Any) -> dict[str, Any] | None:
        """A prompt with its token ids, whatever else is in it. What comes before and after is the renderer's."""
        if getattr(params, "return_token_offsets", False):
            return None
        tokens = self._tokens(prompt["prompt"], params)
        return None if tokens is None else {"prompt_token_ids": tokens, **prompt}

    def _tokens(self, text: Any, params: Any) -> list[int] | None:
        """None where it is not for us to say: it is no short text, it is to be cut, or it is too long."""
        if not isinstance(text, str) or not 0 < len(text) <= MOST_CHARS:
            return None
        if params.truncate_prompt_tokens is not None:
            return None
        # Unlike a batch, one text is done without giving up Python's lock, for which others would only contend.
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=params.add_special_tokens).ids
        most = params.max_input_tokens
        fits = most is None or (len(tokens) <= most and len(text) <= most * self._chars)
        return tokens if tokens and fits else None

    def _agrees(self, model_config: Any) -> bool:
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        params = self._renderer.default_cmpl_tok_params
        for text in (*_SAMPLES, "".join(self._renderer.tokenizer.all_special_tokens[:16])):
            made = self.render(text)
            if made is None:
                continue
            try:
                (rendered,) = self._renderer.render_cmpl([parse_model_prompt(model_config, text)], params)
            except Exception:  # a model's own processing may raise whatever it likes at a text that suits it not
                return False
            if made != {name: value for name, value in rendered.items() if name != "arrival_time"}:
                return False
        return True


def _is_plain(tokenizer: Any) -> bool:
    from transformers import TokenizersBackend

    if not isinstance(tokenizer, TokenizersBackend):
        return False
    whose = (cls for cls in type(tokenizer).__mro__ if cls not in TokenizersBackend.__mro__)
    own = (cls for cls in whose if cls.__module__ != "vllm.tokenizers.hf")  # vLLM's change nothing of what comes out
    if any(name in vars(cls) for cls in own for name in _ENCODES):
        return False
    backend = tokenizer._tokenizer
    special = bool(backend.encode_special_tokens) == bool(tokenizer.split_special_tokens)
    return backend.truncation is None and backend.padding is None and special
