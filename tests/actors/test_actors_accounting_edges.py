"""The books at their edges: what a policy takes, its defaults, and what a verdict says that restarts nobody."""

from __future__ import annotations

import attrs
import pytest

from omni_actors.actors import Backoff, Intensity, PerChild
from omni_actors.actors._accounting import Accounts, Verdict


def test_half_a_restart_is_no_limit() -> None:
    with pytest.raises(TypeError, match="max_restarts"):
        Intensity(1.5, 1.0)
    with pytest.raises(TypeError, match="max_failures"):
        PerChild(1.5)


def test_sixty_ready_seconds_forgive_everything_by_default_and_no_second_less() -> None:
    accounts = Accounts({"a": "permanent"}, "one_for_one", PerChild(1), None)
    for at, ready_for, action in ((0, 60.0, "restart"), (100, 60.0, "restart"), (200, 59.5, "down")):
        accounts.ready("a", at)
        assert accounts.ended("a", failed=True, at=at + ready_for).action == action


def test_a_backoff_may_stay_what_it_is_but_must_end_somewhere() -> None:
    steady = Backoff(2.0, 1.0, max_s=5.0)
    assert [steady.delay_s(n) for n in (1, 2, 9)] == [2.0, 2.0, 2.0]
    with pytest.raises(TypeError, match="max_s"):
        Backoff(2.0)
    with pytest.raises(TypeError, match="positional"):
        Backoff(2.0, 1.0, 5.0)
    with pytest.raises(ValueError, match="max_s"):
        Backoff(2.0, max_s=0.0)


@pytest.mark.parametrize(
    ("kind", "policy", "action"),
    [
        ("temporary", PerChild(), "nothing"),
        ("permanent", PerChild(0), "down"),
        ("permanent", Intensity(0, 1.0), "give_up"),
    ],
)
def test_a_verdict_that_restarts_nobody_stops_nobody_and_waits_for_nothing(kind, policy, action) -> None:
    verdict = Accounts({"a": kind, "b": "permanent"}, "one_for_all", policy, None).ended("a", failed=True, at=9.0)
    assert attrs.astuple(verdict) == (action, (), (), 0.0)


def test_policies_and_verdicts_are_frozen() -> None:
    for value in (Intensity(1, 1.0), PerChild(), Backoff(1.0, max_s=1.0), Verdict("nothing")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, attrs.fields(type(value))[0].name, 0)
