"""Makers of tiny checkpoints with random weights, in layouts that vLLM-Omni's own loaders read; nothing is downloaded.

Each module named in ``MODELS`` has ``make(folder)``, which writes one model, the same weights every time; ``deploy/``
has a deploy file of the same name. What is small is what a configuration may make small; token ids that vLLM-Omni's
code has as numbers stay what they are, and with them the size of a vocabulary. ``chains`` are pipelines of any small
language model. For tests and benchmarks: ``python -m omni_actors.vllm_omni.tiny MODEL FOLDER``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

__all__ = ["MODELS", "deploy_file", "made"]

_DEPLOY = Path(__file__).parent / "deploy"

MODELS = tuple(sorted(path.stem for path in _DEPLOY.glob("*.yaml")))


def made(model: str, parent: Path) -> Path:
    """Write a model to a folder of its name in ``parent``: seconds. Returns that folder."""
    folder = parent / model
    import_module(f"{__name__}.{model}").make(folder)
    return folder


def deploy_file(model: str) -> Path:
    """The deploy file of a model of this name."""
    return _DEPLOY / f"{model}.yaml"
