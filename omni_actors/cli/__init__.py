"""The ``omni-actors`` command. ``main`` is the console script; everything else is loaded when it is called."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ends the process: 0 ok, 1 failed, 2 usage, 3 something is missing, 130 interrupted."""
    from omni_actors.cli._app import app

    app(prog_name="omni-actors")
