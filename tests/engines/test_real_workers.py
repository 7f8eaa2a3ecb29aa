"""vLLM's workers: tiny-omni has none; elsewhere a stage's ``env`` says how they come about, whatever vLLM sets."""

from __future__ import annotations

import os

import pytest

from omni_actors.engines.core_proc import keeping
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
