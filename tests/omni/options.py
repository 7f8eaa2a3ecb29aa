"""What vLLM-Omni's AsyncOmni is made with for each of the tiny models, and so what our pipeline is made with."""

from __future__ import annotations

from pathlib import Path

__all__ = ["options"]

DEPLOY = Path(__file__).parent / "deploy"
OPTIONS = {
    "qwen_image": {
        "dtype": "float32",
        "enforce_eager": True,
        "default_sampling_params": {"0": {"seed": 42, "num_inference_steps": 4, "height": 64, "width": 64}},
    },
}
"""Of models that no pipeline of vLLM-Omni's is registered for: it does not read a deploy file for them."""


def options(model):
    """``model``: its folder, named after its maker. The names and values are those of AsyncOmni."""
    found = OPTIONS.get(model.name) or {"deploy_config": str(DEPLOY / f"{model.name}.yaml")}
    return {**found, "trust_remote_code": True}
