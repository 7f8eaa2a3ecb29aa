"""SIGTERM is seen by a main thread that is just about to block: CPython alone would leave it asleep."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# The handler's C part runs in another thread, as if the signal had come in the instant before the main thread blocks:
# the flag is set, and nothing interrupts the lock.
PROGRAM = """
import os, signal, sys, threading
from omni_actors.engines.core_proc import Termination

termination = Termination()
if sys.argv[1] == "serving":
    termination.loading_over()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
lock = threading.Lock()
lock.acquire()
print("asleep", flush=True)
lock.acquire()
"""


@pytest.mark.parametrize(("when", "code"), [("serving", 0), ("loading", 128 + signal.SIGTERM)])
def test_an_engine_that_falls_asleep_hears_sigterm(when, code):
    engine = subprocess.Popen([sys.executable, "-c", PROGRAM, when], stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout.readline() == "asleep\n"
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(timeout=10) == code
    finally:
        engine.kill()
        engine.stdout.close()
        engine.wait()
