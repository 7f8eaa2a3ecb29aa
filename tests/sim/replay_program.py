"""Runs the scenarios that it is given, one per line, and writes each history, one per line. For ``test_sim_replay``."""

from __future__ import annotations

import sys

from omni_actors.testing.sim._scenario import scenario_from_json
from omni_actors.testing.sim._simulate import simulate

if __name__ == "__main__":
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(simulate(scenario_from_json(line)).to_json() + b"\n")
