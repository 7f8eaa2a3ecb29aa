"""What a request asks for, checked before it begins, and made into the arguments of a pipeline's ``__call__``.

A prompt is text or a mapping of arguments; params are arguments too, and win. Arguments of our own: ``seed``,
``scheduler``, ``lora``, ``truncate_prompt``, ``progress``, ``preview_every``. What is wrong is an InvalidRequest, in
words for the caller.
"""

from __future__ import annotations

import inspect
import math
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch

from omni_actors._errors import InvalidRequest
from omni_actors.wire.omni import Tensor

if TYPE_CHECKING:
    from omni_actors.engines._generator import Item

    from ._options import Options

__all__ = ["Asked", "Reader"]

_RESERVED = frozenset((
    "callback", "callback_on_step_end", "callback_on_step_end_tensor_inputs", "callback_steps",
    "cross_attention_kwargs", "generator", "ip_adapter_image", "output_type", "return_dict",
))  # fmt: skip
"""The engine's own business, or no plain values."""
_TEXTS = ("prompt", "prompt_2", "prompt_3", "negative_prompt", "negative_prompt_2", "negative_prompt_3")
_MAX_SEED = 2**63 - 1


@attrs.frozen(kw_only=True)
class Asked:
    """A request, read. ``arguments`` are those of ``__call__``; ``lora`` the adapters with their weights."""

    arguments: Mapping[str, Any]
    seed: int | None
    scheduler: str | None = None
    lora: tuple[tuple[str, float], ...] = ()
    progress: bool = False
    preview_every: int = 0
    warnings: tuple[str, ...] = ()


class Reader:
    """Reads the requests of one loaded pipeline. Owns nothing that changes."""

    def __init__(self, pipeline: Any, options: Options) -> None:
        self._pipeline, self._options = pipeline, options
        parameters = inspect.signature(type(pipeline).__call__).parameters
        self._known = {name: each.default for name, each in parameters.items() if name != "self"}
        # Diffusers' own take more by that than they use; what is not used would be dropped without a word.
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        self._open = takes_any and not type(pipeline).__module__.startswith("diffusers.")
        scale = getattr(pipeline, "vae_scale_factor", 1)
        self._factor = scale if isinstance(scale, int) and scale > 0 else 1
        self._tokenizers = _tokenizers(pipeline)

    def read(self, item: Item) -> Asked:
        """Raises InvalidRequest."""
        given = self._given(item)
        own = {name: given.pop(name, None) for name in (
            "seed", "scheduler", "lora", "truncate_prompt", "progress", "preview_every",
        )}  # fmt: skip
        self._check_names(given)
        self._check_steps(given)
        self._check_size(given)
        warnings = self._check_lengths(given, bool(own["truncate_prompt"]))
        seed = _seed(own["seed"], item.index) if "generator" in self._known else None
        return Asked(
            arguments=self._arguments(given, seed),
            seed=seed,
            scheduler=_text(own["scheduler"], "scheduler"),
            lora=_lora(own["lora"]),
            progress=bool(own["progress"]),
            preview_every=_whole(own["preview_every"] or 0, "preview_every", 0, 10_000),
            warnings=warnings,
        )

    def pixels(self, item: Item) -> int:
        """What it takes of ``max_batch_pixels``, as far as its numbers tell."""
        given = {**item.prompt, **item.params} if isinstance(item.prompt, Mapping) else item.params
        numbers = [given.get(name) or self._default(name) for name in ("height", "width", "num_frames")]
        return math.prod(number for number in numbers if type(number) is int and number > 0)

    def _default(self, name: str) -> int:
        default = self._known.get(name)
        if type(default) is int:
            return default
        size = getattr(self._pipeline, "default_sample_size", None)
        return size * self._factor if name in ("height", "width") and type(size) is int else 1

    def _given(self, item: Item) -> dict[str, Any]:
        prompt = item.prompt
        if isinstance(prompt, str):
            prompt = {"prompt": prompt}
        if prompt is not None and not isinstance(prompt, Mapping):
            raise InvalidRequest(f"a prompt is text or a mapping of arguments, not {type(prompt).__name__}")
        return {**(prompt or {}), **{name: value for name, value in item.params.items() if value is not None}}

    def _arguments(self, given: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
        arguments = {name: _argument(name, value) for name, value in given.items()}
        if seed is not None:
            arguments["generator"] = torch.Generator("cpu").manual_seed(seed)
        if "output_type" in self._known:
            arguments["output_type"] = "np"
        if "return_dict" in self._known:
            arguments["return_dict"] = True
        return arguments

    # ------------------------------------------------------------------ checks

    def _check_names(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name in _RESERVED or (name not in self._known and not self._open):
                known = ", ".join(sorted(set(self._known) - _RESERVED))
                raise InvalidRequest(f"{type(self._pipeline).__name__} takes no {name!r}; it takes: {known}")

    def _check_steps(self, given: Mapping[str, Any]) -> None:
        for name in ("num_inference_steps", "prior_num_inference_steps"):
            if name in given:
                _whole(given[name], name, 1, self._options.max_steps)

    def _check_size(self, given: Mapping[str, Any]) -> None:
        factor = self._factor
        for name in ("height", "width"):
            if name in given and _whole(given[name], name, 1, 1 << 20) % factor:
                nearest = max(factor, round(given[name] / factor) * factor)
                raise InvalidRequest(
                    f"{name} is {given[name]}; it must be a multiple of {factor}, for example {nearest}"
                )
        if "num_frames" in given:
            _whole(given["num_frames"], "num_frames", 1, 1 << 20)
        if ("height" in given) != ("width" in given):
            # Most pipelines take neither then, and say nothing.
            raise InvalidRequest("height and width go together: give both, or none for the model's own size")
        numbers = [given[name] for name in ("height", "width", "num_frames") if name in given]
        if math.prod(numbers) > self._options.max_pixels:
            asked = " x ".join(map(str, numbers))
            raise InvalidRequest(
                f"{asked} are more than the {self._options.max_pixels} pixels that one picture may have"
            )

    def _check_lengths(self, given: Mapping[str, Any], truncate: bool) -> tuple[str, ...]:
        """Warnings for texts that some of the text encoders cut off. Raises InvalidRequest where all of them do."""
        texts = [(name, text) for name in _TEXTS if isinstance(text := given.get(name), str)]
        return tuple(warning for name, text in texts for warning in self._cut(name, text, given, truncate))

    def _cut(self, name: str, text: str, given: Mapping[str, Any], truncate: bool) -> list[str]:
        read = list(self._tokens(text, given))
        cut = [(encoder, length, limit) for encoder, length, limit in read if length > limit]
        if cut and len(cut) == len(read) and not truncate:
            _, length, limit = max(cut, key=lambda each: each[2])
            words = f"{name} has {length} tokens; this model reads {limit}. Shorten it, or ask for truncate_prompt"
            raise InvalidRequest(words)
        return [f"{encoder} reads {limit} of the {length} tokens of {name}" for encoder, length, limit in cut]

    def _tokens(self, text: str, given: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
        """For each tokenizer: its name, how many tokens it makes of the text, how many its encoder reads."""
        for name, tokenizer in self._tokenizers.items():
            limit = min(tokenizer.model_max_length, self._sequence(tokenizer, given))
            yield name, len(tokenizer(text, truncation=False, verbose=False).input_ids), limit

    def _sequence(self, tokenizer: Any, given: Mapping[str, Any]) -> int:
        """``max_sequence_length`` is the language models' (T5, Qwen); CLIP has its own, fixed length."""
        if "max_sequence_length" not in self._known or "clip" in type(tokenizer).__name__.lower():
            return 1 << 30
        asked = given.get("max_sequence_length", self._known["max_sequence_length"])
        return asked if type(asked) is int else 1 << 30


def _tokenizers(pipeline: Any) -> dict[str, Any]:
    found = {name: getattr(pipeline, name, None) for name in ("tokenizer", "tokenizer_2", "tokenizer_3")}
    return {name: each for name, each in found.items() if each is not None and hasattr(each, "model_max_length")}


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidRequest(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def _text(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a name, not {value!r}")
    return value


def _seed(value: Any, index: int) -> int:
    """Each sample has its own; without one, one that is told in the result, so that it can be had again."""
    if value is None:
        return secrets.randbits(32)
    return (_whole(value, "seed", 0, _MAX_SEED) + index) % (_MAX_SEED + 1)


def _lora(value: Any) -> tuple[tuple[str, float], ...]:
    """``"pixel"`` or ``{"pixel": 0.8, …}``."""
    named = {value: 1.0} if isinstance(value, str) else value
    if named is None:
        return ()
    if not isinstance(named, Mapping) or not all(isinstance(weight, int | float) for weight in named.values()):
        raise InvalidRequest("lora must be a name, or a mapping of names to weights")
    return tuple(sorted((str(name), float(weight)) for name, weight in named.items()))


def _argument(name: str, value: Any) -> Any:
    """Tensors of whole numbers in [0, 255], two- or three-dimensional, are pictures; others are torch's."""
    if isinstance(value, list):
        return [_argument(name, each) for each in value]
    if not isinstance(value, Tensor):
        return value
    array = value.numpy()
    if value.dtype == "uint8" and array.ndim in (2, 3):
        from PIL import Image

        return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)
    if value.dtype == "uint8" and array.ndim == 4:
        return [_argument(name, Tensor.from_numpy(frame)) for frame in array]
    return torch.from_numpy(array.copy())
