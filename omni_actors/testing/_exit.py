"""How a fake engine ends its process. Apart, so that its own process, which loads nothing of the host, starts fast."""

from __future__ import annotations

__all__ = ["Exit"]


class Exit(Exception):
    """Raised by an engine to end its process with ``code``; negative: by that signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code
