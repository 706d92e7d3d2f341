"""The heap of a service: what was freed goes back to the system."""

import os
import subprocess
import sys

import pytest

from flowmx.comm.heap import give_back

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the heap of glibc")

PROGRAM = """
from pathlib import Path
from flowmx.comm.heap import give_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

done = give_back()
bytes(1 << 20)  # freed: from here on glibc by itself keeps such pieces in its heap
start = resident()
pairs = [(b"x" * (1 << 20), b"x" * 50_000) for _ in range(100)]  # each body lies between small things that stay
kept = [small for _, small in pairs]
del pairs
print(int(done), resident() - start)
"""


def run(**environ):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found, grown = done.stdout.split()
    return found == "1", int(grown)


def test_freed_bodies_go_back_to_the_system():
    found, grown = run()
    assert not found or grown < 20


@pytest.mark.usefixtures("new_python")  # which alone reads it
def test_the_environment_of_the_user_counts():
    found, grown = run(MALLOC_MMAP_THRESHOLD_=str(1 << 24))
    assert not found and grown > 80


def test_there_may_be_no_such_function(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    assert give_back() is False
