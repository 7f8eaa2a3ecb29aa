"""What a proof needs of Hypothesis beside its public names: the one file that touches private ones.

Hypothesis mixes constants of the user's own modules into what it draws, so a seed would give other examples in another
program (a test run, the command line). Five of six examples it makes by copying parts of the sixth over each other,
which finds a bug in a parser and hides a fault that comes once in a hundred scenarios. And it shrinks for up to five
minutes. Where a version of Hypothesis does any of it differently, it is left as it is;
``tests/sim/test_sim_properties.py`` is the canary.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from hypothesis.internal.conjecture import engine, providers

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["by_seed_alone"]

SHRINK_S = 20


@contextmanager
def by_seed_alone() -> Iterator[None]:
    """In the block, a seed gives the same examples in every program, each drawn anew; shrinking takes ``SHRINK_S``."""
    with ExitStack() as stack:
        if hasattr(providers, "_get_local_constants"):
            none = type(providers._local_constants)()
            stack.enter_context(mock.patch.object(providers, "_get_local_constants", return_value=none))
            stack.callback(providers.CONSTANTS_CACHE.cache.clear)
            providers.CONSTANTS_CACHE.cache.clear()
        if hasattr(engine.ConjectureRunner, "generate_mutations_from"):
            stack.enter_context(mock.patch.object(engine.ConjectureRunner, "generate_mutations_from"))
        if hasattr(engine, "MAX_SHRINKING_SECONDS"):
            stack.enter_context(mock.patch.object(engine, "MAX_SHRINKING_SECONDS", SHRINK_S))
        yield
