"""Every seeded bug is found by the checker of its own invariant. One seed here; ``make mutants`` tries three."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "tools" / "mutants" / "run.py"


def load():
    spec = importlib.util.spec_from_file_location("omni_mutants", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutants = load()
PATCHES = mutants.patches([])


def test_there_is_a_bug_for_every_invariant():
    assert {mutants.title(patch)[0] for patch in PATCHES} == {f"I{number}" for number in range(1, 26)}


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_seeded_bug_is_found(patch):
    (result,) = mutants.hunt(patch, (1,))
    assert result["scenarios"] is not None, result["words"]
    assert result["words"].startswith(f"{mutants.title(patch)[0]}: ")


def test_a_patch_that_no_longer_applies_is_an_error(tmp_path):
    stale = tmp_path / "stale.patch"
    stale.write_text("I1: stale\n\n--- a/omni_actors/_errors.py\n+++ b/omni_actors/_errors.py\n@@ -1 +1 @@\n-x\n+y\n")
    with pytest.raises(mutants.Stale, match="stale"):
        mutants.hunt(stale, (1,))
