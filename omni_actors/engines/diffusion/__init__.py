"""DiffusionEngine: a diffusers pipeline in a process of its own, on the host of the GenerationEngine.

The class that is hosted is ``DiffusersModel``; importing it imports torch. The package itself imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._model import DiffusersModel as DiffusersModel

__all__ = ["DiffusersModel"]


def __getattr__(name: str) -> Any:
    if name == "DiffusersModel":
        from ._model import DiffusersModel

        return DiffusersModel
    raise AttributeError(name)
