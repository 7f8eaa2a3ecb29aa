"""Files that are complete or absent. Standard library only; no state.

A file is written under a temporary name in its own folder, synced, renamed, and the folder is synced. Until the rename
an older file at that path is untouched; a process that is killed before it leaves the temporary file at most.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from typing import TYPE_CHECKING

from omni_actors._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["complete_file", "ready_folder", "usage_errors"]


@contextlib.contextmanager
def complete_file(file: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes are ``file`` once the block has ended well, durably; otherwise nothing is left of them.

    A link stays a link: what it points at is replaced. A pipe or a device has nothing to replace and is written
    directly. Blocking. Raises OSError; only one of the folder's last sync comes after the rename.
    """
    if file.exists() and not file.is_file():
        with file.open("wb") as stream:
            yield stream
        return
    target = file.resolve()
    name = target.with_name(f".omni-actors-{secrets.token_hex(8)}")  # as long for any name, which may be the longest
    try:
        with name.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, target)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def usage_errors(file: Path) -> Iterator[None]:
    """An OSError of the block is a UsageError that names ``file`` and its folder: disk full, no access."""
    try:
        yield
    except OSError as error:
        words = f"cannot write {file.name} into the folder {file.parent}: {error.strerror or error}"
        raise UsageError(words) from error


def ready_folder(folder: Path, needed_bytes: int = 4 << 20) -> None:
    """Make ``folder`` and try it. Raises UsageError naming it: not a folder, not writable, less than needed free.

    For what takes long to make: called first, it says early what would otherwise be known at the end.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UsageError(f"cannot write into the folder {folder}: {error.strerror or error}") from error
    if free < needed_bytes:
        raise UsageError(f"the disk of the folder {folder} is full: {free >> 10} KiB free, {needed_bytes >> 10} needed")
