"""How vLLM's workers come about: as a stage's ``env`` says, also where vLLM's CPU platform would have it otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omni_actors.engines.core_proc import keeping
from omni_actors.testing.chaos import workers

PF_FORKNOEXEC = 0x40
"""Of the kernel's flags of a process: it was forked, and has run no other program since."""
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def forked(pid: int) -> bool:
    _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return bool(int(rest.split()[6]) & PF_FORKNOEXEC)


@pytest.mark.engine
def test_tiny_omnis_are_forked_and_import_nothing_again(engines):
    async def pids(omni):
        return omni.pids()

    leaders = engines.run(pids)
    for name in ("thinker/0", "talker/0"):
        assert [forked(worker) for worker in workers(leaders[name])] == [True]
        assert not forked(leaders[name])


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
