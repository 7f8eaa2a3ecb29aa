"""Pictures as PNG files that are complete or absent, films as animated ones, and as characters on a terminal. No state.

A picture is uint8 of shape (height, width, 3), RGB: the tensor of an ``Output.image``, or an ndarray. A film has its
frames as the first dimension. Pillow is imported where it is used: it is no dependency of the command line's own.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from omni_actors._errors import UsageError
from omni_actors._files import complete_file, usage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from PIL.Image import Image
    from PIL.PngImagePlugin import PngInfo
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement

__all__ = ["read_info", "show", "write_film", "write_png"]

_SHADES = " ░▒▓█"


def write_png(file: Path, image: Any, info: Mapping[str, str]) -> None:
    """Write a picture, whole or not at all, with ``info`` in its text chunks. Blocking: up to 0.2 s per megapixel.

    ``info`` is all that is written of how it was made (seed, steps, model), beside the ``software`` that wrote it: the
    prompt is in the file only if the caller put it there. Keys are Latin-1, at most 79 characters.
    Raises UsageError naming the folder: disk full, no access; and for what is no picture.
    """
    picture = _picture(image)
    with usage_errors(file), complete_file(file) as stream:
        picture.save(stream, format="png", pnginfo=_chunks(info))


def write_film(file: Path, frames: Any, fps: float, info: Mapping[str, str]) -> None:
    """Write a film as an animated PNG (APNG): every browser plays it, and nothing of it is lost. Else as ``write_png``.

    ``fps``: frames per second, more than 0.
    """
    shape = tuple(frames.shape)
    if str(frames.dtype) != "uint8" or len(shape) != 4 or 0 in shape:
        raise UsageError(f"a film is uint8 of shape (frames, height, width, 3), not {frames.dtype} of {shape}")
    first, *rest = [_picture(frame) for frame in _array(frames)]
    more = {"save_all": True, "append_images": rest, "duration": 1000 / fps, "loop": 0}
    with usage_errors(file), complete_file(file) as stream:
        first.save(stream, format="png", pnginfo=_chunks(info), **more)


def _array(frames: Any) -> Any:
    return frames.numpy() if hasattr(frames, "numpy") else frames


def _chunks(info: Mapping[str, str]) -> PngInfo:
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    for key, value in {"software": f"omni-actors {version('omni-actors')}", **info}.items():
        # What came from a command line may hold halves of surrogate pairs, which no encoding takes.
        chunks.add_text(key, value.encode(errors="replace").decode())
    return chunks


def read_info(file: Path) -> dict[str, str]:
    """The text chunks of a PNG file. Raises UsageError naming a file that is none, or can't be read."""
    from PIL import Image, PngImagePlugin

    try:
        with Image.open(file, formats=["png"]) as image:
            assert isinstance(image, PngImagePlugin.PngImageFile)
            return {key: str(value) for key, value in image.text.items()}
    except (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError) as error:
        raise UsageError(f"cannot read the picture {file}: {error}") from error


def show(image: Any, width: int) -> RenderableType:
    """The picture in half blocks, two pixels in a character, made smaller if it is wider than ``width`` columns.

    On a terminal without colours, in shades. Raises UsageError for what is no picture.
    """
    picture = _picture(image)
    if picture.width > width:
        picture = picture.resize((width, max(1, round(picture.height * width / picture.width))))
    return _Blocks(picture)


def _picture(image: Any) -> Image:
    from PIL import Image

    shape = tuple(image.shape)
    if str(image.dtype) != "uint8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise UsageError(f"a picture is uint8 of shape (height, width, 3), not {image.dtype} of {shape}")
    return Image.frombytes("RGB", (shape[1], shape[0]), memoryview(image.data).tobytes())


class _Blocks:
    """What rich draws of a picture: a line per two rows of pixels."""

    def __init__(self, picture: Image) -> None:
        self._size, self._pixels = picture.size, picture.tobytes()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for row in range(0, self._size[1], 2):
            yield from self._shades(row) if console.color_system is None else self._colours(row)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(self._size[0], self._size[0])

    def _colours(self, row: int) -> Iterator[Any]:
        from rich.color import Color
        from rich.segment import Segment
        from rich.style import Style

        for column in range(self._size[0]):
            upper, lower = (Color.from_rgb(*pixel) if pixel else None for pixel in self._pair(column, row))
            yield Segment("▀", Style(color=upper, bgcolor=lower))

    def _shades(self, row: int) -> Iterator[Any]:
        from rich.segment import Segment

        for column in range(self._size[0]):
            values = [value for pixel in self._pair(column, row) for value in pixel]
            yield Segment(_SHADES[sum(values) * len(_SHADES) // (256 * len(values))])

    def _pair(self, column: int, row: int) -> tuple[bytes, bytes]:
        """The pixel there and the one below it, which is empty under the last row of an odd height."""
        width = self._size[0]
        above, below = 3 * (row * width + column), 3 * ((row + 1) * width + column)
        return self._pixels[above : above + 3], self._pixels[below : below + 3]
