"""``generate``: one or many prompts through a pipeline; a failed one is one error in the output, the others go on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import InvalidRequest, OmniError, UsageError
from omni_actors.cli._answers import Answer, Picture, stats_of, stats_rows
from omni_actors.cli._bars import Bars
from omni_actors.cli._exit import Code, block, describe, print_json
from omni_actors.cli._out import Kept, Out, keep
from omni_actors.cli._params import Painting, painting_params, stage_params
from omni_actors.cli._pictures import show as picture_on
from omni_actors.cli._session import Session, run_session
from omni_actors.cli._tables import shutdown_json, shutdown_line, stats_table
from omni_actors.config import resolve
from omni_actors.lifecycle import Kind, Terminal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console

    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime, Stream

__all__ = ["Job", "Result", "read_prompts", "run_generate", "wants_bars"]

MAX_IN_FLIGHT = 64
"""Prompts at work at once: enough to fill an engine's batch, few enough for answers to come in about their order."""

MAX_PROMPT_FILE_BYTES = 64 << 20
_SHOWN_COLUMNS = 64


@attrs.frozen(kw_only=True)
class Job:
    """What was asked on the command line. ``out``: the folder, or the file, for what is not text.

    ``write_prompt``: into the files of pictures. ``show``: pictures on the terminal. ``options``: of vLLM-Omni.
    """

    target: str
    prompts: tuple[str, ...]
    model: str | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)
    overrides: tuple[str, ...] = ()
    modalities: tuple[str, ...] | None = None
    stage_params: tuple[str, ...] = ()
    painting: Painting = attrs.field(factory=Painting)
    out: Path | None = None
    write_prompt: bool = False
    show: bool = True
    timeout_s: float | None = None
    stats: bool = False
    as_json: bool = False

    @property
    def live(self) -> bool:
        """Whether text is printed as it comes."""
        return len(self.prompts) == 1 and not self.as_json


@attrs.frozen(kw_only=True)
class Result:
    """One prompt's end. ``kept``: the files that were written."""

    prompt: str
    request_id: str
    answer: Answer
    terminal: Terminal | None = None
    error: OmniError | None = None
    kept: Kept = attrs.field(factory=Kept)


def read_prompts(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """The prompts of the command line, then those of ``file``, one a line (``-``: stdin). Raises UsageError."""
    prompts = list(given)
    if file is not None:
        prompts += [line for line in _text(file).splitlines() if line.strip()]
    if not prompts:
        raise UsageError("no prompt was given: --prompt TEXT, or --prompts FILE with one a line")
    return tuple(prompts)


def _text(file: Path) -> str:
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as stream:
            data = stream.read(MAX_PROMPT_FILE_BYTES + 1)
        if len(data) > MAX_PROMPT_FILE_BYTES:
            raise UsageError(f"the file of prompts {file} is larger than {MAX_PROMPT_FILE_BYTES >> 20} MiB")
        return data.decode()
    except OSError as error:
        raise UsageError(f"cannot read prompts from {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the file of prompts {file} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error


def run_generate(job: Job, progress: Console, output: Console) -> Code:
    """Ask and print everything. ``progress`` is stderr, ``output`` stdout. Raises UsageError before any start."""
    spec = resolve(job.target, job.overrides, model=job.model, options=job.options).spec
    _check_modalities(job.modalities, spec)
    made = job.modalities or tuple(stage.output for stage in spec.stages if stage.output)
    bars = Bars(progress, job.prompts, shown=wants_bars(job, made))
    params = _params(job, spec, bars=bars.shown)
    out = None if job.out is None else Out.ready(job.out, len(job.prompts), made)
    asking = _Asking(job, spec, params, out, output, bars)
    # Half a picture is of no use to anybody: the first Ctrl-C ends a pipeline that only paints.
    session = run_session(spec, asking.ask_all, progress, drain=set(made) != {"image"})
    if job.as_json:
        print_json(_document(job, session))
    else:
        _print_end(job, session, progress, output)
    if session.interrupted:
        return Code.INTERRUPTED
    return Code.FAILED if any(result.error for result in session.result) else Code.OK


def wants_bars(job: Job, made: Collection[str]) -> bool:
    """Whether bars are of use: text that streams onto the screen and bars would be written over each other."""
    return "image" in made and not job.as_json and not (job.live and "text" in made)


def _params(job: Job, spec: PipelineSpec, *, bars: bool) -> Mapping[str, Mapping[str, Any]] | None:
    """By stage; None if nothing was said. Stages that paint tell how far they are where there are bars to show it."""
    chosen = painting_params(job.painting, spec)
    for name in chosen if bars else ():
        chosen[name]["progress"] = True
    for name, params in stage_params(job.stage_params, spec).items():
        chosen.setdefault(name, {}).update(params)
    return {name: params for name, params in chosen.items() if params} or None


def _check_modalities(wanted: tuple[str, ...] | None, spec: PipelineSpec) -> None:
    """What the runtime would refuse request by request is refused before anything is started. Raises InvalidRequest."""
    made = [stage.output for stage in spec.stages if stage.output]
    if wanted is not None and (not wanted or (unknown := [name for name in wanted if name not in made])):
        words = f"nobody makes {', '.join(unknown)}" if wanted else "no modality was named"
        raise InvalidRequest(f"--modalities: {words}; {spec.name} makes: {', '.join(made)}")


class _Asking:
    """Owns one command's results. Answers are printed in the order of the prompts, each as early as that allows."""

    def __init__(
        self,
        job: Job,
        spec: PipelineSpec,
        params: Mapping[str, Any] | None,
        out: Out | None,
        output: Console,
        bars: Bars,
    ) -> None:
        self._job, self._spec, self._params, self._out = job, spec, params, out
        self._output, self._bars = output, bars
        self._results: dict[int, Result] = {}
        self._printed = 0
        self._broken: UsageError | None = None

    async def ask_all(self, omni: OmniRuntime) -> list[Result]:
        """Every prompt, at most MAX_IN_FLIGHT at a time. Cancelling it aborts what runs."""
        room = trio.CapacityLimiter(MAX_IN_FLIGHT)

        async def ask(number: int) -> None:
            async with room:
                try:
                    self._results[number] = await self._ask(omni, number)
                except UsageError as error:  # ends the command; raised outside the nursery, which would group it
                    self._broken = error
                    nursery.cancel_scope.cancel()
            self._print_ready()

        with self._bars:
            async with trio.open_nursery() as nursery:
                for number in range(len(self._job.prompts)):
                    nursery.start_soon(ask, number)
        if self._broken is not None:
            raise self._broken
        return [self._results[number] for number in range(len(self._job.prompts))]

    async def _ask(self, omni: OmniRuntime, number: int) -> Result:
        prompt, answer = self._job.prompts[number], Answer()
        name = f"prompt-{number + 1}"
        terminal = error = None
        try:
            async with omni.generate(
                prompt,
                self._params,
                request_id=name,
                modalities=self._job.modalities,
                timeout_s=self._job.timeout_s,
            ) as stream:
                try:
                    await self._read(stream, answer, number, name)
                finally:
                    terminal = stream.terminal
                    self._bars.ended(number)
        except OmniError as caught:
            error = caught
        whole = terminal is not None and terminal.kind is Kind.FINISHED
        kept = await self._keep(number, answer) if whole else Kept()
        return Result(prompt=prompt, request_id=name, answer=answer, terminal=terminal, error=error, kept=kept)

    async def _read(self, stream: Stream, answer: Answer, number: int, name: str) -> None:
        began_at = trio.current_time()
        async for item in stream:
            made = answer.take(item, trio.current_time() - began_at)
            self._bars.took(number, item)
            if isinstance(made, Picture):
                self._bars.painted(name, made)
            if self._job.live and item.text and item.index == 0:
                self._output.print(item.text, end="", markup=False, highlight=False, soft_wrap=True)

    async def _keep(self, number: int, answer: Answer) -> Kept:
        """Raises UsageError: a full disk ends the command."""
        if self._out is None:
            return Kept()
        info = {"prompt": self._job.prompts[number]} if self._job.write_prompt else {}
        return await keep(self._out, number, answer, self._spec, info)

    def _print_ready(self) -> None:
        while not self._job.as_json and (result := self._results.get(self._printed)) is not None:
            self._printed += 1
            with self._bars.aside():
                _print_result(result, self._job, self._output, streamed=self._job.live)


def _print_result(result: Result, job: Job, output: Console, *, streamed: bool) -> None:
    def say(line: str, style: str | None = None) -> None:
        output.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    if len(job.prompts) > 1:
        say(f"[{result.request_id}] {result.prompt}", "bold")
    if streamed and result.answer.text:
        output.print()
    for index, text in sorted(result.answer.texts.items()):
        if not (streamed and index == 0):
            say(text)
    if result.answer.sentences:
        say(f"{result.answer.audio_s:.2f} s of audio{_where(result.kept.sounds)}")
    if result.answer.pictures:
        _print_pictures(result, output, show=job.show)
    if result.answer.films:
        frames = ", ".join(str(film.image.shape[0]) for _, film in sorted(result.answer.films.items()))
        say(f"film of {frames} frames{_where(result.kept.films)}")
    if result.error is not None:
        output.print("\n".join(block(result.error)), markup=False, highlight=False, soft_wrap=True)
    elif result.terminal is not None and result.terminal.kind is not Kind.FINISHED:
        output.print(f"{result.terminal.kind.value}: {result.terminal.reason}", markup=False, highlight=False)


def _where(files: Sequence[str]) -> str:
    return f": {', '.join(files)}" if files else " (--out FOLDER keeps it)"


def _print_pictures(result: Result, output: Console, *, show: bool) -> None:
    pictures = [picture for _, picture in sorted(result.answer.pictures.items())]
    if show and output.is_terminal:
        for picture in pictures:
            output.print(picture_on(picture.image, min(output.width, _SHOWN_COLUMNS)))
    for warning in dict.fromkeys(words for picture in pictures for words in picture.meta.get("warnings", ())):
        output.print(f"warning: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    seeds = ", ".join(str(picture.meta.get("seed")) for picture in pictures)
    count = "a picture" if len(pictures) == 1 else f"{len(pictures)} pictures"
    line = f"{count}, seed {seeds}{_where(result.kept.pictures)}"
    output.print(line, markup=False, highlight=False, soft_wrap=True)


def _print_end(job: Job, session: Session[list[Result]], progress: Console, output: Console) -> None:
    for result in session.result if job.stats else ():
        if result.terminal is not None:
            output.print(stats_table(stats_of(result.terminal), result.request_id if len(job.prompts) > 1 else None))
    progress.print(shutdown_line(session.report), highlight=False)


def _document(job: Job, session: Session[list[Result]]) -> dict[str, Any]:
    return {
        "pipeline": job.target,
        "results": [_result(result) for result in session.result],
        "startup_s": session.startup_s,
        "shutdown": shutdown_json(session.report),
        "interrupted": session.interrupted,
    }


def _result(result: Result) -> dict[str, Any]:
    answer, terminal = result.answer, result.terminal
    rates = [sentence.sample_rate for sentence in answer.sentences.values()]
    audio = {"seconds": answer.audio_s, "sample_rate": rates[0], "files": list(result.kept.sounds)} if rates else None
    return {
        "request_id": result.request_id,
        "prompt": result.prompt,
        "kind": None if terminal is None else terminal.kind.value,
        "text": answer.text if answer.texts else None,
        "choices": [text for _, text in sorted(answer.texts.items())],
        "finish_reason": answer.finish_reason,
        "audio": audio,
        "pictures": [dict(picture.meta) for _, picture in sorted(answer.pictures.items())],
        "picture_files": list(result.kept.pictures),
        "films": [dict(film.meta) for _, film in sorted(answer.films.items())],
        "film_files": list(result.kept.films),
        "error": None if result.error is None else describe(result.error),
        "first_text_s": answer.first_text_s,
        "first_audio_s": answer.first_audio_s,
        "stats": None if terminal is None else stats_rows(stats_of(terminal)),
    }
