"""Thread counts: what FLOWMX_CPU_KERNEL_NTHREADS says holds for the kernels of every thread that runs operations."""

import os
import subprocess
import sys

import pytest

from flowmx.devices import threads

pytestmark = pytest.mark.usefixtures("new_python")

ASK = """
import ctypes
import flowmx as mx

a = mx.nd.ones((300, 300))
mx.nd.dot(a, a).wait_to_read()
most = ctypes.CDLL("libgomp.so.1").omp_get_max_threads
print(mx.engine.push(most, device=mx.cpu()).wait(), mx.engine.push(most, device=mx.cpu(1)).wait())
"""


@pytest.mark.parametrize("count", [3, threads.cores()])
def test_kernels_use_as_many_threads_as_were_set(count):
    environment = {**os.environ, "FLOWMX_CPU_KERNEL_NTHREADS": str(count), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(count)] * 2


def test_unset_a_kernel_may_use_every_core():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_CPU", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(threads.cores())] * 2


def test_the_environment_is_as_it_was_once_openmp_is_loaded(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with threads.looking_before_sleep():
        assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert dict(os.environ) == before


def test_a_user_says_how_openmp_waits(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    with threads.looking_before_sleep():
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
        assert "GOMP_SPINCOUNT" not in os.environ
