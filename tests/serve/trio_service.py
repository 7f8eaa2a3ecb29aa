"""``examples/serve_in_trio.py`` on fake engines, whose vocoder says as many chunks as it is told, one each 20 ms."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import trio

from omni_actors.testing.rigs import speech

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_in_trio.py"


def main() -> None:
    spec = speech(vocoder={"chunks": int(sys.argv[1]), "chunk_s": 0.02}, drain_s=20.0)
    trio.run(runpy.run_path(str(EXAMPLE))["main"], "0", spec)


if __name__ == "__main__":
    main()
