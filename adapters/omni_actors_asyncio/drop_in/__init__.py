"""In the place of vLLM-Omni's AsyncOmni: the same arguments, the same outputs, on our runtime.

What its users and its serving layer read is made of vLLM-Omni's own types. It is imported when first needed.
"""

from __future__ import annotations

from ._client import ModelOmni

__all__ = ["ModelOmni"]
