"""What a diffusion stage's ``engine_args`` may say. Plain data, so that the host can check it without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from omni_actors._errors import UsageError

__all__ = ["Options"]

_DTYPES = ("auto", "float32", "float16", "bfloat16")
_OFFLOADS = ("none", "model", "sequential")


def _one_of(*allowed: str) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in allowed:
            raise UsageError(f"{attribute.name} is {value!r}; it can be {', '.join(allowed)}")

    return check


def _positive(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UsageError(f"{attribute.name} must be a whole number from 1, not {value!r}")


@attrs.frozen(kw_only=True)
class Options:
    """How a diffusers pipeline is loaded and run.

    ``model``: a folder, or an id of the hub (with ``revision`` and ``variant``). ``pipeline_class``: dotted path of the
    class to load it with, for pipelines that diffusers does not know; ``trust_remote_code``: run the code that comes
    with the model. ``components``: what replaces parts of the pipeline, by name (only ``null``: leave it out).

    ``device``: ``auto`` is the accelerator, if there is one. ``dtype``: ``auto`` is bfloat16 there, float32 on a CPU.
    ``offload``: keep on the CPU what is not at work (``model``: whole models; ``sequential``: layers).
    ``scheduler``: the name of a compatible scheduler class. ``loras``: adapters to load, name to path.
    ``compile``: compile the denoisers.

    ``share``: requests share forward passes; without it each pass is one request's, and results are those of the
    request alone, bit by bit. ``max_batch``: requests at work at once; ``max_batch_pixels``: their pixels in all.
    ``max_steps`` bounds what a request may ask for, ``max_pixels`` the size of one picture (with all its frames).
    ``denoisers``: the components whose calls are gathered, if diffusers' usual names are not theirs.
    ``threads``: of the CPU, per engine.

    Raises UsageError for values that cannot be.
    """

    model: str
    revision: str | None = None
    variant: str | None = None
    pipeline_class: str | None = None
    trust_remote_code: bool = False
    components: Mapping[str, None] = attrs.field(factory=dict)
    device: str = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = attrs.field(default="auto", validator=_one_of(*_DTYPES))
    offload: Literal["none", "model", "sequential"] = attrs.field(default="none", validator=_one_of(*_OFFLOADS))
    vae_slicing: bool = False
    vae_tiling: bool = False
    scheduler: str | None = None
    loras: Mapping[str, str] = attrs.field(factory=dict)
    compile: bool = False
    share: bool = True
    denoisers: Sequence[str] = ()
    max_batch_pixels: int | None = attrs.field(default=None, validator=_positive)
    max_steps: int = attrs.field(default=1000, validator=_positive)
    max_pixels: int = attrs.field(default=4096 * 4096, validator=_positive)
    threads: int | None = attrs.field(default=None, validator=_positive)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What they are called."""
        return tuple(field.name for field in attrs.fields(cls))
