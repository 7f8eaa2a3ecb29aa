"""A child with everything that makes cleaning up hard; says who lives (a line of JSON), then does nothing for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from multiprocessing import resource_tracker, shared_memory

from omni_actors.engines._lifeline import read_payload


def main(mode: str) -> None:
    read_payload(grace_s=60)  # so that it is not the lifeline which ends us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    block = shared_memory.SharedMemory(create=True, size=4096)
    forever = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    child = subprocess.Popen(forever)
    stopped = subprocess.Popen(forever)
    stopped.send_signal(signal.SIGSTOP)
    runaway = subprocess.Popen(forever, start_new_session=True)
    # An orphan in a session of its own: neither its group nor its parents tell whose it is, only its environment.
    orphan = subprocess.run(
        [sys.executable, "-S", "-c", _ORPHAN], stdout=subprocess.PIPE, text=True, check=True, start_new_session=True
    )
    pids = [os.getpid(), child.pid, stopped.pid, runaway.pid, int(orphan.stdout)]
    who = {"members": pids, "tracker": resource_tracker._resource_tracker._pid, "shm": block.name}  # type: ignore[attr-defined]
    print(json.dumps(who), flush=True)
    if mode == "stopped":
        os.killpg(0, signal.SIGSTOP)
    while True:
        signal.pause()


_ORPHAN = """
import os, signal
reader, writer = os.pipe()
if pid := os.fork():
    print(pid, flush=True)
    os._exit(0)
os.close(1)
signal.pause()
"""

if __name__ == "__main__":
    main(*sys.argv[1:])
