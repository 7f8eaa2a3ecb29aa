"""How the marks of an SVG timeline look: a path around (0, 0) per kind, and the style sheet, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SHAPES", "STYLE"]

_CROSS = "M-4-4L4 4M4-4L-4 4"
_SQUARE = "M-4-4H4V4H-4Z"
_DISC = "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0-4.5 0Z"
_DOT = "M-2 0A2 2 0 1 0 2 0A2 2 0 1 0-2 0Z"
_END = "M0-6V6"
_DAGGER = "M0-6V6M-3.5-2H3.5"
_DOWN = "M-5-4H5L0 5Z"

SHAPES: Mapping[str, str] = {
    "submitted": "M-4-5L5 0L-4 5Z",
    "got": _DOT,
    "finished": _DISC,
    "aborted": _SQUARE,
    "failed": _CROSS,
    "timed out": "M0-6L5 0L0 6L-5 0Z",
    "refused": _DISC + "M-3 3L3-3",
    "left": _END,
    "output": "M0-2V2",
    "abort sent": _SQUARE,
    "released": _END,
    "lease failed": _CROSS,
    "unsent": _DISC,
    "died": _DAGGER,
    "exit": _DAGGER,
    "ended": _END,
    "fault": _DOWN,
    "no fault": _DOWN,
    "down": "M-5 3H5",
    "returned": _END,
    "crashed": _CROSS,
    "exceeded": "M-5 4H5L0-5Z",
    "deadlocked": "M-6-3H6M-6 3H6",
}

_RED, _GREEN, _BLUE, _AMBER, _GREY = "#c62828", "#2e7d32", "#1565c0", "#b26a00", "#6b7280"


def _sheet(paper: str, ink: str, dim: str, shade: str, bars: Mapping[str, str]) -> str:
    filled = "".join(f".{name}{{fill:{colour}}}" for name, colour in bars.items())
    return (
        f".paper{{fill:{paper}}}.odd{{fill:{shade}}}text{{fill:{ink}}}.dim{{fill:{dim}}}"
        f".grid{{stroke:{dim}}}.hatch{{stroke:{dim}}}.halo{{stroke:{paper}}}.m-left,.m-released,.m-returned,.m-ended,"
        f".m-output{{stroke:{ink}}}{filled}"
    )


_LIGHT = _sheet(
    "#ffffff", "#1f2328", "#57606a", "#f4f6f8",
    {
        "opening,.starting": "#e8d48b", "open,.ready": "#a8d5ac", "closing,.stopping": "#b5c7e8",
        "backing-off": "#dde1e6", "down": "#e8a5a5", "stalled": "#c9a6dd", "live": "#8ec5e8", "waiting": "#dde1e6",
        "leaving": "#cfd6dd", "lease": "#b9d9ee", "unreleased": "#dde1e6", "call": "#b5c7e8",
    },
)  # fmt: skip
_DARK = _sheet(
    "#0d1117", "#e6edf3", "#9aa4af", "#161b22",
    {
        "opening,.starting": "#6b5a16", "open,.ready": "#1f5a2a", "closing,.stopping": "#2a406e",
        "backing-off": "#30363d", "down": "#7a2626", "stalled": "#5b3476", "live": "#1c5a82", "waiting": "#30363d",
        "leaving": "#3b434b", "lease": "#22506f", "unreleased": "#30363d", "call": "#2a406e",
    },
)  # fmt: skip

STYLE = (
    "text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    ".strong{font-weight:bold}.lane{fill-opacity:0}.odd{fill-opacity:.6}.grid{stroke-width:.5;opacity:.4}.hatch{stroke-width:1;opacity:.25}"
    ".halo{stroke-width:2.5;paint-order:stroke}path{fill:none;stroke-width:1.6}"
    + _LIGHT
    + f".bad{{fill:{_RED}}}.m-submitted{{fill:{_BLUE}}}.m-got{{fill:{_BLUE};fill-opacity:.75}}"
    f".m-finished{{fill:{_GREEN}}}.m-aborted,.m-abort-sent{{fill:{_AMBER}}}.m-timed-out,.m-fault,.m-exceeded"
    f"{{fill:{_RED}}}.m-failed,.m-lease-failed,.m-died,.m-exit,.m-crashed,.m-deadlocked,.m-down{{stroke:{_RED};"
    f"stroke-width:2}}.m-refused{{stroke:{_AMBER}}}.m-unsent,.m-no-fault{{stroke:{_GREY}}}.m-output{{opacity:.6}}"
    f".here{{stroke:{_RED};stroke-dasharray:3 3;opacity:.7}}.badge{{fill:{_RED}}}.number{{fill:#fff;font-weight:bold}}"
    f".ring{{fill:none;stroke:{_RED};stroke-width:2}}@media(prefers-color-scheme:dark){{{_DARK}"
    ".bad{fill:#ff7b72}.number{fill:#fff}.m-got,.m-submitted{fill:#79c0ff}.m-finished{fill:#56d364}.ring{stroke:#ff7b72}"
    ".m-aborted,.m-abort-sent{fill:#e3b341}.m-timed-out,.m-fault,.m-exceeded{fill:#ff7b72}.m-failed,.m-lease-failed,"
    ".m-died,.m-exit,.m-crashed,.m-deadlocked,.m-down{stroke:#ff7b72}.here{stroke:#ff7b72}}"
)
"""No script, nothing that is loaded from elsewhere."""
