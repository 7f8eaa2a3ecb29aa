"""The life of a request, sans-I/O: the request table, the stage graph, routing, leases and admission. Never awaits."""

from ._admission import Admission
from ._graph import Edge, Graph, Node, Plan, Split
from ._record import Kind, Lease, Record, RequestView, StageProgress, StageResult, Terminal, Timing
from ._routing import Decision, Deliver, Fail, Finish, Forward, advance, blamed, opened, produced, rejected, streamed
from ._states import LeaseEvent, LeaseState, RequestEvent, RequestState
from ._table import RequestTable, Settled, unconfirmed

__all__ = [
    "Admission", "Decision", "Deliver", "Edge", "Fail", "Finish", "Forward", "Graph", "Kind", "Lease", "LeaseEvent",
    "LeaseState", "Node", "Plan", "Record", "RequestEvent", "RequestState", "RequestTable", "RequestView", "Settled",
    "Split", "StageProgress", "StageResult", "Terminal", "Timing", "advance", "blamed", "opened", "produced",
    "rejected", "streamed", "unconfirmed",
]  # fmt: skip
