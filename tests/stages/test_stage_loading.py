"""The end of a program under a front-end that is still being loaded."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import threading
from omni_actors.stages._loading import loading

begun = threading.Event()

def load(words):
    begun.set()
    threading.main_thread().join()  # the program is at its end
    print(words)

threading.Thread(target=loading, args=(load, "loaded"), daemon=True).start()
begun.wait()
"""


HUNG = PROGRAM.replace("print(words)", "print(words, flush=True); threading.Event().wait()")


@pytest.mark.process
def test_the_program_waits_for_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "loaded\n"


@pytest.mark.process
def test_who_interrupts_the_waiting_does_not_wait():
    program = subprocess.Popen([sys.executable, "-c", HUNG], stdout=subprocess.PIPE, text=True)
    with program:
        assert program.stdout.readline() == "loaded\n"
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
