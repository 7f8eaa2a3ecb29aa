"""The engine kind ``generation``: a GenerationEngine child and the client of the omni stage wire."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors._errors import ConfigError
from omni_actors.stages._interface import Launch
from omni_actors.stages._process import device_env
from omni_actors.stages.omni._client import StageDiffusionClient
from omni_actors.stages.omni._frontend import OmniFrontend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omni_actors.config.specs import StageSpec
    from omni_actors.stages._interface import Frontend
    from omni_actors.transport import Transport

__all__ = ["DEFAULT_MAX_BATCH", "OmniKind", "wrong"]

DEFAULT_MAX_BATCH = 8
_HOW_TO = "write model as 'package.module:Class', a class with start(item)"


class OmniKind:
    """Runs ``spec.model``, the dotted path of a class (see ``engines.generation.Generator``), in a process of its own.

    ``engine_args`` are the class's keyword arguments, and ``max_batch``: how many items it works on at once.
    """

    hang_s = 10.0
    step_s = 300.0
    slow_frontend = False
    module = "omni_actors.engines.generation"

    def check(self, spec: StageSpec) -> None:
        """Raises ConfigError if the module cannot be found or the arguments are not plain values.

        Finding a module imports its parent packages, never the module itself.
        """
        module, _, name = spec.model.partition(":")
        if not module or not name.isidentifier():
            raise wrong(spec, f"model {spec.model!r} is not the path of a class", _HOW_TO)
        if not _found(module):
            raise wrong(spec, f"model {spec.model!r}: there is no module {module!r}", _HOW_TO)
        self.check_max_batch(spec)
        self.encoded(spec, dict(spec.engine_args))

    def check_max_batch(self, spec: StageSpec) -> None:
        """Raises ConfigError."""
        max_batch = spec.engine_args.get("max_batch", DEFAULT_MAX_BATCH)
        if isinstance(max_batch, bool) or not isinstance(max_batch, int) or max_batch < 1:
            raise wrong(spec, f"max_batch must be a whole number from 1, not {max_batch!r}")

    def encoded(self, spec: StageSpec, value: dict[str, Any]) -> bytes:
        """The value as the child reads it. Raises ConfigError for what is no plain value."""
        try:
            return msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise wrong(spec, f"engine_args: {error}", "arguments are plain values") from None

    def frontend(self, spec: StageSpec) -> Frontend:
        """The stage's front-end; cheap for this kind."""
        return OmniFrontend(spec)

    def client(
        self,
        spec: StageSpec,
        frontend: Callable[[], Frontend],
        transport: Transport,
        *,
        replica: int,
        generation: int,
    ) -> StageDiffusionClient:
        """A client for one generation, with a socket of its own."""
        return StageDiffusionClient(transport, stage=spec.name, replica=replica, generation=generation)

    def launch(self, spec: StageSpec, addresses: Mapping[str, str], *, replica: int, generation: int) -> Launch:
        """The child for one generation. Its output is unbuffered: it may end at once, and its last words count."""
        env = self.environment(spec, replica)
        return Launch(
            stage=spec.name,
            replica=replica,
            generation=generation,
            argv=(spec.python or sys.executable, "-u", "-m", self.module),
            env=env,
            payload=self.encoded(spec, {**self.payload(spec), "env": env, **addresses}),
        )

    def environment(self, spec: StageSpec, replica: int) -> dict[str, str]:
        """What the child's process gets on top of ours."""
        return {**spec.env, **device_env(spec.devices)}

    def payload(self, spec: StageSpec) -> dict[str, Any]:
        """What the child reads from its stdin, beside ``env``, ``address`` and ``identity``."""
        args = dict(spec.engine_args)
        max_batch = args.pop("max_batch", DEFAULT_MAX_BATCH)
        # What check found, the child must find; another interpreter has its own path.
        path = [os.path.abspath(entry) for entry in sys.path] if spec.python is None else []
        return {"class": spec.model, "args": args, "max_batch": max_batch, "path": path}


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def wrong(spec: StageSpec, problem: str, hint: str | None = None) -> ConfigError:
    """What is wrong with a stage, as an error that names it."""
    return ConfigError(f"stage {spec.name}: {problem}", hint=hint, stage=spec.name)
