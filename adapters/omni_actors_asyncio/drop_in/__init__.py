"""In the place of vLLM-Omni's AsyncOmni and Omni: the same arguments, the same outputs, on our runtime.

What its users and its serving layer read is made of vLLM-Omni's own types. It is imported when first needed.
"""

from __future__ import annotations

from ._client import ModelOmni
from ._script import ModelScript

__all__ = ["ModelOmni", "ModelScript"]
