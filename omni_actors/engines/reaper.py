"""The reaper: a process that outlives its host by seconds and leaves nothing of it behind.

Run by path (``python -I -S reaper.py <host pid>``) and therefore made of the standard library alone. It leads its own
process group, ignores TERM, INT and HUP, and watches the host by pidfd and by EOF on its stdin. On that stdin it learns
what is to be cleaned up, one line each::

    cookie <value>                        the value every child has in its environment
    folder <path>                         the run folder               answered: ok <path> | no <path>
    folder                                forget the run folder        answered: no
    group <pgid> <started> <session>      one process group            answered: ok <pgid>
    forget <pgid>                         that group is gone

``GroupKill`` is the routine itself: it decides and signals, but never waits. The reaper waits with ``poll``; the host's
own shutdown ladder uses the same routine as its last rung and waits with trio (``stages/_process.py``).

What it keeps: no process is signalled whose start time is not the one seen (pids are reused); multiprocessing's
resource trackers die last, because they unlink the shared memory of the dead; only a folder that was ours when it was
announced, and still is the same inode, is removed. In shared memory it removes what is named after a request of this
runtime: pieces that engines had for each other (vLLM-Omni's connectors), and whose reader did not live to read them.
"""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["COOKIE", "FOLDER_PREFIX", "LAST_S", "TRACKER_S", "Folder", "Group", "GroupKill", "Member", "Step",
           "adopt_folder", "identify", "main", "remove_folder", "remove_shared", "request_of", "salt_of"]  # fmt: skip

COOKIE = "OMNI_ACTORS_COOKIE"
FOLDER_PREFIX = "omni-"
TRACKER_S = 3.0  # that a resource tracker is given to unlink the shared memory of the dead
LAST_S = 0.5  # after the last signal, until what still lives is called a survivor

_MEMBERS_S = 10.0
_NO_PIDFD_S = 0.05
_MAX_LINE_BYTES = 4096
_MAX_DEPTH = 8
_SHARED_MEMORY = "/dev/shm"
_NAME = "([0-9a-f]+-[0-9a-f]+)"
_PIECE = re.compile(f"(?:shm_)?(?:{_NAME}[-_]|omni_.+_kv_cache_{_NAME}(?:_|$))")


class Group(NamedTuple):
    """A process group and what tells it from a later one with the same number."""

    pgid: int
    started: int
    session: int


class Member(NamedTuple):
    """One process as it was seen: ``started`` is in clock ticks since boot."""

    pid: int
    started: int
    ppid: int
    pgid: int
    session: int
    state: str

    @property
    def dead(self) -> bool:
        return self.state in "ZXx"


class Step(NamedTuple):
    """What to do after a sweep: wait until all ``pidfds`` are readable, at most until ``until``, then sweep again."""

    alive: tuple[int, ...]
    pidfds: tuple[int, ...]
    until: float
    over: bool


class Folder(NamedTuple):
    """A run folder, by path and identity."""

    path: str
    device: int
    inode: int


def _read(path: str) -> bytes:
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def _look(pid: int) -> Member | None:
    raw = _read(f"/proc/{pid}/stat")
    if not raw:
        return None
    # The command name may contain anything, so count from its closing parenthesis.
    fields = raw[raw.rindex(b")") + 2 :].split()
    # A zombie main thread with other threads alive is a running process.
    state = "R" if fields[0] == b"Z" and int(fields[17]) > 1 else fields[0].decode()
    return Member(pid, int(fields[19]), int(fields[1]), int(fields[2]), int(fields[3]), state)


def _table() -> dict[int, Member]:
    members = (_look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {member.pid: member for member in members if member is not None}


def identify(pgid: int) -> Group | None:
    """The group led by ``pgid``, as long as its leader has not been reaped."""
    leader = _look(pgid)
    return Group(pgid, leader.started, leader.session) if leader else None


def _is_tracker(pid: int) -> bool:
    return b"multiprocessing.resource_tracker" in _read(f"/proc/{pid}/cmdline")


def _has_cookie(pid: int, cookie: bytes) -> bool:
    # The runtime's cookie is "<value>"; each child's is "<value>.<n>". Exact or a dot, never a mere prefix.
    wanted = COOKIE.encode() + b"=" + cookie
    entries = _read(f"/proc/{pid}/environ").split(b"\0")
    return any(entry == wanted or entry.startswith(wanted + b".") for entry in entries)


class GroupKill:
    """The end of process groups: SIGKILL for all members, resource trackers last. Decides and signals, never waits.

    A member is a process in one of the groups, a descendant of a member, or one whose environment has ``cookie``
    (it may have left its group; a process that set its own title has lost its environment). Never we or our parent.
    ``sweep`` until ``Step.over``; ``alive`` of that last step are the survivors, normally none. Bounded by
    ``kill_s + tracker_s + LAST_S``. ``now`` is any clock, in seconds. Owns its pidfds: ``close`` it.
    """

    def __init__(
        self, groups: Iterable[Group], cookie: str | None, now: float, *, kill_s: float, tracker_s: float = TRACKER_S
    ) -> None:
        self._groups = {group.pgid: group for group in groups if group.pgid > 1}
        # An empty or short cookie would match strangers.
        self._cookie = cookie.encode() if cookie and len(cookie) >= 8 else None
        self._kill_at = now + kill_s
        self._tracker_s = tracker_s
        self._tracker_at: float | None = None
        self._known: set[tuple[int, int]] = set()
        self._pidfds: dict[tuple[int, int], int] = {}

    def sweep(self, now: float) -> Step:
        """One look at the process table, one signal to whom it is due. Takes about 20 microseconds per process."""
        found = self._find()
        self._forget_pidfds({(member.pid, member.started) for member in found})
        trackers = [member for member in found if _is_tracker(member.pid)]
        members = [member for member in found if member not in trackers]
        # Stopped ones first: a group orphaned with stopped members gets SIGHUP from the kernel, trackers included.
        for member in sorted(members, key=lambda member: member.state != "T"):
            self._signal(member, signal.SIGKILL)
        for tracker in trackers:
            self._signal(tracker, signal.SIGCONT)  # a stopped tracker would not see that the others are gone
        if members and now < self._kill_at:
            return self._wait_for(members, self._kill_at, now)
        return self._sweep_trackers(members, trackers, now)

    def _sweep_trackers(self, stuck: list[Member], trackers: list[Member], now: float) -> Step:
        if self._tracker_at is None:
            self._tracker_at = now + self._tracker_s
        if trackers and now < self._tracker_at:
            return self._wait_for(trackers, self._tracker_at, now)
        for tracker in trackers:
            self._signal(tracker, signal.SIGKILL)
        left = stuck + trackers
        end = max(self._kill_at, self._tracker_at) + LAST_S
        if not left or now >= end:
            return Step(tuple(member.pid for member in left), (), now, True)
        return self._wait_for(left, end, now)

    def _wait_for(self, members: list[Member], until: float, now: float) -> Step:
        keys = [(member.pid, member.started) for member in members]
        fds = tuple(self._pidfds[key] for key in keys if key in self._pidfds)
        if len(fds) < len(keys):
            until = min(until, now + _NO_PIDFD_S)
        return Step(tuple(pid for pid, _ in keys), fds, until, False)

    def _find(self) -> list[Member]:
        table = _table()
        hits = {pid for pid, member in table.items() if self._belongs(member, table)}
        hits = _with_descendants(hits, table) - {os.getpid(), os.getppid(), 1}
        self._known |= {(pid, table[pid].started) for pid in hits}
        return [table[pid] for pid in hits if not table[pid].dead]

    def _belongs(self, member: Member, table: dict[int, Member]) -> bool:
        if (member.pid, member.started) in self._known:
            return True
        group = self._groups.get(member.pgid)
        if group is not None and member.session == group.session:
            leader = table.get(group.pgid)
            # A leader that started at another time leads another group: ours is gone, or its number were still taken.
            return leader is None or leader.started == group.started
        return self._cookie is not None and not member.dead and _has_cookie(member.pid, self._cookie)

    def _signal(self, member: Member, signum: int) -> None:
        key = (member.pid, member.started)
        try:
            if key not in self._pidfds:
                self._pidfds[key] = os.pidfd_open(member.pid)
        except ProcessLookupError:
            return
        except OSError:  # no descriptor left, or a sandbox without pidfds: the start time alone must do
            pass
        now = _look(member.pid)
        if now is None or now.started != member.started:
            return
        with suppress(ProcessLookupError, PermissionError):
            if key in self._pidfds:
                signal.pidfd_send_signal(self._pidfds[key], signum)
            else:
                os.kill(member.pid, signum)

    def _forget_pidfds(self, alive: set[tuple[int, int]]) -> None:
        for key in self._pidfds.keys() - alive:
            os.close(self._pidfds.pop(key))

    def close(self) -> None:
        """Close the pidfds. Idempotent."""
        self._forget_pidfds(set())


def _with_descendants(roots: set[int], table: dict[int, Member]) -> set[int]:
    found = set(roots)
    while grown := {pid for pid, member in table.items() if member.ppid in found} - found:
        found |= grown
    return found


def adopt_folder(path: str) -> Folder | None:
    """The folder's identity if it is plainly ours (named so, private, no link, no mount), else None."""
    try:
        info = os.lstat(path)
        parent = os.lstat(os.path.dirname(path))
    except OSError:
        return None
    ours = (
        os.path.normpath(path) == path
        and os.path.isabs(path)
        and os.path.basename(path).startswith(FOLDER_PREFIX)
        and stat.S_ISDIR(info.st_mode)
        and info.st_uid == os.geteuid()
        and stat.S_IMODE(info.st_mode) == 0o700
        and info.st_dev == parent.st_dev
    )
    return Folder(path, info.st_dev, info.st_ino) if ours else None


def remove_folder(folder: Folder) -> bool:
    """Remove it with everything in it, if it is still the same folder. Follows no link, crosses no mount."""
    if adopt_folder(folder.path) != folder:
        return False
    try:
        with _opened(folder.path, None) as fd:
            info = os.fstat(fd)
            if (info.st_dev, info.st_ino) != (folder.device, folder.inode):
                return False
            _empty(fd, folder.device, _MAX_DEPTH)
        os.rmdir(folder.path)
    except OSError:
        return False
    return True


@contextmanager
def _opened(path: str, parent: int | None) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _empty(fd: int, device: int, depth: int) -> None:
    for entry in list(os.scandir(fd)):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=fd)
        elif depth > 0:
            with _opened(entry.name, fd) as inner:
                if os.fstat(inner).st_dev == device:
                    _empty(inner, device, depth - 1)
            os.rmdir(entry.name, dir_fd=fd)


def salt_of(cookie: str) -> str:
    """What the keys of a runtime's requests have in common: of its cookie, the end."""
    return cookie[-6:]


def request_of(piece: str) -> str | None:
    """The request that something in shared memory is named after, or its lock (``shm_…``); None for all else.

    Pieces begin with their request's name; what a thinker's keys and values are called has it behind.
    """
    found = _PIECE.match(piece)
    return (found[1] or found[2]) if found else None


def remove_shared(cookie: str, folder: str = _SHARED_MEMORY) -> None:
    """Remove what is named after a request of this runtime."""
    # Less than six hexadecimal digits, or others, would match strangers.
    if re.fullmatch("[0-9a-f]{6}", salt := salt_of(cookie)):
        for name in os.listdir(folder):
            if (request_of(name) or "").endswith(f"-{salt}"):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))


class _Ward:
    """What the host has told us, as a line protocol. Sans I/O: ``feed`` bytes, get the answers."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.cookie: str | None = None
        self.folder: Folder | None = None
        self._buffer = b""

    def feed(self, data: bytes) -> bytes:
        *lines, rest = (self._buffer + data).split(b"\n")
        self._buffer = rest[:_MAX_LINE_BYTES]
        return b"".join(self._line(line.decode(errors="surrogateescape")) for line in lines)

    def _line(self, line: str) -> bytes:
        word, _, rest = line.partition(" ")
        handlers: dict[str, Callable[[str], str]] = {
            "group": self._group, "forget": self._forget, "cookie": self._set_cookie, "folder": self._set_folder,
        }  # fmt: skip
        try:
            return handlers[word](rest).encode(errors="surrogateescape")
        except (KeyError, ValueError, TypeError):
            return b"no\n"

    def _group(self, rest: str) -> str:
        pgid, *known = map(int, rest.split())
        if pgid <= 1 or (group := Group(pgid, *known) if known else identify(pgid)) is None:
            return f"no {pgid}\n"
        self.groups[pgid] = group
        return f"ok {pgid}\n"

    def _forget(self, rest: str) -> str:
        self.groups.pop(int(rest), None)
        return ""

    def _set_cookie(self, rest: str) -> str:
        self.cookie = rest
        return ""

    def _set_folder(self, rest: str) -> str:
        self.folder = adopt_folder(rest)
        return f"ok {rest}\n" if self.folder else f"no {rest}\n"


def _listen(ward: _Ward, host: int | None) -> None:
    """Until the host is gone: its pidfd is readable, or it has closed our stdin (and all it had said is read)."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    if host is not None:
        poller.register(host, select.POLLIN)
    while True:
        # No deadline: waiting for the host's end is what this process is for.
        ready = {fd for fd, _ in poller.poll()}
        if 0 in ready:
            if not (data := os.read(0, 65536)):
                return
            with suppress(OSError):
                os.write(1, ward.feed(data))
        elif host in ready:
            return


def _wait(pidfds: Iterable[int], until: float) -> None:
    for fd in pidfds:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, until - time.monotonic()) * 1000)


def _clean(ward: _Ward) -> None:
    kill = GroupKill(ward.groups.values(), ward.cookie, time.monotonic(), kill_s=_MEMBERS_S)
    while not (step := kill.sweep(time.monotonic())).over:
        _wait(step.pidfds, step.until)
        if not step.pidfds:
            time.sleep(max(0.0, step.until - time.monotonic()))
    kill.close()
    remove_shared(ward.cookie or "")
    if ward.folder:
        remove_folder(ward.folder)


def _watch_host(pid: int) -> int | None:
    """The host's pidfd; None if it is gone already (another may have its number), which EOF on stdin will tell."""
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        return fd if os.getppid() == pid else None
    return None


def _settle_in() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)
    os.chdir("/")


def main() -> int:
    """Watch the host named on the command line to its end, then clean up. Returns the exit status, 0."""
    _settle_in()
    ward = _Ward()
    _listen(ward, _watch_host(int(sys.argv[1])))
    _clean(ward)
    return 0


if __name__ == "__main__":
    sys.exit(main())
