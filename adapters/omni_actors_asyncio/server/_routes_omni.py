"""``GET /ready``: who can serve, and why not. ``POST /v1/omni/abort``: end a request in every stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ._body import decoded
from ._door import Door
from ._refusals import RETRY_AFTER_S, public

if TYPE_CHECKING:
    from omni_actors import AbortReport

    from ._http import Exchange

__all__ = ["Abort", "AbortBody", "Ready"]

MAX_SUB_REQUESTS = 1024
"""vLLM's limit of prompts in one completion is the context; nobody has sent more than this."""


@attrs.frozen
class Ready:
    """200 if every stage can serve, else 503; each stage with its state and reason."""

    door: Door

    async def __call__(self, exchange: Exchange) -> None:
        health = self.door.omni.health()
        reason = "the server is stopping" if health is None else health.reason
        stages = [
            {
                "stage": stage.stage,
                "state": stage.state,
                "ready": stage.ready,
                "replicas": stage.replicas,
                "reason": None if stage.reason is None else public(stage.reason),
            }
            for stage in (() if health is None else health.stages)
        ]
        answer = {"ready": reason is None, "reason": None if reason is None else public(reason), "stages": stages}
        headers = {"cache-control": "no-store"} | ({} if reason is None else {"retry-after": str(RETRY_AFTER_S)})
        await exchange.json(answer, status=200 if reason is None else 503, headers=headers)


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """Whose end is wanted."""

    request_id: str


@attrs.frozen
class Abort:
    """What was ended, with the text that had been made. Unknown ids are a no-op that says so.

    The id is a response's ``id`` (or the X-Request-Id of a speech), or one that was given to AsyncOmni.
    """

    door: Door

    async def __call__(self, exchange: Exchange) -> None:
        asked: AbortBody = decoded(await exchange.body(self.door.limits.body_bytes), AbortBody)
        reports = await self._abort(asked.request_id)
        ended = [_ended(terminal) for report in reports for terminal in report.terminals]
        unconfirmed = [each.stage for report in reports for each in report.unconfirmed]
        await exchange.json(
            {
                "request_id": asked.request_id,
                "known": any(report.known for report in reports),
                "ended": ended,
                "unconfirmed": unconfirmed,
            }
        )

    async def _abort(self, request_id: str) -> list[AbortReport]:
        reports = await self.door.omni.abort(request_id)
        if request_id.startswith("cmpl-"):  # one response, but a request for each of its prompts
            for number in range(MAX_SUB_REQUESTS):
                (report,) = await self.door.omni.abort(f"{request_id}-{number}")
                reports.append(report)
                if not report.known:
                    break
        return reports


def _ended(terminal: Any) -> dict[str, Any]:
    tokens = {name: sum(len(result.token_ids) for result in results) for name, results in terminal.results.items()}
    return {"request_id": terminal.request_id, "kind": terminal.kind.value, "text": terminal.text(), "tokens": tokens}
