"""Makers of tiny checkpoints with random weights, in layouts that vLLM-Omni's own loaders read; nothing is downloaded.

Each module named in ``MODELS`` has ``make(folder)``, which writes one model, the same weights every time; ``options``
are what vLLM-Omni's AsyncOmni, and so our pipeline, is made with for it. What is small is what a configuration may make
small; token ids that vLLM-Omni's code has as numbers stay what they are, and with them the size of a vocabulary.
``chains`` are pipelines of any small language model. For tests and benchmarks:
``python -m omni_actors.vllm_omni.tiny MODEL FOLDER``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["MODELS", "deploy_file", "made", "options"]

_DEPLOY = Path(__file__).parent / "deploy"
_UNREGISTERED: dict[str, dict[str, Any]] = {
    "qwen_image": {
        "dtype": "float32",
        "enforce_eager": True,
        "default_sampling_params": {"0": {"seed": 42, "num_inference_steps": 4, "height": 64, "width": 64}},
    },
}
"""Options of models that no pipeline of vLLM-Omni's is registered for: it does not read a deploy file for them."""

MODELS = tuple(sorted({*_UNREGISTERED, *(path.stem for path in _DEPLOY.glob("*.yaml"))}))


def made(model: str, parent: Path) -> Path:
    """Write a model to a folder of its name in ``parent``: seconds. Returns that folder."""
    folder = parent / model
    import_module(f"{__name__}.{model}").make(folder)
    return folder


def deploy_file(model: str) -> Path:
    """The deploy file of a model of this name."""
    return _DEPLOY / f"{model}.yaml"


def options(folder: Path) -> dict[str, Any]:
    """``folder``: a model's, of its name. The names and values are those of AsyncOmni."""
    found = _UNREGISTERED.get(folder.name) or {"deploy_config": str(deploy_file(folder.name))}
    return {**found, "trust_remote_code": True}
