"""``check``: what a pipeline would be run with, where each value comes from, and everything that is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from omni_actors._errors import ConfigError
from omni_actors.cli._exit import Code, print_json
from omni_actors.config import Resolved, problem_lines, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_actors.config import PipelineSpec

__all__ = ["engine_problems", "run_check"]


def run_check(
    target: str,
    overrides: Sequence[str],
    *,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    as_json: bool,
) -> Code:
    """Print the effective config, or one line per problem. Starts nothing."""
    try:
        found = resolve(target, overrides, model=model, options=options)
    except ConfigError as error:
        return _refuse(target, problem_lines(error), as_json=as_json)
    problems = engine_problems(found.spec)
    if problems:
        return _refuse(target, problems, as_json=as_json)
    if as_json:
        print_json(_document(target, found))
    else:
        _print(found)
    return Code.OK


def engine_problems(spec: PipelineSpec) -> list[str]:
    """What the stages' engine kinds know to be wrong before anything is started, one line each."""
    from omni_actors.runtime._world import engine_kind

    problems: list[str] = []
    for stage in spec.stages:
        try:
            engine_kind(stage.engine, {}, stage.name).check(stage)
        except ConfigError as error:
            problems += problem_lines(error)
    return problems


def _refuse(target: str, problems: Sequence[str], *, as_json: bool) -> Code:
    if as_json:
        print_json({"target": target, "ok": False, "problems": list(problems)})
    else:
        from rich.console import Console

        console = Console(stderr=True, soft_wrap=True)
        for line in problems:
            console.print(line, markup=False, highlight=False)
    return Code.USAGE


def _document(target: str, found: Resolved) -> dict[str, Any]:
    values = [{"path": row.path, "value": row.value, "source": row.source} for row in found.rows()]
    return {
        "target": target,
        "ok": True,
        "pipeline": found.spec.name,
        "values": values,
        "environment": [attrs.asdict(change) for change in found.environment()],
        "problems": [],
    }


def _print(found: Resolved) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    count = len(found.spec.stages)
    console.print(f"pipeline [bold]{found.spec.name}[/]: {count} stage{'' if count == 1 else 's'}, nothing wrong\n")
    rows = found.rows()
    width = max(len(row.path) for row in rows)
    for row in rows:
        style = "dim" if row.source == "default" else ""
        line = f"{row.path:{width}}  {row.value!s}  "
        console.print(line, style=style, markup=False, end="")
        console.print(f"({row.source})", style="dim", markup=False)
    changes = found.environment()
    console.print("\nenvironment of the engines, where it differs from this shell's:" if changes else "")
    for change in changes:
        before = "not set" if change.before is None else change.before
        console.print(f"{change.stage}: {change.name}={change.after}  (here: {before})", markup=False)
