"""Stages: what supervises, starts, watches and speaks with the engine processes."""

from ._interface import Emit, EngineKind, Frontend, Launch, Launcher, Process, StageClient, Work
from ._replica import Ending, Replica
from ._shield import bounded_shield, open_service_nursery
from ._supervisor import StageEvent, StageState, StageSupervisor

__all__ = [
    "Emit", "Ending", "EngineKind", "Frontend", "Launch", "Launcher", "Process", "Replica", "StageClient", "StageEvent",
    "StageState", "StageSupervisor", "Work", "bounded_shield", "open_service_nursery",
]  # fmt: skip
