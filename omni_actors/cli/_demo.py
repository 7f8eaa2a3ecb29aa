"""``demo``: the main job. Four engines answer one question in text, speech and pictures; a judge says what it heard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import UsageError
from omni_actors._files import ready_folder
from omni_actors.cli._answers import Answer, Picture, stats_of, stats_rows
from omni_actors.cli._demo_view import AnswerView
from omni_actors.cli._doctor import demo_missing, examine
from omni_actors.cli._exit import Code, Missing, print_json
from omni_actors.cli._pictures import write_png
from omni_actors.cli._session import Session, run_session
from omni_actors.cli._tables import shutdown_json, shutdown_line, stats_table
from omni_actors.config import resolve
from omni_actors.lifecycle import Kind, Terminal
from omni_actors.pipelines._sound import write_wav

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from rich.console import Console

    from omni_actors.runtime import OmniRuntime

__all__ = ["PIPELINE", "QUESTION", "DemoJob", "require", "run_demo"]

PIPELINE = "tiny-omni"
QUESTION = "What is two plus three, nine minus four, and seven plus eight?"
_SOUND_FILE, _PICTURE_FILE = "answer.wav", "answer.png"


@attrs.frozen(kw_only=True)
class DemoJob:
    """What was asked on the command line."""

    question: str
    out: Path
    overrides: tuple[str, ...] = ()
    timeout_s: float = 60.0
    as_json: bool = False


@attrs.frozen(kw_only=True)
class _Told:
    """What came of it. ``file``: the sound; ``picture_file``: all pictures; ``heard``: None without a judge."""

    answer: Answer
    terminal: Terminal
    file: Path | None
    picture_file: Path | None
    heard: tuple[str, ...] | None


def require() -> None:
    """Raises Missing, naming everything that the demo needs and this machine lacks, with how to get it."""
    if missing := demo_missing(examine()):
        words = "; ".join(f"{found.name}: {found.value} ({found.hint})" for found in missing)
        raise Missing(f"the demo cannot run here. {words}")


def run_demo(job: DemoJob, progress: Console, output: Console) -> Code:
    """Ask, show, write both files, close. Raises Missing and UsageError (the folder, the config) before any start."""
    spec = resolve(PIPELINE, job.overrides).spec
    ready_folder(job.out)
    require()
    shape = ", ".join(stage.name for stage in spec.stages)
    progress.print(f"[bold]{spec.name}[/] on this machine: {shape}; one process each", highlight=False)

    async def body(omni: OmniRuntime) -> _Told:
        return await _tell(omni, job, output)

    session = run_session(spec, body, progress)
    if job.as_json:
        print_json(_document(job, session))
    else:
        output.print(shutdown_line(session.report), highlight=False, soft_wrap=True)
    return Code.INTERRUPTED if session.interrupted else Code.OK


async def _tell(omni: OmniRuntime, job: DemoJob, output: Console) -> _Told:
    answer, terminal = await _ask(omni, job, output)
    whole = terminal.kind is Kind.FINISHED
    if not whole:
        output.print(f"{terminal.kind.value}: {terminal.reason}", markup=False, highlight=False)
    file = job.out / _SOUND_FILE if whole and answer.sentences else None
    picture_file = job.out / _PICTURE_FILE if whole and answer.pictures else None
    if file is not None:
        await trio.to_thread.run_sync(write_wav, file, _whole(answer), answer.spoken()[0].sample_rate)
        output.print(f"\nwrote {file}: {answer.audio_s:.1f} s of speech", highlight=False, soft_wrap=True)
    if picture_file is not None:
        await trio.to_thread.run_sync(_write_pictures, picture_file, answer.painted())
        output.print(f"wrote {picture_file}: {len(answer.painted())} pictures", highlight=False, soft_wrap=True)
    heard = await trio.to_thread.run_sync(_listen, answer)
    _print_heard(output, heard)
    output.print(stats_table(stats_of(terminal)))
    return _Told(answer=answer, terminal=terminal, file=file, picture_file=picture_file, heard=heard)


async def _ask(omni: OmniRuntime, job: DemoJob, output: Console) -> tuple[Answer, Terminal]:
    answer = Answer()
    with AnswerView(job.question, answer, output) as view:
        began_at = trio.current_time()
        async with omni.generate(job.question, request_id="demo", timeout_s=job.timeout_s) as stream:
            async for item in stream:
                view.show(answer.take(item, trio.current_time() - began_at))
    assert stream.terminal is not None
    return answer, stream.terminal


def _whole(answer: Answer) -> array[float]:
    first, *others = [sentence.samples() for sentence in answer.spoken()]
    for samples in others:
        first.extend(samples)
    return first


def _write_pictures(file: Path, pictures: Sequence[Picture]) -> None:
    """Side by side, as one. Raises UsageError naming the folder: disk full, no access. Blocking."""
    import numpy as np

    info = {"model": f"{PIPELINE} painter"} | {key: str(pictures[0].meta[key]) for key in ("seed", "steps")}
    write_png(file, np.concatenate([picture.image.numpy() for picture in pictures], axis=1), info)


def _listen(answer: Answer) -> tuple[str, ...] | None:
    """What the judge hears, sentence by sentence; None where it is not installed. Blocking, tenths of a second."""
    from omni_actors.pipelines._judge import Judge

    try:
        import numpy as np

        judge = Judge()
    except (ImportError, UsageError):
        return None
    spoken = answer.spoken()
    return tuple(judge.hear(np.array(s.samples(), dtype=np.float32), s.sample_rate) for s in spoken)


def _print_heard(output: Console, heard: tuple[str, ...] | None) -> None:
    if heard is None:
        output.print("no judge: pip install 'omni-actors[demo]' adds one that says what it heard", markup=False)
        return
    said = "; ".join(words or "(nothing)" for words in heard)
    output.print(f"the judge heard: {said}", markup=False, highlight=False, soft_wrap=True)


def _document(job: DemoJob, session: Session[_Told]) -> dict[str, Any]:
    told = session.result
    answer, heard = told.answer, told.heard or ()
    sentences = [
        {
            "part": sentence.part,
            "first_s": sentence.first_s,
            "last_s": sentence.last_s,
            "seconds": sentence.seconds,
            "heard": heard[index] if index < len(heard) else None,
        }
        for index, sentence in enumerate(answer.spoken())
    ]
    return {
        "question": job.question,
        "text": answer.text,
        "first_text_s": answer.first_text_s,
        "last_text_s": answer.last_text_s,
        "sentences": sentences,
        "pictures": [{"part": picture.part, "at_s": picture.at_s} for picture in answer.painted()],
        "file": None if told.file is None else str(told.file),
        "picture_file": None if told.picture_file is None else str(told.picture_file),
        "audio_s": answer.audio_s,
        "stats": stats_rows(stats_of(told.terminal)),
        "startup_s": session.startup_s,
        "shutdown": shutdown_json(session.report),
        "interrupted": session.interrupted,
    }
