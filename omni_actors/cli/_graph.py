"""``graph``: a pipeline's stages as boxes and arrows, as Mermaid, or as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_actors.cli._boxes import Arrow, Box, draw
from omni_actors.cli._exit import Code, print_json

if TYPE_CHECKING:
    from omni_actors.config import PipelineSpec

__all__ = ["mermaid", "picture", "run_graph"]


def run_graph(spec: PipelineSpec, *, as_mermaid: bool, as_json: bool) -> Code:
    """Print the graph. Starts nothing."""
    if as_json:
        print_json(_document(spec))
    else:
        print(mermaid(spec) if as_mermaid else picture(spec))
    return Code.OK


def picture(spec: PipelineSpec) -> str:
    """Stages as boxes, edges with their mode, outputs under a double arrow."""
    boxes = [Box(stage.name, _words(stage.name, spec), stage.output) for stage in spec.stages]
    arrows = [Arrow(edge.stage, stage.name, edge.mode) for stage in spec.stages for edge in stage.inputs]
    return draw(boxes, arrows)


def _words(name: str, spec: PipelineSpec) -> tuple[str, ...]:
    stage = spec.stage(name)
    copies = f" x{stage.replicas}" if stage.replicas > 1 else ""
    devices = f" on {stage.devices}" if stage.devices is not None else ""
    beside = ("with companions",) if stage.companions is not None else ()
    return (name, f"{stage.engine}{copies}{devices}", *beside)


def mermaid(spec: PipelineSpec) -> str:
    """A Mermaid flowchart."""
    lines = ["flowchart LR"]
    for stage in spec.stages:
        lines.append(f'    {_ident(stage.name)}["{"<br/>".join(_words(stage.name, spec))}"]')
        if stage.output:
            lines.append(f'    {_ident(stage.name)} ==> out_{_ident(stage.name)}(["{stage.output}"])')
        lines += [f"    {_ident(edge.stage)} -->|{edge.mode}| {_ident(stage.name)}" for edge in stage.inputs]
    return "\n".join(lines)


def _ident(name: str) -> str:
    """A Mermaid id; the prefix keeps its reserved words (``end``) apart."""
    return "s_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in name)


def _document(spec: PipelineSpec) -> dict[str, Any]:
    stages = [
        {"name": s.name, "engine": s.engine, "replicas": s.replicas, "output": s.output, "companions": s.companions}
        for s in spec.stages
    ]
    edges = [{"from": e.stage, "to": s.name, "mode": e.mode} for s in spec.stages for e in s.inputs]
    return {"pipeline": spec.name, "stages": stages, "edges": edges, "mermaid": mermaid(spec)}
