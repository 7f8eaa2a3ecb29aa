"""``generate``: one or many prompts through a pipeline; a failed one is one error in the output, the others go on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import InvalidRequest, OmniError, UsageError
from omni_actors._files import ready_folder
from omni_actors.cli._answers import Answer, stats_of, stats_rows
from omni_actors.cli._exit import Code, block, describe, print_json
from omni_actors.cli._params import stage_params
from omni_actors.cli._session import Session, run_session
from omni_actors.cli._tables import shutdown_json, shutdown_line, stats_table
from omni_actors.config import resolve
from omni_actors.lifecycle import Kind, Terminal
from omni_actors.pipelines._sound import write_wav

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime

__all__ = ["Job", "Result", "read_prompts", "run_generate"]

MAX_IN_FLIGHT = 64
"""Prompts at work at once: enough to fill an engine's batch, few enough for answers to come in about their order."""

MAX_PROMPT_FILE_BYTES = 64 << 20


@attrs.frozen(kw_only=True)
class Job:
    """What was asked on the command line. ``out``: the folder for what is not text."""

    target: str
    prompts: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    modalities: tuple[str, ...] | None = None
    stage_params: tuple[str, ...] = ()
    out: Path | None = None
    timeout_s: float | None = None
    stats: bool = False
    as_json: bool = False


@attrs.frozen(kw_only=True)
class Result:
    """One prompt's end. ``files``: what was written."""

    prompt: str
    request_id: str
    answer: Answer
    terminal: Terminal | None = None
    error: OmniError | None = None
    files: tuple[str, ...] = ()


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
    spec = resolve(job.target, job.overrides).spec
    params = stage_params(job.stage_params, spec)
    _check_modalities(job.modalities, spec)
    if job.out is not None:
        ready_folder(job.out)
    asking = _Asking(job, params, output)
    session = run_session(spec, asking.ask_all, progress)
    if job.as_json:
        print_json(_document(job, session))
    else:
        _print_end(job, session, progress, output)
    if session.interrupted:
        return Code.INTERRUPTED
    return Code.FAILED if any(result.error for result in session.result) else Code.OK


def _check_modalities(wanted: tuple[str, ...] | None, spec: PipelineSpec) -> None:
    """What the runtime would refuse request by request is refused before anything is started. Raises InvalidRequest."""
    made = [stage.output for stage in spec.stages if stage.output]
    if wanted is not None and (not wanted or (unknown := [name for name in wanted if name not in made])):
        words = f"nobody makes {', '.join(unknown)}" if wanted else "no modality was named"
        raise InvalidRequest(f"--modalities: {words}; {spec.name} makes: {', '.join(made)}")


class _Asking:
    """Owns one command's results. Answers are printed in the order of the prompts, each as early as that allows."""

    def __init__(self, job: Job, params: Mapping[str, Any] | None, output: Console) -> None:
        self._job, self._params, self._output = job, params, output
        self._results: dict[int, Result] = {}
        self._printed = 0
        self._broken: UsageError | None = None
        self._live = len(job.prompts) == 1 and not job.as_json

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

        async with trio.open_nursery() as nursery:
            for number in range(len(self._job.prompts)):
                nursery.start_soon(ask, number)
        if self._broken is not None:
            raise self._broken
        return [self._results[number] for number in range(len(self._job.prompts))]

    async def _ask(self, omni: OmniRuntime, number: int) -> Result:
        prompt, answer = self._job.prompts[number], Answer()
        name, began_at = f"prompt-{number + 1}", trio.current_time()
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
                    async for item in stream:
                        answer.take(item, trio.current_time() - began_at)
                        if self._live and item.text and item.index == 0:
                            self._output.print(item.text, end="", markup=False, highlight=False, soft_wrap=True)
                finally:
                    terminal = stream.terminal
        except OmniError as caught:
            error = caught
        whole = terminal is not None and terminal.kind is Kind.FINISHED
        files = await self._write(number, answer) if whole else ()
        return Result(prompt=prompt, request_id=name, answer=answer, terminal=terminal, error=error, files=files)

    async def _write(self, number: int, answer: Answer) -> tuple[str, ...]:
        """The sound of each choice, as ``prompt-1.wav``. Raises UsageError: a full disk ends the command."""
        if self._job.out is None:
            return ()
        files = []
        for index in sorted({sentence.index for sentence in answer.sentences.values()}):
            spoken = answer.spoken(index)
            file = self._job.out / f"prompt-{number + 1}{f'-choice-{index + 1}' if index else ''}.wav"
            samples = spoken[0].samples()
            for sentence in spoken[1:]:
                samples.extend(sentence.samples())
            await trio.to_thread.run_sync(write_wav, file, samples, spoken[0].sample_rate)
            files.append(str(file))
        return tuple(files)

    def _print_ready(self) -> None:
        while not self._job.as_json and (result := self._results.get(self._printed)) is not None:
            self._printed += 1
            _print_result(result, self._output, streamed=self._live, numbered=len(self._job.prompts) > 1)


def _print_result(result: Result, output: Console, *, streamed: bool, numbered: bool) -> None:
    if numbered:
        output.print(f"[{result.request_id}] {result.prompt}", style="bold", markup=False, highlight=False)
    if streamed and result.answer.text:
        output.print()
    for index, text in sorted(result.answer.texts.items()):
        if not (streamed and index == 0):
            output.print(text, markup=False, highlight=False, soft_wrap=True)
    if result.answer.sentences:
        where = f": {', '.join(result.files)}" if result.files else " (--out FOLDER keeps it)"
        output.print(f"{result.answer.audio_s:.2f} s of audio{where}", markup=False, highlight=False, soft_wrap=True)
    if result.error is not None:
        output.print("\n".join(block(result.error)), markup=False, highlight=False, soft_wrap=True)
    elif result.terminal is not None and result.terminal.kind is not Kind.FINISHED:
        output.print(f"{result.terminal.kind.value}: {result.terminal.reason}", markup=False, highlight=False)


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
    audio = {"seconds": answer.audio_s, "sample_rate": rates[0], "files": list(result.files)} if rates else None
    return {
        "request_id": result.request_id,
        "prompt": result.prompt,
        "kind": None if terminal is None else terminal.kind.value,
        "text": answer.text if answer.texts else None,
        "choices": [text for _, text in sorted(answer.texts.items())],
        "finish_reason": answer.finish_reason,
        "audio": audio,
        "error": None if result.error is None else describe(result.error),
        "first_text_s": answer.first_text_s,
        "first_audio_s": answer.first_audio_s,
        "stats": None if terminal is None else stats_rows(stats_of(terminal)),
    }
