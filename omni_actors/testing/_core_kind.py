"""The engine kind ``fake-core``: the runtime's own EngineCore client against a fake engine, without vLLM.

The stage's ``engine_args`` are the fields of ``FakeCoreBehaviour``. Prompts are text (a code point is a token), token
ids, prompt dicts of these, or chat messages, whose contents are joined; params are a mapping of ``FakeParams``. A
stage with a ``script`` stands in for a real one: it takes any sampling params, and has no limit of its own on tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.stages._interface import Launch, Work
from omni_actors.stages.vllm import CoreFrontend, StageEngineCoreClient

from ._core_wire import DELTA, FINAL_ONLY, FakeAdd, FakeCoreCodec, FakeParams, FakeText
from ._fake_core import FakeCoreBehaviour

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from omni_actors.config.specs import StageSpec
    from omni_actors.stages._interface import Frontend
    from omni_actors.transport import Transport
    from omni_actors.wire.vllm import CoreCodec, Meter, ReadyResponse, TextProcessor

__all__ = ["FakeCoreKind", "FakeFrontend"]


class FakeFrontend:
    """A ``CoreFrontend`` for toy text. Raises ConfigError for params that a fake does not know."""

    asks: Sequence[str] = ()

    def __init__(self, spec: StageSpec) -> None:
        self._spec = spec
        behaviour = _behaviour(spec)
        self.max_model_len, self._scripted = behaviour.max_model_len, bool(behaviour.script)
        self._known = frozenset(FakeParams.__struct_fields__)
        self._params(None)

    def check(self, prompt: Any, params: Any) -> int:
        """How many samples."""
        self._tokens(prompt)
        return self.samples(params)

    def samples(self, params: Any) -> int:
        """How many samples these params ask for."""
        return self._params(params).n

    def heavy(self, prompt: Any) -> bool:
        """Never: there is nothing to tokenize."""
        return False

    def prepare(
        self,
        keys: Sequence[str],
        prompt: Any,
        params: Any,
        *,
        stream: bool,
        text: bool,
        priority: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> list[Work]:
        """One FakeAdd per key, seeded apart. A fake engine takes no input in pieces."""
        if (options or {}).get("resumable"):
            raise self._invalid("a fake engine takes its input whole")
        tokens, chosen = self._tokens(prompt), self._params(params)
        partial = stream and chosen.output_kind != FINAL_ONLY
        works = []
        for index, key in enumerate(keys):
            seed = None if chosen.seed is None else chosen.seed + index
            own = msgspec.structs.replace(
                chosen,
                n=1,
                seed=seed,
                output_kind=DELTA if partial else FINAL_ONLY,
                detokenize=chosen.detokenize and (text or bool(chosen.stop)),
            )
            body = FakeAdd(key, tokens, None, own, None, 0.0, None, None, None, priority=priority, external_req_id=key)
            works.append(Work(key=key, body=body, index=index, stream=partial, text=text))
        return works

    def codec(self) -> CoreCodec:
        """The twin's codec."""
        return FakeCoreCodec()

    def meter(self, replica: int) -> Meter | None:
        """None: a fake engine has no statistics."""
        return None

    def processor(self, meter: Meter | None = None) -> TextProcessor:
        """The twin's processor."""
        return FakeText()

    def engine_ready(self, response: ReadyResponse, *, generation: int) -> None:
        """Follow the engine's limit."""
        self.max_model_len = min(self.max_model_len, response.max_model_len or self.max_model_len)

    def answered(self, method: str, answer: Any) -> None:
        """Nothing was asked."""
        raise AssertionError(method)

    def data_missing(self, hashes: Sequence[str]) -> None:
        """Nothing: toy prompts carry no data."""

    def _tokens(self, prompt: Any) -> list[int]:
        if isinstance(prompt, Mapping):
            prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
        if isinstance(prompt, list) and prompt and all(isinstance(message, Mapping) for message in prompt):
            prompt = "\n".join(_content(message.get("content")) for message in prompt)
        if isinstance(prompt, str):
            prompt = [ord(character) for character in prompt]
        if not isinstance(prompt, list | tuple) or not all(type(token) is int for token in prompt):
            raise self._invalid(f"a prompt is text or token ids, not {type(prompt).__name__}")
        if not prompt:
            raise self._invalid("the prompt is empty")
        if len(prompt) >= self.max_model_len:
            raise self._invalid(f"the prompt's {len(prompt)} tokens exceed the limit of {self.max_model_len} in all")
        return list(prompt)

    def _params(self, params: Any) -> FakeParams:
        if params is not None and not isinstance(params, Mapping):
            raise self._invalid(f"sampling params are a mapping, not {type(params).__name__}")
        for name in set() if self._scripted else (params or {}).keys() - self._known:
            raise self._invalid(f"unknown sampling param {name!r}")
        merged = {**self._spec.params, **(params or {}), **self._spec.fixed_params}
        if self._scripted:
            merged.setdefault("max_tokens", None)
        try:
            chosen = msgspec.convert(merged, FakeParams)
        except msgspec.ValidationError as error:
            raise self._invalid(str(error)) from error
        if chosen.n < 1 or (chosen.max_tokens is not None and chosen.max_tokens < 1):
            raise self._invalid("n and max_tokens must be at least 1")
        return chosen

    def _invalid(self, words: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._spec.name!r}: {words}", stage=self._spec.name)


def _content(content: Any) -> str:
    """A chat message's text: what is not text in it (images, audio) is left out."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


class FakeCoreKind:
    """The engine kind (see ``EngineKind``). As a process it is ``omni_actors.testing.fake_core``."""

    hang_s = 60.0
    step_s = math.inf
    slow_frontend = False

    def check(self, spec: StageSpec) -> None:
        """Raises ConfigError for an unknown behaviour."""
        _behaviour(spec)

    def frontend(self, spec: StageSpec) -> Frontend:
        """Instant."""
        return FakeFrontend(spec)

    def client(
        self,
        spec: StageSpec,
        frontend: Callable[[], Frontend],
        transport: Transport,
        *,
        replica: int,
        generation: int,
    ) -> StageEngineCoreClient:
        """The real client."""
        made = cast("Callable[[], CoreFrontend]", frontend)
        return StageEngineCoreClient(made, transport, stage=spec.name, replica=replica, generation=generation)

    def launch(self, spec: StageSpec, addresses: Mapping[str, str], *, replica: int, generation: int) -> Launch:
        """The real payload, with the behaviour as engine arguments."""
        environment = dict(spec.env)
        payload = {"env": environment, "engine_args": dict(spec.engine_args), "handshake": addresses["handshake"]}
        return Launch(
            stage=spec.name,
            replica=replica,
            generation=generation,
            argv=(spec.python or sys.executable, "-m", "omni_actors.testing.fake_core"),
            env=environment,
            payload=msgspec.msgpack.encode(payload),
        )


def _behaviour(spec: StageSpec) -> FakeCoreBehaviour:
    try:
        return msgspec.convert(dict(spec.engine_args), FakeCoreBehaviour)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), path=f"stages.{spec.name}.engine_args", stage=spec.name) from error
