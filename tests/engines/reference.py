"""What AsyncLLM says of the same cases, and an AsyncOmni to compare with it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def said_by(program: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """AsyncLLM's answers, from a process of its own. It starts now; the answers are there when they are asked for."""
    pytest.importorskip("vllm")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([sys.executable, str(program)], stdout=out, stderr=errors, env=dict(os.environ))

        @cache
        def answers() -> dict[str, Any]:
            code = process.wait(300)
            out.seek(0), errors.seek(0)
            assert code == 0, errors.read()[-3000:]
            return json.loads(out.read().splitlines()[-1])

        try:
            yield answers
        finally:
            process.kill()
            process.wait()


@contextmanager
def opened(spec: Any) -> Iterator[Any]:
    """Opened in one loop, to be used in others, closed in yet another; its one engine stops, and nothing is left."""
    from omni_actors_asyncio import AsyncOmni

    with pytest.MonkeyPatch.context() as patch:
        base = Path(tempfile.mkdtemp(prefix="oa-"))  # socket paths must be short
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        omni = asyncio.run(AsyncOmni.open(spec))
        try:
            yield omni
        finally:
            report = asyncio.run(omni.close())
            left = list(base.iterdir())
            shutil.rmtree(base, ignore_errors=True)
        assert (report.stopped, report.killed, left) == (("thinker/0",), (), [])
