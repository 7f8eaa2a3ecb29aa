"""Invariants: lifecycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._violation import Checker

__all__ = ["LIFECYCLE"]

LIFECYCLE: Mapping[str, Checker] = {}
