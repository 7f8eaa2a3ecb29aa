"""What AsyncLLM says of the same cases, and an AsyncOmni to compare with it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def said_by(program: Path) -> dict[str, Any]:
    """AsyncLLM's answers, from a process of its own that has ended before ours begins."""
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


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
