"""vLLM's workers: tiny-omni has none; elsewhere a stage's ``env`` says how they come about, whatever vLLM sets."""

from __future__ import annotations

import os
from multiprocessing import resource_tracker

import pytest

from omni_actors.engines.core_proc import _track_shared_memory, keeping
from omni_actors.testing.chaos import workers

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")  # of vLLM's own imports
def test_tiny_omnis_engines_need_none(engines):
    async def pids(omni):
        return omni.pids()

    leaders = engines.run(pids)
    assert {name: workers(pid) for name, pid in leaders.items()} == {name: [] for name in leaders}


def test_what_a_stage_says_outlives_what_vllm_sets(monkeypatch):
    monkeypatch.setenv(METHOD, "fork")
    with keeping(METHOD):
        os.environ[METHOD] = "spawn"
    assert os.environ[METHOD] == "fork"


def test_where_nothing_was_said_vllm_decides(monkeypatch):
    monkeypatch.delenv(METHOD, raising=False)
    with keeping(METHOD):
        monkeypatch.setenv(METHOD, "spawn")
    assert os.environ[METHOD] == "spawn"


@pytest.mark.filterwarnings("ignore")  # of vLLM's own imports
@pytest.mark.parametrize(("kind", "started"), [("MultiprocExecutor", 1), ("UniProcExecutor", 0)])
def test_memory_that_an_engine_shares_with_its_workers_is_tracked_from_before_there_is_any(monkeypatch, kind, started):
    from vllm.v1.executor import multiproc_executor, uniproc_executor

    (found,) = [getattr(each, kind) for each in (multiproc_executor, uniproc_executor) if hasattr(each, kind)]
    calls = []
    monkeypatch.setattr(resource_tracker, "ensure_running", lambda: calls.append(1))
    _track_shared_memory(type("Ours", (found,), {}))
    assert len(calls) == started
