"""``python -m omni_actors.vllm_omni.tiny MODEL FOLDER``: write one tiny model to FOLDER/MODEL."""

from __future__ import annotations

import sys
from pathlib import Path

from . import MODELS, made

__all__: list[str] = []


def main() -> None:
    """Two arguments."""
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        sys.exit(f"usage: python -m {__package__} MODEL FOLDER; MODEL is one of {', '.join(MODELS)}")
    print(made(sys.argv[1], Path(sys.argv[2])))


if __name__ == "__main__":
    main()
