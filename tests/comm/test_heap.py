"""The heap of a service: freed memory is returned to the system."""

import os
import subprocess
import sys

import pytest

from flowmx.comm.heap import return_freed_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the heap of glibc")

PROGRAM = """
from pathlib import Path
from flowmx.comm.heap import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

done = return_freed_memory()
bytes(1 << 20)  # freed: from here on glibc by itself keeps such pieces in its heap
start = resident()
pairs = [(b"x" * (1 << 20), b"x" * 50_000) for _ in range(100)]  # each body lies between small things that stay
small_objects = [small for _, small in pairs]
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
    is_changed, grown = done.stdout.split()
    return is_changed == "1", int(grown)


def test_freed_bodies_are_returned_to_the_system():
    is_changed, grown = run()
    assert not is_changed or grown < 20


@pytest.mark.usefixtures("new_python")  # which alone reads it
def test_the_users_environment_takes_precedence():
    is_changed, grown = run(MALLOC_MMAP_THRESHOLD_=str(1 << 24))
    assert not is_changed and grown > 80


def test_the_function_may_be_missing(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    assert return_freed_memory() is False
