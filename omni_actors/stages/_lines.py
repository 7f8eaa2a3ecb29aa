"""A child's output, cut into lines, and the end of it kept for error messages. Sans I/O, bounded in both directions."""

from __future__ import annotations

from collections import deque

__all__ = ["Lines"]

MAX_LINES = 20
MAX_CHARS = 1000
_MAX_BYTES = 4 * MAX_CHARS  # the longest UTF-8 encoding of a line that is kept


class Lines:
    """Bytes in, whole lines out; ``tail`` has the last 20. Lines are cut at 1,000 characters.

    What a progress bar overwrites with a carriage return is dropped, as on a terminal. Empty lines are dropped.
    """

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=MAX_LINES)
        self._partial = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = self._partial + whole[0]
            self._partial = b""
        # Of an endless line its beginning is kept, of a progress bar its newest state.
        self._partial = _visible(self._partial + rest)[:_MAX_BYTES]
        return self._keep(whole)

    def end(self) -> list[str]:
        """The last line, if it was not ended."""
        rest, self._partial = self._partial, b""
        return self._keep([rest])

    def _keep(self, raw: list[bytes]) -> list[str]:
        lines = [_visible(line).decode("utf-8", "replace").rstrip()[:MAX_CHARS] for line in raw]
        lines = [line for line in lines if line]
        self.tail.extend(lines)
        return lines


def _visible(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]
