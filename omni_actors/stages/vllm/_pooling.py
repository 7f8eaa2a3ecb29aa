"""Pooling params: what a pooling stage (engine argument ``runner: pooling``) takes in the place of sampling params.

A caller gives vLLM's PoolingParams, a mapping of its fields, or nothing; defaults and ``fixed_params`` work as for
sampling params. There is one sample, and one output. A ``task`` that the model does not have is refused here: vLLM's
engine would end itself over it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.config._hints import did_you_mean

__all__ = ["PoolingParamsMaker"]

_PLACE = re.compile(r"\$\[(\d+)\]")
"""Where a field is, in msgspec's words: vLLM's PoolingParams are an array to it."""


class PoolingParamsMaker:
    """Makes one stage's PoolingParams; the same verbs as ``ParamsMaker``. Frozen, so any thread may use it.

    Raises ConfigError for defaults or constraints that vLLM does not take.
    """

    def __init__(self, stage: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        from vllm import PoolingParams

        self._type, self._stage = PoolingParams, stage
        self._known = frozenset(PoolingParams.__struct_fields__) - {"output_kind"}
        self._defaults, self._fixed = dict(defaults), dict(fixed)
        try:
            self._from_mapping({})
        except InvalidRequest as error:
            raise ConfigError(error.message, path=f"stages.{stage}.params", stage=stage) from error

    def check(self, params: Any) -> int:
        """Always 1. Raises InvalidRequest for what are no pooling params. Microseconds."""
        if params is not None and not isinstance(params, self._type):
            self._check_keys(params)
        return 1

    def make(self, params: Any, *, stream: bool, text: bool) -> Any:
        """A PoolingParams for one request alone. Raises InvalidRequest."""
        self.check(params)
        if isinstance(params, self._type):
            made = params.clone()
            for name, value in self._fixed.items():
                setattr(made, name, value)
            return made
        return self._from_mapping(params or {})

    def _from_mapping(self, given: Mapping[str, Any]) -> Any:
        values = self._defaults | dict(given) | self._fixed
        self._check_keys(values)
        try:
            return msgspec.convert(msgspec.to_builtins(self._type(**values)), self._type)
        except Exception as error:
            # Whatever vLLM's checks raise is about these params, and concerns this request alone.
            raise self._invalid(_PLACE.sub(lambda at: self._type.__struct_fields__[int(at[1])], str(error))) from error

    def _check_keys(self, params: Any) -> None:
        if not isinstance(params, Mapping):
            kind = type(params).__name__
            raise self._invalid(f"it pools, and takes vLLM's PoolingParams or a mapping of its fields, not {kind}")
        for name in params.keys() - self._known:
            raise self._invalid(f"unknown pooling param {name!r}; {did_you_mean(str(name), self._known)}")

    def _invalid(self, words: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._stage!r}: {words}", stage=self._stage)
