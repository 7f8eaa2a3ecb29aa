"""The engine kind ``fake``: the omni wire's own client against a fake engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors._errors import ConfigError
from omni_actors.stages.omni import OmniKind

from ._fake_omni import FakeBehaviour

if TYPE_CHECKING:
    from omni_actors.config.specs import StageSpec

__all__ = ["FakeOmniKind"]


class FakeOmniKind(OmniKind):
    """The generation kind's client, with ``FakeOmni`` as the child. ``model`` is not looked at."""

    module = "omni_actors.testing.fake_omni"

    def check(self, spec: StageSpec) -> None:
        """Raises ConfigError for engine arguments that are no FakeBehaviour."""
        try:
            msgspec.convert(dict(spec.engine_args), FakeBehaviour)
        except msgspec.ValidationError as error:
            raise ConfigError(f"stage {spec.name}: engine_args: {error}", stage=spec.name) from None

    def payload(self, spec: StageSpec) -> dict[str, Any]:
        """The behaviour, as ``args``."""
        return {"args": dict(spec.engine_args)}
