"""``make mutants``: every seeded bug, each killed by its own invariant's checker on three seeds, or the run fails.

A mutant is a patch in this folder; its first line says ``I3: what the bug is``. It is applied to a copy of the package;
the checkout is never touched. A patch that no longer applies is an error: the code has changed, so must the mutant.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "omni_actors"
SEEDS = (1, 2, 3)
PATIENCE_S = 400.0


class Stale(Exception):
    """Raised for a patch that does not fit the code any more."""


def patches(wanted: list[str]) -> list[Path]:
    """The mutants, by invariant; those whose name begins with one of ``wanted``, or all."""
    found = sorted(HERE.glob("*.patch"))
    return [path for path in found if not wanted or any(path.name.startswith(name) for name in wanted)]


def title(patch: Path) -> tuple[str, str]:
    """The invariant and what the bug is."""
    invariant, _, words = patch.read_text().splitlines()[0].partition(": ")
    return invariant, words


def hunt(patch: Path, seeds: tuple[int, ...]) -> list[dict]:
    """Apply it to a copy and look for it. One result per seed; fewer if the run broke off."""
    with tempfile.TemporaryDirectory(prefix="omni-mutant-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "omni_actors", ignore=shutil.ignore_patterns("__pycache__"))
        _apply(patch, folder)
        command = [sys.executable, str(HERE / "kill.py"), title(patch)[0], *map(str, seeds)]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": folder},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return [{"seed": 0, "scenarios": None, "words": f"no answer within {late.timeout:g} s"}]
    if done.returncode != 0:
        return [{"seed": 0, "scenarios": None, "words": done.stderr.strip().splitlines()[-1]}]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _apply(patch: Path, folder: str) -> None:
    command = ["git", "apply", "-p1", str(patch)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "GIT_DIR": "none"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Stale(f"{patch.name} no longer applies; make it anew from the code as it is: {done.stderr.strip()}")


def killed(results: list[dict], seeds: tuple[int, ...]) -> bool:
    """Whether every seed found it."""
    return len(results) == len(seeds) and all(result["scenarios"] is not None for result in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wanted", nargs="*", help="beginnings of patch names, as in i03; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds, began, alive = tuple(options.seeds), time.monotonic(), []
    chosen = patches(options.wanted)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for patch, results in zip(chosen, pool.map(lambda p: hunt(p, seeds), chosen), strict=True):
            invariant, words = title(patch)
            after = ", ".join("-" if r["scenarios"] is None else str(r["scenarios"]) for r in results)
            dead = killed(results, seeds)
            alive += [] if dead else [patch.name]
            print(f"{'killed  ' if dead else 'SURVIVED'} {invariant:4} {words}: after {after} scenarios", flush=True)
            if not dead:
                print(*(f"           {result['words']}" for result in results), sep="\n", flush=True)
    print(
        f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed on seeds {seeds}, {time.monotonic() - began:.0f} s"
    )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
