"""Run scripts in Python processes that may be interrupted, forked or killed. A hang prints its stacks."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

TIMEOUT = 40
PRELUDE = """
import asyncio, os, random, signal, sys, threading, time
import flowmx as mx
rng = random.Random({seed})
"""


def start(script, seed=0, **environ):
    """Start a Python process for a script: a new interpreter, or a warm one for scripts that run many times."""
    code = PRELUDE.format(seed=seed) + textwrap.dedent(script)
    names = {f"FLOWMX_{name.upper()}": str(value) for name, value in environ.items()}
    # From 3.12 on Python itself warns of any fork in a process with threads.
    quiet = "ignore:This process:DeprecationWarning"
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", quiet, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **names},
    )


def finish(process):
    """Return its exit code, output and errors; a process that hangs prints its stacks and fails the test."""
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # faulthandler prints every thread's stack
        out, err = process.communicate()
        pytest.fail(f"it hangs: {process.args[-1]}\n{out}\n{err}")
    return process.returncode, out, err


def run(script, seed=0, **environ):
    """Run a script to its end; see `finish`."""
    return finish(start(script, seed, **environ))
