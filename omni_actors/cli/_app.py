"""The commands and their options. Each loads what it needs when it is called, so that ``--help`` loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omni_actors.cli._exit import Code, guarded

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["app"]

app = typer.Typer(
    name="omni-actors",
    help="Runs multi-stage omni-modal models: engine processes as supervised trio actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A pipeline's name or a deploy file (.yaml).")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one value, as in --set thinker.replicas=2."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="PATH|ID", help="The model of the one stage that has none, or of the only stage."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info (engines' own lines), warning or error.")]
Timeout = Annotated[float | None, typer.Option("--timeout-s", min=0.001, help="Seconds that one request may take.")]
Question = Annotated[list[str] | None, typer.Argument(metavar="[QUESTION]…", help="Sums of digits, in words.")]
Out = Annotated[Path, typer.Option("--out", help="The folder for answer.wav.")]
MaybeOut = Annotated[
    Path | None,
    typer.Option("--out", help="The folder for what is not text; or the file, if it ends in .png or .wav."),
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Of each picture.")]
PictureSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Of the first picture; drawn without it.")]
Size = Annotated[str | None, typer.Option("--size", metavar="WxH", help="Of each picture, in pixels, as in 512x768.")]
Samples = Annotated[int | None, typer.Option("--n", min=1, help="Pictures per prompt.")]
Negative = Annotated[str | None, typer.Option("--negative-prompt", help="What the pictures are not to show.")]
Guidance = Annotated[float | None, typer.Option("--guidance", help="How closely to follow the prompt.")]
WritePrompt = Annotated[bool, typer.Option("--write-prompt", help="Write the prompt into each PNG file, too.")]
Show = Annotated[bool, typer.Option("--show/--no-show", help="Show pictures on the terminal.")]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="What to ask; may be given several times.")]
PromptFile = Annotated[Path | None, typer.Option("--prompts", help="A file with one prompt a line; - is stdin.")]
Modalities = Annotated[str | None, typer.Option("--modalities", help="What is wanted, as in text,audio.")]
StageParams = Annotated[
    list[str] | None,
    typer.Option("--stage-params", metavar="STAGE.PARAM=VALUE", help="As in thinker.max_tokens=5."),
]
Stats = Annotated[bool, typer.Option("--stats", help="Print where each request's time went.")]
Mermaid = Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")]
BenchName = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which one; without it they are listed.")]
MaybeTarget = Annotated[str | None, typer.Argument(metavar="PIPELINE", help="A name or a deploy file, run on fakes.")]
Examples = Annotated[int, typer.Option("--examples", min=1, help="How many scenarios.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of the first batch of scenarios; drawn without it.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Processes that share the work; one per core.")]
ScenarioFile = Annotated[str | None, typer.Option("--scenario", metavar="FILE|-", help="Run this one only.")]
Svg = Annotated[Path | None, typer.Option("--svg", help="Where to draw a failure, or the scenario; prove-failure.svg.")]
Host = Annotated[str, typer.Option("--host", help="Where to listen; anything but loopback is open to others.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one; it is printed.")]
HttpLimit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="As in body_bytes=1000000 or requests_per_key=8."),
]
Pairs = Annotated[int, typer.Option("--pairs", min=15, help="Pairs of runs behind each ratio.")]
Only = Annotated[str | None, typer.Option("--only", metavar="PART,…", help="Parts of a long one, as in chain1,q25.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"omni-actors {version('omni-actors')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def options(version: Version = False) -> None:
    """Runs multi-stage omni-modal models: engine processes as supervised trio actors."""


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _stdout(as_json: bool) -> Console:
    """Where the people's output goes: with ``--json`` stdout belongs to the document."""
    from rich.console import Console

    return Console(stderr=as_json)


def _ready(log_level: str) -> None:
    from omni_actors.cli._logging import configure

    configure(log_level)


def _end(code: Code) -> None:
    raise typer.Exit(int(code))


@app.command()
def demo(
    question: Question = None,
    out: Out = Path("out"),
    overrides: Overrides = None,
    timeout_s: Timeout = 60.0,
    as_json: AsJson = False,
    debug: Debug = False,
    log_level: LogLevel = "warning",
) -> None:
    """Ask three small engines a question; see and hear the answer."""
    with guarded(as_json=as_json, debug=debug):
        _ready(log_level)
        from omni_actors.cli._demo import QUESTION, DemoJob, run_demo

        words = " ".join(question or ()) or QUESTION
        more: dict[str, Any] = {} if timeout_s is None else {"timeout_s": timeout_s}
        job = DemoJob(question=words, out=out, overrides=tuple(overrides or ()), as_json=as_json, **more)
        _end(run_demo(job, _stderr(), _stdout(as_json)))


@app.command()
def generate(
    pipeline: Target,
    prompt: Prompts = None,
    prompts: PromptFile = None,
    modalities: Modalities = None,
    params: StageParams = None,
    model: Model = None,
    overrides: Overrides = None,
    out: MaybeOut = None,
    steps: Steps = None,
    seed: PictureSeed = None,
    size: Size = None,
    n: Samples = None,
    negative_prompt: Negative = None,
    guidance: Guidance = None,
    write_prompt: WritePrompt = False,
    show: Show = True,
    timeout_s: Timeout = None,
    stats: Stats = False,
    as_json: AsJson = False,
    debug: Debug = False,
    log_level: LogLevel = "warning",
) -> None:
    """Send prompts through a pipeline."""
    with guarded(as_json=as_json, debug=debug):
        _ready(log_level)
        from omni_actors.cli._generate import Job, read_prompts, run_generate
        from omni_actors.cli._params import Painting

        wanted = None if modalities is None else tuple(part.strip() for part in modalities.split(",") if part.strip())
        job = Job(
            target=pipeline,
            prompts=read_prompts(prompt or (), prompts),
            model=model,
            overrides=tuple(overrides or ()),
            modalities=wanted,
            stage_params=tuple(params or ()),
            painting=Painting(
                steps=steps, seed=seed, size=size, n=n, negative_prompt=negative_prompt, guidance=guidance
            ),
            out=out,
            write_prompt=write_prompt,
            show=show,
            timeout_s=timeout_s,
            stats=stats,
            as_json=as_json,
        )
        _end(run_generate(job, _stderr(), _stdout(as_json)))


@app.command(context_settings={"allow_extra_args": True}, epilog="Options of vLLM's own server: after --")
def serve(
    context: typer.Context,
    pipeline: Target,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    model: Model = None,
    overrides: Overrides = None,
    limits: HttpLimit = None,
    debug: Debug = False,
    log_level: LogLevel = "warning",
) -> None:
    """Serve a pipeline: vLLM's OpenAI server, with speech, audio chats, /ready and aborts."""
    with guarded(as_json=False, debug=debug):
        _ready(log_level)
        from omni_actors.cli._serve import ServeJob, run_serve

        job = ServeJob(
            target=pipeline,
            host=host,
            port=port,
            model=model,
            overrides=tuple(overrides or ()),
            limits=tuple(limits or ()),
            extra=tuple(context.args),
            log_level=log_level.lower(),
        )
        _end(run_serve(job, _stderr()))


@app.command()
def check(
    target: Target,
    model: Model = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
    log_level: LogLevel = "warning",
) -> None:
    """Show what a pipeline would be run with and where each value comes from, or everything wrong with it."""
    with guarded(as_json=as_json, debug=debug):
        _ready(log_level)
        from omni_actors.cli._check import run_check

        _end(run_check(target, tuple(overrides or ()), model=model, as_json=as_json))


@app.command()
def graph(
    target: Target,
    model: Model = None,
    overrides: Overrides = None,
    mermaid: Mermaid = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Draw a pipeline's stages and edges."""
    with guarded(as_json=as_json, debug=debug):
        from omni_actors.cli._graph import run_graph

        _end(run_graph(target, tuple(overrides or ()), model=model, as_mermaid=mermaid, as_json=as_json))


@app.command()
def doctor(as_json: AsJson = False, debug: Debug = False) -> None:
    """Say what is installed here, what would run, and how to get what is missing."""
    with guarded(as_json=as_json, debug=debug):
        from omni_actors.cli._doctor import run_doctor

        _end(run_doctor(as_json=as_json))


@app.command()
def bench(
    name: BenchName = None,
    pairs: Pairs = 15,
    only: Only = None,
    as_json: AsJson = False,
    debug: Debug = False,
    log_level: LogLevel = "warning",
) -> None:
    """Measure, against the best reference there is."""
    with guarded(as_json=as_json, debug=debug):
        _ready(log_level)
        from omni_actors.cli._bench import BenchOptions, list_benches, run_bench

        if name is None:
            _end(list_benches(_stdout(as_json), as_json=as_json))
        else:
            progress = _stderr()
            parts = tuple(part.strip() for part in (only or "").split(",") if part.strip())
            chosen = BenchOptions(
                pairs=pairs, only=parts, progress=lambda words: progress.print(words, highlight=False)
            )
            _end(run_bench(name, chosen, _stdout(as_json), as_json=as_json))


@app.command()
def prove(
    pipeline: MaybeTarget = None,
    examples: Examples = 1000,
    seed: Seed = None,
    jobs: Jobs = None,
    scenario: ScenarioFile = None,
    svg: Svg = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a pipeline on fakes under thousands of schedules and faults, and check every invariant."""
    with guarded(as_json=as_json, debug=debug):
        from omni_actors.cli._prove import ProveJob, run_prove

        job = ProveJob(
            target=pipeline, examples=examples, seed=seed, jobs=jobs, scenario=scenario, svg=svg, as_json=as_json
        )
        _end(run_prove(job, _stderr(), _stdout(as_json)))
