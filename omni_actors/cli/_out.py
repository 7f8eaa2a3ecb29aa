"""Where ``generate`` writes what is no text: sounds as WAV, pictures as PNG, films as animated PNG.

Each is complete or absent (``_files``).

``Out`` is where, checked before anything is started; ``keep`` writes one answer. No state.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import UsageError
from omni_actors._files import ready_folder
from omni_actors.cli._pictures import write_film, write_png
from omni_actors.config._validate import is_local
from omni_actors.pipelines._sound import write_wav

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from omni_actors.cli._answers import Answer, Picture, Sentence
    from omni_actors.config import PipelineSpec

__all__ = ["Kept", "Out", "keep", "shown_model"]

_SUFFIXES = {".png": "image", ".apng": "video", ".wav": "audio"}
_FPS = 8
_OTHERS = frozenset((".avif", ".bmp", ".flac", ".gif", ".jpeg", ".jpg", ".mp3", ".mp4", ".ogg", ".tiff", ".webp"))
"""Names of files that somebody could mean as such."""


@attrs.frozen
class Kept:
    """The files of one answer, in the order of its sounds, of its pictures and of its films."""

    sounds: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    films: tuple[str, ...] = ()


@attrs.frozen
class Out:
    """A folder, or the file that what is of its kind is written into."""

    folder: Path
    file: Path | None = None

    @classmethod
    def ready(cls, path: Path, prompts: int, made: Collection[str]) -> Out:
        """``path`` as it is meant: a file if its name ends in .png, .apng or .wav, else a folder, which is made.

        ``made``: the modalities that are asked for. Raises UsageError: not writable, full, a folder that is not there
        to put the file into, a file for several prompts or for what nobody makes.
        """
        suffix = path.suffix.lower()
        if suffix not in (*_SUFFIXES, *_OTHERS) or path.is_dir():
            ready_folder(path)
            return cls(path)
        if suffix not in _SUFFIXES:
            raise UsageError(f"--out {path}: pictures are written as .png, films as .apng, sound as .wav")
        if _SUFFIXES[suffix] not in made:
            raise UsageError(f"--out {path}: what is asked for is {', '.join(made)}, not {_SUFFIXES[suffix]}")
        if prompts > 1:
            raise UsageError(f"--out {path}: {prompts} prompts do not go into one file; give a folder")
        if not path.parent.is_dir():
            raise UsageError(f"--out {path}: there is no folder {path.parent}")
        ready_folder(path.parent)
        return cls(path.parent, path)

    def place(self, prompt: int, nth: int, suffix: str) -> Path | None:
        """The file for the ``nth`` sound or picture of a prompt (both from 0); None if it is not to be kept."""
        more = f"-{nth + 1}" if nth else ""
        if self.file is None:
            return self.folder / f"prompt-{prompt + 1}{more}{suffix}"
        if self.file.suffix.lower() != suffix:
            return None
        return self.file.with_name(f"{self.file.stem}{more}{self.file.suffix}")


async def keep(out: Out, prompt: int, answer: Answer, spec: PipelineSpec, info: Mapping[str, str]) -> Kept:
    """Write everything of one answer; ``info`` goes into each picture. Raises UsageError naming the folder.

    A cancellation comes after the file that is being written.
    """
    sounds = []
    for nth, index in enumerate(sorted({sentence.index for sentence in answer.sentences.values()})):
        if (file := out.place(prompt, nth, ".wav")) is not None:
            await trio.to_thread.run_sync(_write_sound, file, answer.spoken(index))
            sounds.append(str(file))
    pictures = await _keep_pictures(out, prompt, answer.pictures, ".png", spec, info)
    return Kept(tuple(sounds), pictures, await _keep_pictures(out, prompt, answer.films, ".apng", spec, info))


async def _keep_pictures(
    out: Out, prompt: int, made: Mapping[Any, Picture], suffix: str, spec: PipelineSpec, info: Mapping[str, str]
) -> tuple[str, ...]:
    """The files of an answer's pictures, or of its films."""
    files = []
    for nth, (_, picture) in enumerate(sorted(made.items())):
        if (file := out.place(prompt, nth, suffix)) is not None:
            said = {**_made_by(picture.meta, spec.stage(picture.stage).model), **info}
            await trio.to_thread.run_sync(_write_picture, file, picture, said)
            files.append(str(file))
    return tuple(files)


def _write_picture(file: Path, picture: Picture, said: Mapping[str, str]) -> None:
    if file.suffix.lower() == ".apng":
        write_film(file, picture.image, _fps(picture.meta), said)
    else:
        write_png(file, picture.image, said)


def _fps(meta: Mapping[str, Any]) -> float:
    """Frames per second as the model's class says; what is no number of them says nothing."""
    told = meta.get("fps")
    return told if isinstance(told, int | float) and 0 < told < math.inf else _FPS


def _write_sound(file: Path, spoken: list[Sentence]) -> None:
    first, *others = [sentence.samples() for sentence in spoken]
    for samples in others:
        first.extend(samples)
    write_wav(file, first, spoken[0].sample_rate)


def _made_by(meta: Mapping[str, Any], model: str) -> dict[str, str]:
    told = {key: str(meta[key]) for key in ("seed", "steps") if meta.get(key) is not None}
    return {**told, "model": shown_model(model)}


def shown_model(model: str) -> str:
    """The last name of a folder, an id of the hub as it is: nothing that tells of the machine's folders."""
    if is_local(model) or os.path.isdir(model):
        return Path(model).expanduser().absolute().name
    return model
