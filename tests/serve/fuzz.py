"""Requests made by schemathesis from a server's own OpenAPI, each of which may be refused, and none may break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import httpx
import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

ANSWER_S = 60.0


def fuzz(
    http: httpx.Client, *, examples: int, operations: Collection[str], headers: Mapping[str, str] | None = None
) -> dict[str, Counter[int]]:
    """Statuses by path. Raises AssertionError with the smallest request found for a 5xx other than 503."""
    document = http.get("/openapi.json").raise_for_status().json()
    document["paths"] = {path: item for path, item in document["paths"].items() if path in operations}
    _narrow(document.get("components", {}).get("schemas", {}))
    schema = schemathesis.openapi.from_dict(document)
    return {operation.path: _fuzzed(operation, http, examples, headers) for operation in _operations(schema)}


_SANE: dict[str, list[Any]] = {
    "model": [None],
    "n": [None, 1, 2, 0, -1, 1 << 40],
    "prompt": ["What is two plus three?", [5, 6], ["What is", "one"], [[1, 2]], [], [-1], [1 << 40]],
    "prompt_embeds": [None],
}
"""Of these fields a few values: so that more requests get past the first look, to where the others matter."""


def _narrow(schemas: dict[str, Any]) -> None:
    for schema in schemas.values():
        properties = schema.get("properties", {})
        if "prompt" in properties and "max_tokens" in properties:
            schema["required"] = [*schema.get("required", ()), "prompt"]
            properties |= {name: {"enum": values} for name, values in _SANE.items() if name in properties}


def _operations(schema: Any) -> list[Any]:
    return [result.ok() for result in schema.get_all_operations()]


def _fuzzed(operation: Any, http: httpx.Client, examples: int, headers: Mapping[str, str] | None) -> Counter[int]:
    statuses: Counter[int] = Counter()
    made = hypothesis.strategies.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=made)
    def run(case: Any) -> None:
        answer = case.call(base_url=str(http.base_url), headers=dict(headers or {}), timeout=ANSWER_S, stream=True)
        statuses[answer.status_code] += 1
        text = answer.content[:500]
        assert answer.status_code < 500 or answer.status_code == 503, (case.method, case.path, case.body, text)

    run()
    return statuses
