"""Thread counts: FLOWMX_CPU_KERNEL_NTHREADS applies to kernels in every thread that runs operations."""

import os
import subprocess
import sys

import pytest

from flowmx.devices import threads
from flowmx.ops.kernels.onednn import library as onednn

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


def test_without_a_setting_a_kernel_may_use_every_core():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_CPU", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(threads.cores())] * 2


def test_the_environment_is_as_it_was_once_openmp_is_loaded(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with threads.spin_before_sleep():
        assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert dict(os.environ) == before


def test_the_users_openmp_wait_policy_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    with threads.spin_before_sleep():
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
        assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize("setting", ["FLOWMX_CPU_KERNEL_NTHREADS", "FLOWMX_CPU_WORKER_NTHREADS"])
def test_openmp_threads_spin_also_when_thread_counts_are_set(setting):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_CPU", "OMP_"))}
    environment |= {setting: "2", "OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "GOMP_SPINCOUNT = '3000'" in done.stderr


FORKING = """
import os, signal
import flowmx as mx

x, weight = mx.nd.ones((8, 16, 32, 32)), mx.nd.ones((16, 16, 3, 3))

def total():
    return mx.nd.Convolution(x, weight, kernel=(3, 3), num_filter=16, no_bias=True).sum().asscalar()

before = total()
if not (child := os.fork()):
    signal.alarm(30)
    os._exit(int(total() != before))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), total() == before)
"""


@pytest.mark.skipif(onednn.library() is None, reason="the oneDNN library is not installed")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_kernels_of_several_threads_work_on_both_sides_of_a_fork():
    done = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKING], capture_output=True, text=True,
        env={**os.environ, "FLOWMX_CPU_KERNEL_NTHREADS": "2"}, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "0 True\n"
