"""The fake EngineCore as a real process: ``python -m omni_actors.testing.fake_core``.

The payload on stdin has ``handshake`` and, as ``engine_args``, the fields of ``FakeCoreBehaviour``.
"""

from __future__ import annotations

import msgspec

from omni_actors.engines._lifeline import read_payload
from omni_actors.testing._fake_core import FakeCore, FakeCoreBehaviour
from omni_actors.testing._fake_process import run_fake

__all__ = ["main"]

_LINGER_S = 1.0
"""The real engine's last words also leave before it does."""


def main() -> None:
    """Run the fake until it ends as its behaviour says. Does not return."""
    payload = read_payload()
    behaviour = msgspec.convert(payload["engine_args"], FakeCoreBehaviour)
    run_fake(
        behaviour,
        lambda transport: FakeCore(behaviour, payload["handshake"], transport),
        linger_s=_LINGER_S,
        workers=behaviour.workers,
    )


if __name__ == "__main__":
    main()
