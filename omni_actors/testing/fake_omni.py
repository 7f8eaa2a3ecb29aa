"""The fake omni engine as a real process: ``python -m omni_actors.testing.fake_omni``.

The payload on stdin has ``address``, ``identity`` and, as ``args``, the fields of ``FakeBehaviour``.
"""

from __future__ import annotations

import msgspec

from omni_actors.engines._lifeline import read_payload
from omni_actors.testing._fake_omni import FakeBehaviour, FakeOmni
from omni_actors.testing._fake_process import run_fake

__all__ = ["main"]


def main() -> None:
    """Run the fake until it ends as its behaviour says. Does not return."""
    payload = read_payload()
    behaviour = msgspec.convert(payload["args"], FakeBehaviour)
    run_fake(behaviour, lambda transport: FakeOmni(behaviour, payload, transport))


if __name__ == "__main__":
    main()
