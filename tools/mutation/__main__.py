"""Mutation testing of the sans-I/O core: ``python -m tools.mutation [--jobs N] [--json] [PART OF A PATH …]``.

Works on a copy of the tree, so that neither an edit nor another test run meets it. Each mutant gets the tests that
belong to its module and nothing else. Prints each file's score and every survivor; exit 1 below 90 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ._forks import start, warm_up
from ._mutants import Mutant, mutants_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WANTED = 0.90
_LIMIT_S = 10
"""Of one mutant, in seconds of the processor. The slowest suite takes two; what takes longer than this loops."""

_ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("omni_actors", "tests/lifecycle", "tests/wire", "tests/actors")
_EXPLAINED = "docs/mutation.md"

# Where the mutants are, and the tests that judge them.
_TARGETS = {
    "omni_actors/lifecycle/*.py": ("tests/lifecycle/test_*.py",),
    "omni_actors/wire/omni/_state.py": ("tests/wire/test_omni_state*.py",),
    "omni_actors/wire/omni/_codec.py": ("tests/wire/test_omni_codec*.py",),
    "omni_actors/wire/vllm/handshake.py": ("tests/wire/test_vllm_handshake*.py",),
    "omni_actors/actors/_accounting.py": ("tests/actors/test_actors_accounting*.py",),
}


@dataclass(frozen=True)
class _Target:
    """One module to mutate and its tests, as paths inside the tree."""

    path: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")


def main() -> int:
    """Everything; the exit status."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children and the copy go too
    warm_up()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = _copy(Path(folder).resolve())
        targets = [t for t in _targets(tree) if not options.only or any(part in t.path for part in options.only)]
        if broken := [target.path for target in targets if not _passes_unchanged(tree, target)]:
            print(f"the tests fail without any mutant: {', '.join(broken)}", file=sys.stderr)
            return 2
        survived = {target.path: _judge(tree, target, options.jobs) for target in targets}
    (_print_json if options.json else _print_tables)(survived)
    killed, total = _sum(survived)
    return 0 if total and killed >= _WANTED * total else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("only", nargs="*", help="mutate only the files whose path contains one of these")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def _copy(tree: Path) -> Path:
    for name in _COPIED:
        shutil.copytree(_ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(_ROOT / name, tree / name)
    return tree


def _targets(tree: Path) -> Iterator[_Target]:
    for pattern, tests in _TARGETS.items():
        found = tuple(str(each.relative_to(tree)) for test in tests for each in sorted(tree.glob(test)))
        for path in sorted(tree.glob(pattern)):
            yield _Target(str(path.relative_to(tree)), found)


# ---------------------------------------------------------------------- judging


def _passes_unchanged(tree: Path, target: _Target) -> bool:
    source = (tree / target.path).read_text()
    pid = start(tree, target.module, source, target.tests, limit_s=_LIMIT_S)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        return True
    os.waitpid(start(tree, target.module, source, target.tests, limit_s=_LIMIT_S, loud=True), 0)
    return False


def _judge(tree: Path, target: _Target, jobs: int) -> dict[Mutant, bool]:
    """Each mutant of one file, and whether it survived."""
    mutants = mutants_of(target.path, (tree / target.path).read_text())
    survived: dict[Mutant, bool] = dict.fromkeys(mutants, False)
    running: dict[int, Mutant] = {}
    begun = time.monotonic()
    try:
        for mutant in mutants:
            if len(running) >= jobs:
                _reap(running, survived)
            running[start(tree, target.module, mutant.source, target.tests, limit_s=_LIMIT_S)] = mutant
        while running:
            _reap(running, survived)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
    took_s = time.monotonic() - begun
    print(f"{target.path}: {len(mutants)} mutants in {took_s:.0f} s", file=sys.stderr)
    return survived


def _reap(running: dict[int, Mutant], survived: dict[Mutant, bool]) -> None:
    pid, status = os.waitpid(-1, 0)
    survived[running.pop(pid)] = os.waitstatus_to_exitcode(status) == 0


# ---------------------------------------------------------------------- reporting

_Judged = dict[str, dict[Mutant, bool]]


def _sum(judged: _Judged) -> tuple[int, int]:
    counts = Counter(alive for mutants in judged.values() for alive in mutants.values())
    return counts[False], counts.total()


def _score(killed: int, total: int) -> str:
    return f"{100 * killed / total:.1f} %" if total else "-"


def _rows(judged: _Judged) -> Iterator[tuple[str, int, int]]:
    for path, mutants in judged.items():
        killed, total = _sum({path: mutants})
        yield path, total, killed
    killed, total = _sum(judged)
    yield "all", total, killed


def _print_tables(judged: _Judged) -> None:
    print("| file | mutants | killed | score |\n| --- | ---: | ---: | ---: |")
    for path, total, killed in _rows(judged):
        print(f"| {path} | {total} | {killed} | {_score(killed, total)} |")
    reasons = _reasons()
    for path, survivors in _survivors(judged):
        print(f"\nSurvivors in {path}:\n\n| in | before | after | why it may live |\n| --- | --- | --- | --- |")
        for mutant in survivors:
            print(_row(mutant) + reasons.get(_row(mutant), " not explained |"))


def _row(mutant: Mutant) -> str:
    """How a survivor begins its row in the document's tables. No line number: those move."""
    cells = (word.replace("|", "\\|") for word in mutant.words)
    return "".join(f"| `{cell}` " for cell in cells) + "|"


def _reasons() -> dict[str, str]:
    """What the document says about each survivor."""
    document = _ROOT / _EXPLAINED
    rows = [line.split("` |", 3) for line in document.read_text().splitlines()] if document.exists() else []
    return {"` |".join(row[:3]) + "` |": row[3] for row in rows if len(row) == 4}


def _survivors(judged: _Judged) -> Iterator[tuple[str, Sequence[Mutant]]]:
    for path, mutants in judged.items():
        if alive := [mutant for mutant, survived in mutants.items() if survived]:
            yield path, alive


def _print_json(judged: _Judged) -> None:
    files = [{"file": path, "mutants": total, "killed": killed} for path, total, killed in _rows(judged)]
    survivors = [
        {"file": path, "line": m.line, "scope": m.scope, "before": m.before, "after": m.after}
        for path, alive in _survivors(judged)
        for m in alive
    ]
    print(json.dumps({"files": files, "survivors": survivors}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
