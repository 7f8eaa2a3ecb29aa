"""What a generated stage's fake does: Hypothesis strategies over the fields of its behaviour.

Importing this module imports hypothesis.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hypothesis.strategies import DrawFn, SearchStrategy

    from ._scripted import Wire

__all__ = ["behaviours", "seldom", "some"]

T = TypeVar("T")


def seldom(value: SearchStrategy[T], *, one_in: int = 8) -> SearchStrategy[T | None]:
    """None, but once in a while."""
    return st.integers(0, one_in - 1).flatmap(lambda draw: value if draw == one_in - 1 else st.none())


def some(fields: Mapping[str, SearchStrategy[Any]], *, one_in: int = 2) -> SearchStrategy[dict[str, Any]]:
    """None of these fields, or once in ``one_in`` times one or two of them."""
    chance, name = st.integers(0, one_in - 1), st.sampled_from(sorted(fields))

    @st.composite
    def drawn(draw: DrawFn) -> dict[str, Any]:
        if draw(chance) != one_in - 1:
            return {}
        return {name: draw(fields[name]) for name in sorted({draw(name), draw(name)})}

    return drawn()


@functools.cache
def behaviours(wire: Wire, *, scripted: bool = False, steps: bool = False) -> SearchStrategy[dict[str, Any]]:
    """Fields of ``FakeCoreBehaviour`` or ``FakeBehaviour``. ``scripted``: what it makes comes from elsewhere;
    ``steps``: it denoises.
    """
    fields: dict[str, SearchStrategy[Any]] = dict(_CORE if wire == "core" else _OMNI)
    length = {} if scripted else {("tokens" if wire == "core" else "chunks"): st.integers(1, 1 if steps else 8)}
    if steps:
        length["steps"] = st.integers(1, 8)
    return st.tuples(st.fixed_dictionaries(length), some(fields), _deaths(wire)).map(_merged)


def _merged(parts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


_COMMON: dict[str, SearchStrategy[Any]] = {
    "start_s": st.sampled_from((0.3, 2.0)),
    "ignore_sigterm": st.just(True),
}
_CORE = {
    **_COMMON,
    "token_s": st.sampled_from((0.05, 0.5)),
    "max_running": st.integers(1, 2),
    "reject": st.sampled_from(("r1", "r2")),
}
_OMNI = {
    **_COMMON,
    "chunk_s": st.sampled_from((0.05, 0.5)),
    "capacity": st.integers(1, 2),
    "fail_at_chunk": st.integers(0, 2),
    "stuck_at_chunk": st.integers(0, 2),
    "garbage_at_chunk": st.integers(0, 2),
    "release": st.sampled_from(("double", "missing")),
    "release_s": st.sampled_from((0.05, 1.0, 3.0)),
}


@functools.cache
def _deaths(wire: Wire) -> SearchStrategy[dict[str, Any]]:
    """Seldom: it dies or hangs by itself."""
    if wire == "core":
        kinds = st.sampled_from(("exit", "kill", "sentinel", "garbage", "stall"))
        deadly = st.fixed_dictionaries({"die_at": st.integers(1, 20), "death": kinds})
    else:
        at = st.integers(0, 3)
        codes = st.sampled_from((3, 0, -9))
        exits = st.fixed_dictionaries({"die_at_chunk": at, "exit_code": codes})
        deadly = st.one_of(exits, st.fixed_dictionaries({"stall_at_chunk": at}))
    return seldom(deadly, one_in=10).map(lambda found: found or {})
