"""What commands print about a run: the table of times and the shutdown in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from rich.table import Table

    from omni_actors.observe import RequestStats
    from omni_actors.runtime import ShutdownReport

__all__ = ["shutdown_json", "shutdown_line", "stats_table"]


def stats_table(stats: RequestStats, title: str | None = None) -> Table:
    """Milliseconds per stage: start + queue + first + rest = its end; the last end is the whole."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("stage", "start", "queue", "first", "rest", "total ms", "tokens", "audio s", "RTF", "steps"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for row in stats.rows:
        times = (row.start_us, row.queue_us, row.first_us, row.rest_us, row.total_us)
        made = (f"{row.audio_s:.2f}" if row.audio_s else "", f"{row.rtf:.3f}" if row.rtf else "", str(row.steps or ""))
        table.add_row(row.stage, *map(_ms, times), "" if row.tokens is None else str(row.tokens), *made)
    table.add_section()
    table.add_row("whole", "", "", "", "", _ms(stats.whole_us))
    return table


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f}"


def shutdown_line(report: ShutdownReport) -> str:
    """``shutdown: 3 engines stopped in 4.4 s (draining 0.0, stopping 4.4)``; what went otherwise is named."""
    ends = [("stopped", report.stopped), ("terminated", report.terminated), ("killed", report.killed)]
    parts = [f"{len(report.stopped)} engine{'' if len(report.stopped) == 1 else 's'} stopped"]
    parts += [f"{how}: {', '.join(names)}" for how, names in ends[1:] if names]
    if report.unreaped:
        parts.append(f"not reaped: pid {', '.join(map(str, report.unreaped))}")
    if report.aborted_requests:
        parts.append(f"{report.aborted_requests} requests aborted")
    rungs = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.seconds.items())
    return f"shutdown: {'; '.join(parts)} in {sum(report.seconds.values()):.1f} s ({rungs})"


def shutdown_json(report: ShutdownReport) -> dict[str, Any]:
    """The report as data."""
    return {**attrs.asdict(report), "seconds": dict(report.seconds)}
