"""Tiny models of vLLM-Omni's, one of each for a session. Where vLLM-Omni is not installed, nothing here is a test."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_actors.vllm_omni import tiny

collect_ignore_glob = [] if importlib.util.find_spec("vllm_omni") else ["*"]

ENVIRONMENT = {
    "OMNI_ACTORS_DETERMINISTIC": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
"""The same for theirs and for ours."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """vLLM-Omni, imported in the test that is the first to need it, warns of what in it and in torch is deprecated."""
    for kind in ("DeprecationWarning", "FutureWarning"):
        item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(autouse=True)
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are children: they inherit this."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def tiny_model(model: str) -> Callable[[pytest.TempPathFactory], Path]:
    """A session's fixture: a folder with this tiny model; ``options`` knows it by the folder's name."""

    @pytest.fixture(scope="session", name=f"tiny_{model}")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tiny.made(model, tmp_path_factory.mktemp("models"))

    return folder


globals().update({f"tiny_{model}": tiny_model(model) for model in tiny.MODELS})
