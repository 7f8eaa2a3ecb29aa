"""What a config error suggests: the nearest known name, or the level that a key belongs to.

The levels come from the annotations of ``specs.py``, so a new field there needs no new code here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import attrs

from omni_actors.config.specs import PipelineSpec, StageSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["did_you_mean", "field_types", "key_hint", "nearest"]

_TOP = "the top level"
_SAMPLING = frozenset({
    "bad_words", "frequency_penalty", "ignore_eos", "logit_bias", "logprobs", "max_tokens", "min_p", "min_tokens", "n",
    "presence_penalty", "repetition_penalty", "seed", "skip_special_tokens", "stop", "stop_token_ids", "temperature",
    "top_k", "top_p",
})  # fmt: skip
"""Sampling params that people write one level too high."""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that ``word`` was probably meant to be."""
    import difflib

    return next(iter(difflib.get_close_matches(word[:64], list(names), n=1, cutoff=0.6)), None)


def did_you_mean(word: str, names: Iterable[str], *, known: str = "known") -> str:
    """``did you mean 'talker'?``, or the first names there are."""
    names = sorted(set(names))
    if close := nearest(word, names):
        return f"did you mean '{close}'?"
    listed = ", ".join(names[:16]) + (", …" if len(names) > 16 else "")
    return f"{known}: {listed or 'none'}"


@cache
def field_types(cls: type) -> Mapping[str, Any]:
    """The fields of an attrs class that can be given, with their types."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in attrs.fields(cls) if field.init}


def _classes_in(annotation: Any) -> list[tuple[type, bool]]:
    """The attrs classes that an annotation mentions, and whether there are many of them."""
    if isinstance(annotation, type) and attrs.has(annotation):
        return [(annotation, False)]
    return [(cls, True) for argument in get_args(annotation) for cls, _ in _classes_in(argument)]


@cache
def _levels() -> Mapping[type, str]:
    """Each class of the spec's tree and where its keys are written: ``stages.<name>.deadlines``."""
    levels: dict[type, str] = {PipelineSpec: ""}
    queue: list[type] = [PipelineSpec]
    while queue:
        above = queue.pop(0)
        for name, annotation in field_types(above).items():
            for cls, many in _classes_in(annotation):
                if cls not in levels:
                    item = ".<name>" if many and "name" in field_types(cls) else "[…]" if many else ""
                    levels[cls] = ".".join(filter(None, (levels[above], name))) + item
                    queue.append(cls)
    return levels


def _seen_from(cls: type, level: str) -> str:
    """``level`` in words, without the part that leads to ``cls`` itself."""
    here = _levels().get(cls, "")
    return level.removeprefix(f"{here}.") if here else level


def key_hint(key: str, cls: type) -> str:
    """What to do about ``key``, which ``cls`` does not know: its right level, the nearest name, or what is known."""
    for other, level in _levels().items():
        if other is not cls and key in field_types(other):
            return f"belongs {'under ' + _seen_from(cls, level) if level else 'at ' + _TOP}"
    stage = _levels()[StageSpec]
    if key in _SAMPLING and cls in (StageSpec, PipelineSpec):
        return f"belongs under {_seen_from(cls, stage + '.params')}"
    if close := nearest(key, field_types(cls)):
        return f"did you mean '{close}'?"
    if cls in (StageSpec, PipelineSpec):
        return f"belongs under {_seen_from(cls, stage + '.engine_args')}, if it is an argument of the engine"
    return did_you_mean(key, field_types(cls))
