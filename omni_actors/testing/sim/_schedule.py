"""The seed of trio's scheduler: the one file that touches a private name of trio's.

trio shuffles each batch of runnable tasks with a random source of its own. Seeding it makes a run repeatable; another
seed is another schedule. ``tests/sim/test_sim_schedule.py`` is the canary for a trio that does this differently.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trio._core import _run

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["scheduled_by"]


@contextmanager
def scheduled_by(seed: int) -> Iterator[None]:
    """Every ``trio.run`` in the block orders its tasks by ``seed`` alone. Restores what was there before."""
    run: Any = _run
    deterministic, state = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = deterministic
        run._r.setstate(state)
