"""The runtime's private folder: where its sockets live, and how the folders of dead runtimes are swept.

A folder is ours if it is a real directory of our user with mode 0700, its name is ``omni-`` and six hex digits, and
its lock file carries our mark. It is alive while somebody holds the lock (``flock``), which the kernel releases at
the owner's death however it dies. Whoever gets the lock may remove the folder, so:

* The owner makes the folder, locks, and only then writes the mark. A folder without the mark is never swept.
* A sweeper may hold the lock of a folder in the making for an instant; the owner then makes another folder.
* A sweeper reads the mark and removes under the lock. The lock file goes last, so a half-removed folder stays ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from omni_actors._errors import ConfigError

from ._addresses import MAX_IPC_PATH_BYTES, ipc_address

__all__ = ["RunFolder", "sweep_stale"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"omni-[0-9a-f]{6}")
_LOCK = "lock"
_MARK = b"omni_actors run folder\n"
_NAME_ROOM = 40
"""The longest socket name there must be room for; vLLM names its own with 36 characters."""

_ATTEMPTS = 16


class RunFolder:
    """One runtime's private folder. Making it does a few system calls; it is gone after ``close``.

    ``base`` overrides where: by default ``$XDG_RUNTIME_DIR`` if that is a folder, else the system's temporary one.
    Raises ConfigError, naming the folder and the variable that moves it, if it can not be made or its path is so long
    that socket names of 40 characters would not fit.
    """

    def __init__(self, base: Path | None = None) -> None:
        base, variable = _base(base)
        _require_room(base, variable)
        try:
            self._path, self._lock = _create(base)
        except OSError as error:
            problem = f"can not make the run folder in {base}: {error.strerror or error}"
            raise ConfigError(problem, hint=f"set {variable} to a writable folder with space left") from error
        self._owner_pid = os.getpid()
        self._closed = False

    @property
    def path(self) -> Path:
        return self._path

    def ipc(self, name: str) -> str:
        """The address ``ipc://…/name`` in this folder. Raises ConfigError if its path is over 107 bytes."""
        return ipc_address(self._path, name)

    def close(self) -> None:
        """Remove the folder and all in it, then free its lock. Idempotent; a forked child only lets go of it.

        If something can not be removed it is logged and left to the next sweep.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if os.getpid() == self._owner_pid:
                _remove(self._path)
        finally:
            os.close(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep_stale(base: Path | None = None) -> list[Path]:
    """Remove the folders whose owners died; return their paths. Leaves everything that is not surely ours.

    Never raises for a folder that it can not remove. Blocking, normally well under a millisecond.
    """
    base, _ = _base(base)
    try:
        candidates = sorted(entry.name for entry in os.scandir(base) if _NAME.fullmatch(entry.name))
    except OSError:
        return []
    return [base / name for name in candidates if _sweep(base / name)]


def _base(base: Path | None) -> tuple[Path, str]:
    """Where run folders are made, and the variable that says so."""
    if base is not None:
        return base, "XDG_RUNTIME_DIR"
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(session) and os.path.isdir(session):
        return Path(session), "XDG_RUNTIME_DIR"
    try:
        return Path(tempfile.gettempdir()).absolute(), "TMPDIR"
    except OSError as error:  # it tries to write: a full disk ends here
        raise ConfigError(f"no usable temporary folder: {error.strerror or error}", hint="set TMPDIR") from error


def _require_room(base: Path, variable: str) -> None:
    longest = len(os.fsencode(base / "omni-000000" / ("n" * _NAME_ROOM)))
    if longest > MAX_IPC_PATH_BYTES:
        problem = f"{base} is too long for sockets: their paths may have {MAX_IPC_PATH_BYTES} bytes, not {longest}"
        raise ConfigError(problem, hint=f"set {variable} to a shorter folder")


def _create(base: Path) -> tuple[Path, int]:
    """A new folder and its locked lock file. Raises OSError."""
    for _ in range(_ATTEMPTS):
        path = base / f"omni-{secrets.token_hex(3)}"
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        try:
            lock = _claim(path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        if lock is not None:
            return path, lock
        shutil.rmtree(path, ignore_errors=True)
    raise OSError(f"no free name after {_ATTEMPTS} attempts")


def _claim(path: Path) -> int | None:
    """Make the lock file, lock it, mark it. None if a sweeper was faster."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(lock):
            os.close(lock)
            return None
        os.write(lock, _MARK)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(path: Path) -> bool:
    """Remove one folder if it is ours and its owner is dead."""
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            if not _private(os.fstat(folder)):
                return False
            lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            stack.callback(os.close, lock)
        except OSError:
            return False
        if not stat.S_ISREG(os.fstat(lock).st_mode) or not _locked(lock) or os.pread(lock, len(_MARK), 0) != _MARK:
            return False
        return _remove(path)


def _private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


def _remove(path: Path) -> bool:
    """Remove a folder whose lock is held; its lock file goes last. False if that failed, or it was gone."""
    try:
        for entry in os.scandir(path):
            if entry.name != _LOCK:
                _remove_entry(entry)
        os.unlink(path / _LOCK)
        os.rmdir(path)
    except FileNotFoundError:
        return False  # somebody else, the reaper for one, removed it meanwhile
    except OSError as error:
        _log.warning("can not remove the run folder %s: %s", path, error)
        return False
    return True


def _remove_entry(entry: os.DirEntry[str]) -> None:
    """An engine that is just ending, or the reaper, may be faster: then the next one is tried."""
    with contextlib.suppress(FileNotFoundError):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
