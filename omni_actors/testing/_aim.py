"""Where operations of a scenario are aimed: what comes by chance seldom meets the work that it is interesting for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st

from .ops import Abort, Exit, Kill, Leave, Op, Submit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from .strategies import Place

__all__ = ["aimed"]

_TEN = st.integers(0, 9)
_SOON = st.integers(0, 20)
_BESIDE = st.integers(4, 18)
"""Hundredths of a second after a submit: the main work of a fast LLM has ended, its longest companion has not."""


def aimed(draw: DrawFn, op: Op, asked: Sequence[Submit], where: Sequence[Place]) -> Op:
    """Most aborts and disconnects come while the request meant is at work, many deaths while companions are."""
    guided = [place for place in where if place.companions]
    if not asked or not isinstance(op, Abort | Leave | Kill | Exit) or draw(_TEN) < 3:
        return op
    if isinstance(op, Kill | Exit):
        return _at_companions(draw, op, asked, guided) if guided else op
    meant = draw(st.sampled_from(asked))
    at = round(meant.at + draw(_SOON) / 100, 2)
    return Abort(at=at, id=meant.user_id) if isinstance(op, Abort) else Leave(at=at, request=meant.request)


def _at_companions(draw: DrawFn, op: Kill | Exit, asked: Sequence[Submit], guided: Sequence[Place]) -> Op:
    place, meant = draw(st.sampled_from(guided)), draw(st.sampled_from(asked))
    at, replica = round(meant.at + draw(_BESIDE) / 100, 2), min(op.replica, place.replicas - 1)
    return msgspec.structs.replace(op, at=at, stage=place.stage, replica=replica)
