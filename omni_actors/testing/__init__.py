"""For tests of pipelines: a simulation that proves them, fake engines, and an in-memory world to run them in.

::

    from hypothesis import strategies as st
    from omni_actors.testing import check_pipeline

    def test_my_pipeline():
        check_pipeline("my.pipelines:speech", outputs={"thinker": st.text(max_size=40)})

``docs/testing.md`` says what is proved, and how. The public names are listed in ``__all__`` and loaded when first used:
importing this package imports neither hypothesis nor an engine's library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import invariants as invariants
    from . import ops as ops
    from . import strategies as strategies
    from . import timeline as timeline
    from ._core_kind import FakeCoreKind as FakeCoreKind
    from ._core_kind import FakeFrontend as FakeFrontend
    from ._core_wire import FakeCoreCodec as FakeCoreCodec
    from ._core_wire import FakeParams as FakeParams
    from ._fake_core import FakeCore as FakeCore
    from ._fake_core import FakeCoreBehaviour as FakeCoreBehaviour
    from ._fake_core import fake_tokens as fake_tokens
    from ._fake_omni import FakeBehaviour as FakeBehaviour
    from ._fake_omni import FakeChunk as FakeChunk
    from ._fake_omni import FakeOmni as FakeOmni
    from ._fake_omni import FakeTensor as FakeTensor
    from ._launcher import Engine as Engine
    from ._launcher import Exit as Exit
    from ._launcher import MemoryLauncher as MemoryLauncher
    from ._launcher import MemoryProcess as MemoryProcess
    from ._launcher import current_process as current_process
    from ._launcher import open_memory_launcher as open_memory_launcher
    from ._omni_kind import FakeOmniKind as FakeOmniKind
    from ._prove import Proof as Proof
    from ._prove import check_pipeline as check_pipeline
    from ._prove import prove as prove
    from ._prove import replay as replay
    from ._world import FAKE as FAKE
    from ._world import FAKE_CORE as FAKE_CORE
    from ._world import MemoryWorld as MemoryWorld
    from .invariants import Violation as Violation
    from .sim._history import History as History
    from .sim._scenario import Scenario as Scenario
    from .sim._scenario import Stage as Stage
    from .sim._scenario import scenario_from_json as scenario_from_json
    from .sim._simulate import simulate as simulate

_HOMES = {
    "_core_kind": "FakeCoreKind FakeFrontend",
    "_core_wire": "FakeCoreCodec FakeParams",
    "_fake_core": "FakeCore FakeCoreBehaviour fake_tokens",
    "_fake_omni": "FakeBehaviour FakeChunk FakeOmni FakeTensor",
    "_launcher": "Engine Exit MemoryLauncher MemoryProcess current_process open_memory_launcher",
    "_omni_kind": "FakeOmniKind",
    "_prove": "Proof check_pipeline prove replay",
    "_world": "FAKE FAKE_CORE MemoryWorld",
    "invariants": "Violation",
    "sim._history": "History",
    "sim._scenario": "Scenario Stage scenario_from_json",
    "sim._simulate": "simulate",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = ("invariants", "ops", "strategies", "timeline")

__all__ = sorted([*_HOME, *_MODULES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
