"""vLLM-Omni's diffusion stages: its DiffusionEngine, driven step by step, in the host of our GenerationEngine.

The class that is hosted is ``OmniDiffusion``; importing it imports vLLM-Omni. The package itself does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._kind import OmniDiffusionKind

if TYPE_CHECKING:
    from ._engine import OmniDiffusion as OmniDiffusion

__all__ = ["KIND", "OmniDiffusion"]

KIND = OmniDiffusionKind()


def __getattr__(name: str) -> Any:
    if name == "OmniDiffusion":
        from ._engine import OmniDiffusion

        return OmniDiffusion
    raise AttributeError(name)
