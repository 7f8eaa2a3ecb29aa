"""``python -m omni_actors.engines.diffusion``: the host of GenerationEngine, under a name that tells them apart."""

from __future__ import annotations

from omni_actors.engines.generation import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
