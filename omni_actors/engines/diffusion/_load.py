"""Loads a diffusers pipeline as the options say. The only place that makes or moves models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from omni_actors.engines._generator import Unloadable, first_line

if TYPE_CHECKING:
    from ._options import Options

__all__ = ["denoisers", "device_of", "load", "scheduler_named"]

_DENOISERS = (
    "unet",
    "transformer",
    "transformer_2",
    "prior",
    "decoder",
    "prior_prior",
    "decoder_decoder",
    "controlnet",
)


def load(options: Options) -> Any:
    """The pipeline, ready to be called. Raises Unloadable, in one line that names the model."""
    try:
        return _placed(_pipeline(options), options)
    except Exception as error:
        words = f"{options.model} cannot be loaded: {type(error).__name__}: {first_line(error)}"
        if "trust_remote_code" in str(error) and not options.trust_remote_code:
            words += " Read it, then set trust_remote_code"
        raise Unloadable(words) from error


def _pipeline(options: Options) -> Any:
    import diffusers

    diffusers.utils.logging.disable_progress_bar()
    kind = _class(options.pipeline_class) if options.pipeline_class else diffusers.DiffusionPipeline
    pipeline = kind.from_pretrained(
        options.model,
        dtype=_dtype(options),
        trust_remote_code=options.trust_remote_code,
        **{name: value for name in ("revision", "variant") if (value := getattr(options, name)) is not None},
        **options.components,
    )
    pipeline.set_progress_bar_config(disable=True)
    if options.scheduler is not None:
        pipeline.scheduler = scheduler_named(pipeline.scheduler, options.scheduler)
    return pipeline


def _placed(pipeline: Any, options: Options) -> Any:
    for name, path in options.loras.items():
        pipeline.load_lora_weights(path, adapter_name=name)
    if options.vae_slicing:
        pipeline.vae.enable_slicing()
    if options.vae_tiling:
        pipeline.vae.enable_tiling()
    device = device_of(options)
    if options.offload != "none" and torch.device(device).type == "cpu":
        raise ValueError(f"offload: {options.offload} needs an accelerator, and this runs on the CPU")
    if options.offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
    elif options.offload == "sequential":
        pipeline.enable_sequential_cpu_offload(device=device)
    else:
        pipeline.to(device)
    if options.compile:
        for module in denoisers(pipeline, options).values():
            # Not module.compile(): that would compile what is put around forward, too (see ``_gather``).
            module.forward = torch.compile(module.forward, dynamic=True)
    return pipeline


def _class(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _dtype(options: Options) -> torch.dtype:
    if options.dtype != "auto":
        made: torch.dtype = getattr(torch, options.dtype)
        return made
    return torch.float32 if device_of(options) == "cpu" else torch.bfloat16


def device_of(options: Options) -> str:
    """Where it runs: what was asked for, else the accelerator, else the CPU."""
    if options.device != "auto":
        return options.device
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else "cpu"


def denoisers(pipeline: Any, options: Options) -> dict[str, torch.nn.Module]:
    """The models that are called once or more per step."""
    names = options.denoisers or _DENOISERS
    found = {name: getattr(pipeline, name, None) for name in names}
    return {name: module for name, module in found.items() if isinstance(module, torch.nn.Module)}


def scheduler_named(scheduler: Any, name: str) -> Any:
    """A scheduler of that class with this one's configuration. Raises ValueError for one that does not fit."""
    compatible = {kind.__name__: kind for kind in (*getattr(scheduler, "compatibles", ()), type(scheduler))}
    if name not in compatible:
        raise ValueError(f"scheduler {name!r} does not fit this model; these do: {', '.join(sorted(compatible))}")
    return compatible[name].from_config(scheduler.config)
