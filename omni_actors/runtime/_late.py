"""The errors of a request that something ended in time: its own deadline, an edge's, or the bound of its stream.

Pure: looks at the record and says what is late, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors._errors import EdgeTimeout, RequestTimeout, SlowConsumer

if TYPE_CHECKING:
    from omni_actors.lifecycle import Forward, Record

__all__ = ["edge_timeout", "request_timeout", "slow_consumer"]


def edge_timeout(record: Record, forward: Forward, edge_s: float) -> EdgeTimeout | None:
    """What has made nothing ``edge_s`` seconds after the stage's input was there: the stage, or a companion of it.

    None: all have spoken. A root's main work has no such deadline, only the request's own; its companions have it from
    the moment when they are placed.
    """
    node, mine = record.stages[forward.stage].node, record.stages[forward.stage].parts[forward.part]
    edge = f"{node.edges[0].source}->{node.name}" if node.edges else f"request->{node.name}"
    silent = [f"companion {c.name!r} of stage {node.name}" for c in mine.companions if not c.answered]
    if node.edges and not (mine.answered or mine.spoken):
        silent = [f"stage {node.name}"]
    if not silent:
        return None
    text = f"edge {edge}: {silent[0]} gave no output within {edge_s:g} s of its input"
    return EdgeTimeout(text, edge=edge, stage=node.name)


def request_timeout(record: Record, now: float) -> RequestTimeout:
    """Its own deadline has passed; ``now`` in seconds. Names the stages that are not done."""
    seconds = now - record.submitted_at
    waiting = [name for name, progress in record.stages.items() if not progress.complete]
    text = f"request {record.request_id} did not finish within {seconds:.3g} s; unfinished: {', '.join(waiting)}"
    return RequestTimeout(text, request_id=record.request_id, stage=waiting[0] if waiting else None)


def slow_consumer(record: Record, limit: int) -> SlowConsumer:
    """Its reader is more than ``limit`` bytes behind."""
    text = f"request {record.request_id}: more than {limit} bytes of output were not read"
    return SlowConsumer(text, request_id=record.request_id)
