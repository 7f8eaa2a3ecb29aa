"""One mutant, one fork: the parent has imported everything heavy once, a child imports the package and runs the tests.

The mutated source never touches a file: an import hook of the child gives it to the one module. A child has a bound in
time (an endless loop is a killed mutant) and in memory.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import CodeType, ModuleType

    import pytest

__all__ = ["start", "warm_up"]

_HEAVY = (
    "_pytest.assertion.rewrite", "attrs", "hypothesis.stateful", "msgspec", "numpy", "outcome", "pytest", "pytest_trio",
    "trio.testing",
)  # fmt: skip
_ARGUMENTS = (
    "-x", "-q", "-p", "pytest_trio.plugin", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider",
    "--hypothesis-profile=mutation", "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
_ADDRESS_SPACE = 4 << 30
_PATIENCE = 20
"""Seconds of the wall clock for each second of its own: a busy machine must not kill a mutant."""


def warm_up() -> None:
    """Import what the tests need and what no mutant changes. A numerical library's threads would not survive a fork."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # finding them costs more than most mutants
    sys.dont_write_bytecode = False  # the tests are rewritten once, not once per mutant
    for name in _HEAVY:
        importlib.import_module(name)
    from hypothesis import HealthCheck, Phase, settings

    found_is_enough = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutation",
        max_examples=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=found_is_enough,
        suppress_health_check=list(HealthCheck),
    )
    gc.collect()
    gc.freeze()  # no child needs to look at what was there before it


def start(tree: Path, module: str, source: str, tests: Sequence[str], *, limit_s: int, loud: bool = False) -> int:
    """The process id of a child that runs ``tests`` with ``source`` as ``module``; it exits with 0 if all passed.

    ``limit_s`` bounds its processor time.
    """
    if pid := os.fork():
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        signal.alarm(_PATIENCE * limit_s)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        os._exit(_test(tree, module, source, tests, loud=loud))
    finally:
        os._exit(70)


def _test(tree: Path, module: str, source: str, tests: Sequence[str], *, loud: bool) -> int:
    if not loud:
        _hush()
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    sys.meta_path.insert(0, _Finder(module, source, str(tree.joinpath(*module.split(".")).with_suffix(".py"))))
    import omni_actors

    assert omni_actors.__file__ == str(tree / "omni_actors" / "__init__.py"), "the tests would test another tree"
    import pytest

    shown = "--tb=short" if loud else "--tb=no"
    return int(pytest.main([*_ARGUMENTS, shown, "--rootdir", str(tree), *tests], plugins=[_QuickFirst()]))


class _QuickFirst:
    """A pytest plugin: properties come after the plain tests, for most mutants die of those."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        from _pytest.unittest import TestCaseFunction

        def slow(item: pytest.Item) -> bool:
            tried = getattr(item, "function", None)
            return isinstance(item, TestCaseFunction) or getattr(tried, "is_hypothesis_test", False)

        items.sort(key=slow)


def _hush() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


class _Finder:
    """Finds one module, and gives it another source."""

    def __init__(self, module: str, source: str, path: str) -> None:
        self._module, self._loader = module, _Loader(module, path)
        self._loader.mutated = source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.util.spec_from_file_location(name, self._loader.path, loader=self._loader)


class _Loader(importlib.machinery.SourceFileLoader):
    mutated = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.mutated, self.path, "exec", dont_inherit=True)
