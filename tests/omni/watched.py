"""What a pipeline of vLLM-Omni stages holds, on both sides: counted in its host, and asked of its engines."""

from __future__ import annotations

from pathlib import Path

import attrs
import trio

from omni_actors.vllm_omni._kind import OmniKind

from .test_same_outputs import segments
from .watched_core import look

__all__ = ["Watched", "watch_engines"]

PROGRAM = Path(__file__).with_name("watched_core.py")
CLEAN_S = 15.0
"""For all that is left of aborted requests to be gone: the last sweep of shared memory is after five seconds."""

LATEST = ("_batch_req_ids", "_omni_connector._pending_keys")
"""What remembers the requests of an engine's last step, or of the last pieces it sent, until it has others."""


def watch_engines(monkeypatch):
    """Start engines that can be asked what they hold."""
    launch = OmniKind.launch

    def watched(self, spec, addresses, **which):
        made = launch(self, spec, addresses, **which)
        return attrs.evolve(made, argv=(made.argv[0], str(PROGRAM)))

    monkeypatch.setattr(OmniKind, "launch", watched)


class Watched:
    """``before``: what was in shared memory before it was opened."""

    def __init__(self, omni, before) -> None:
        self._omni, self._before = omni, before
        self._salt = omni._handler.table._salt  # of the names of all its requests, and of no other's
        self._free = {}

    async def held(self, *, tidy=False):
        """By stage, an engine's answer."""
        stages = [stage.name for stage in self._omni.spec.stages]
        return {name: (await self._omni.call(name, "held", [self._salt], tidy))[0] for name in stages}

    async def left(self):
        """What there still is of any request, in words. Nothing, when nobody asks anything."""
        self._omni.check()
        found = [f"shared memory: {name}" for name in segments() - self._before]
        table = self._omni._handler.table
        found += [f"the table: {row}" for row in (*table.records, *table.leases)]
        for name, stage in self._omni._stages.items():
            for replica in stage.replicas:
                found += self._left_here(f"the host's side of {name}", replica.client._talk)
        for name, engine in (await self.held()).items():
            found += self._left_there(name, engine)
        return found

    def _left_here(self, where, talk):
        found = [f"{where}: {key}" for key in (*talk.live, *talk._releasing, *talk._doomed, *talk._codec._keys)]
        return found + [f"{where}: {path}" for path in look(talk, [self._salt])["named"]]

    def _left_there(self, name, engine):
        free = self._free.setdefault(name, engine["free_blocks"])
        counts = {"running": 0, "waiting": 0, "requests": 0, "free_blocks": free}
        found = [f"{name}: {what} {engine[what]}" for what, count in counts.items() if engine[what] != count]
        named = [path for side in ("engine", "worker") for path in engine[side]["named"]]
        return found + [f"{name}: {path}" for path in named if not path.endswith(LATEST)]

    async def clean(self):
        """Wait until nothing is left. Raises AssertionError, with what is, after ``CLEAN_S``."""
        deadline = trio.current_time() + CLEAN_S
        while found := await self.left():
            assert trio.current_time() < deadline, "\n".join(sorted(found))
            await trio.sleep(0.05)  # a folder, or another process, tells nobody when it changes
