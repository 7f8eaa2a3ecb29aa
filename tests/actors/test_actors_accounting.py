"""The books alone, without trio: windows, counts per child, groups, back-off."""

from __future__ import annotations

import ast
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.actors import Backoff, Intensity, PerChild, _accounting
from omni_actors.actors._accounting import Accounts

THREE = dict.fromkeys("abc", "permanent")
ALWAYS = Intensity(1000, 1.0)


def books(policy=ALWAYS, strategy="one_for_one", backoff=None, kinds=THREE) -> Accounts:
    return Accounts(kinds, strategy, policy, backoff)


def fail(accounts: Accounts, at: float, name: str = "a") -> str:
    return accounts.ended(name, failed=True, at=at).action


def test_it_neither_waits_nor_knows_a_clock() -> None:
    nodes = list(ast.walk(ast.parse(inspect.getsource(_accounting))))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "attrs", "collections", "collections.abc", "typing"}


@given(
    gaps=st.lists(st.integers(0, 6), max_size=40),
    names=st.lists(st.sampled_from("abc"), min_size=40, max_size=40),
    most=st.integers(0, 4),
    within=st.integers(1, 12),
)
def test_no_window_holds_more_restarts_than_allowed(gaps, names, most, within) -> None:
    """I19: by brute force over every window, ends included; the verdict is as late as it may be."""
    accounts, now, answered = books(Intensity(most, float(within))), 0, []
    for gap, name in zip(gaps, names, strict=False):
        now += gap
        over = sum(now - within <= at for at in answered) == most
        assert fail(accounts, now, name) == ("give_up" if over else "restart")
        if over:
            break
        answered.append(now)
    assert all(sum(start <= at <= start + within for at in answered) <= most for start in answered)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100)), max_size=60))
def test_a_child_is_down_at_the_failure_after_its_last_allowed_one(lives) -> None:
    """Each life is ready for some seconds and then fails; 60 ready seconds forgive everything before."""
    accounts, now, counts = books(PerChild(3, 60.0)), 0, dict.fromkeys("abc", 0)
    for name, ready_for in lives:
        if counts[name] > 3:
            continue
        accounts.ready(name, now)
        now += ready_for
        counts[name] = 1 + (0 if ready_for >= 60 else counts[name])
        assert fail(accounts, now, name) == ("down" if counts[name] > 3 else "restart")


def test_the_fourth_failure_marks_it_down_and_the_siblings_are_untouched() -> None:
    accounts = books(PerChild())
    assert [fail(accounts, at) for at in (1, 2, 3, 4)] == ["restart", "restart", "restart", "down"]
    assert fail(accounts, 5, "b") == "restart"


def test_ready_time_counts_also_when_the_supervisor_ended_it() -> None:
    accounts = books(PerChild(1, 60.0), "one_for_all")
    fail(accounts, 0)
    accounts.ready("a", 1)
    accounts.stopped("a", 61)
    assert fail(accounts, 62) == "restart"
    assert fail(accounts, 63) == "down"


@pytest.mark.parametrize(
    ("kind", "failed", "action"),
    [
        ("permanent", True, "restart"), ("permanent", False, "restart"), ("transient", True, "restart"),
        ("transient", False, "nothing"), ("temporary", True, "nothing"), ("temporary", False, "nothing"),
    ],
)  # fmt: skip
def test_restart_kinds(kind, failed, action) -> None:
    assert books(kinds={"a": kind}).ended("a", failed=failed, at=0).action == action


@pytest.mark.parametrize(
    ("strategy", "stop", "restart"),
    [("one_for_one", "", "b"), ("rest_for_one", "cd", "bc"), ("one_for_all", "acd", "abc")],
)
def test_groups(strategy, stop, restart) -> None:
    kinds = {"a": "permanent", "b": "permanent", "c": "transient", "d": "temporary"}
    verdict = books(strategy=strategy, kinds=kinds).ended("b", failed=True, at=7.0)
    assert ("".join(verdict.stop), "".join(verdict.restart), verdict.not_before) == (stop, restart, 7.0)


def test_a_down_child_counts_as_absent() -> None:
    accounts = books(PerChild(0), "one_for_all")
    assert fail(accounts, 0, "b") == "down"
    accounts = books(PerChild(1), "one_for_all")
    fail(accounts, 0, "b")
    fail(accounts, 1, "b")
    assert accounts.ended("c", failed=True, at=2).restart == ("a", "c")


def test_backoff_grows_to_its_limit_and_starts_again_after_a_stable_life() -> None:
    accounts = books(PerChild(9, 60.0), backoff=Backoff(1.0, max_s=5.0))
    waits = [accounts.ended("a", failed=True, at=0).not_before for _ in range(5)]
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert accounts.ended("b", failed=True, at=0).not_before == 1.0
    accounts.ready("a", 0)
    assert accounts.ended("a", failed=True, at=60).not_before == 61.0
    assert Backoff(1.0, max_s=5.0).delay_s(10_000) == 5.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Intensity(-1, 1.0), lambda: Intensity(1, 0.0), lambda: PerChild(-1), lambda: PerChild(1, 0.0),
        lambda: Backoff(0.0, max_s=1.0), lambda: Backoff(1.0, 0.5, max_s=1.0),
    ],
)  # fmt: skip
def test_impossible_policies_are_refused(make) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()
