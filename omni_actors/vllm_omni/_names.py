"""By what name engines know a request: one for all stages, by which vLLM-Omni's connectors find each other.

A lease's key is our own, and another in each stage: ``1f-ab12-0`` is work of the request ``1f-ab12`` for its stage 0,
``1f-ab12-0-c1`` the second companion beside it. Their names are ``1f-ab12``, and that with what the model's own
function puts behind it.
"""

from __future__ import annotations

__all__ = ["name_of"]


def name_of(key: str) -> str:
    """The request's name, given any key of it."""
    return "-".join(key.split("-", 2)[:2])
