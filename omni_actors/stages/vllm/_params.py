"""Sampling params: a stage's defaults, a caller's wishes, a stage's constraints, in this order.

A caller gives vLLM's SamplingParams, a mapping of its fields, or nothing. Defaults fill a mapping key by key. A
SamplingParams object says everything, so it is the caller's as it is, but for the stage's stop tokens and stop strings:
those are what ends a talker's speech, and are united with the caller's. ``fixed_params`` win over both; their stop
tokens, too, are united with the others, as vLLM-Omni unites them.

CUMULATIVE output, vLLM's default, is taken as DELTA: our stream carries what is new, and adapters add it up.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.config._hints import did_you_mean

__all__ = ["ParamsMaker"]

_INTERNAL = {"skip_clone", "output_text_buffer_length"}


class ParamsMaker:
    """Makes one stage's SamplingParams. Frozen after construction, so any thread may use it.

    Raises ConfigError for defaults or constraints that vLLM does not take.
    """

    def __init__(self, stage: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._type, self._kinds = SamplingParams, RequestOutputKind
        self._stage, self._defaults, self._fixed = stage, dict(defaults), dict(fixed)
        fields = SamplingParams.__struct_fields__
        self._known = frozenset(name for name in fields if not name.startswith("_") and name not in _INTERNAL)
        self._stop, self._stop_ids = _strings(defaults.get("stop")), list(defaults.get("stop_token_ids") or ())
        try:
            self._default = self._from_mapping({})
        except InvalidRequest as error:
            raise ConfigError(error.message, path=f"stages.{stage}.params", stage=stage) from error

    def check(self, params: Any) -> int:
        """How many samples these params ask for. Raises InvalidRequest for what can be seen in microseconds."""
        if params is None:
            return int(self._default.n)
        if isinstance(params, self._type):
            return int(self._fixed.get("n", params.n))
        self._check_keys(params)
        for name, least in (("n", 1), ("max_tokens", 1)):
            value = params.get(name, least)
            if value is not None and (type(value) is not int or value < least):
                raise self._invalid(f"{name} must be a whole number of at least {least}, not {value!r}")
        return int(self._fixed.get("n", params.get("n", self._default.n)))

    def make(self, params: Any, *, stream: bool, text: bool) -> Any:
        """A SamplingParams for one request alone. Raises InvalidRequest."""
        if params is None:
            chosen = self._default
        elif isinstance(params, self._type):
            chosen = self._constrained(params)
        else:
            self._check_keys(params)
            chosen = self._from_mapping(params)
        return self._private(chosen, stream=stream, text=text)

    def _private(self, chosen: Any, *, stream: bool, text: bool) -> Any:
        # vLLM would copy it deeply (30 µs); all it changes later is this set, and the settings checked below.
        params = copy.copy(chosen)
        params._all_stop_token_ids = set(chosen._all_stop_token_ids)
        params.skip_clone = params.structured_outputs is None and params.extra_args is None
        final = not stream or params.output_kind is self._kinds.FINAL_ONLY
        params.output_kind = self._kinds.FINAL_ONLY if final else self._kinds.DELTA
        if not text and not params.stop:
            params.detokenize = False
        return params

    def _constrained(self, params: Any) -> Any:
        if not (self._fixed or self._stop or self._stop_ids):
            return params
        values = {name: getattr(params, name) for name in self._known}
        values["stop"] = _united(values["stop"], self._stop)
        values["stop_token_ids"] = _united(values["stop_token_ids"], self._stop_ids)
        values["detokenize"] = values["detokenize"] or bool(self._stop)
        return self._build(lambda: self._type(**self._with_fixed(values)))

    def _from_mapping(self, given: Mapping[str, Any]) -> Any:
        values = self._with_fixed(self._defaults | dict(given))
        return self._build(lambda: msgspec.convert(values, self._type))

    def _with_fixed(self, values: dict[str, Any]) -> dict[str, Any]:
        fixed = dict(self._fixed)
        if "stop_token_ids" in fixed:
            fixed["stop_token_ids"] = _united(values.get("stop_token_ids") or (), fixed["stop_token_ids"] or ())
        return values | fixed

    def _build(self, make: Any) -> Any:
        try:
            return make()
        except Exception as error:
            # Whatever vLLM's checks raise is about these params, and concerns this request alone.
            raise self._invalid(str(error).replace("`$.", "`")) from error

    def _check_keys(self, params: Any) -> None:
        if not isinstance(params, Mapping):
            kind = type(params).__name__
            raise self._invalid(f"sampling params are vLLM's SamplingParams or a mapping of its fields, not {kind}")
        for name in params.keys() - self._known:
            hint = did_you_mean(str(name), self._known)
            raise self._invalid(f"unknown sampling param {name!r}; {hint}")

    def _invalid(self, words: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._stage!r}: {words}", stage=self._stage)


def _strings(stop: Any) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())


def _united(given: Iterable[Any], more: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys((*given, *more)))
