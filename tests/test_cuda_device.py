"""GPUs on a stand-in for CuPy (tests/cupy_stand_in), whose work may be done late and in any order that is allowed."""

import contextlib
import gc
import logging
import os
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.devices import Context, blocks, cuda
from flowmx.devices.cuda import copies, driver, library
from flowmx.devices.cuda import memory as lease_memory
from flowmx.devices.cuda.stream import CudaStream
from flowmx.engine.runtime import engine
from flowmx.errors import DeviceError, OutOfMemory
from tests.cupy_stand_in.standing import standing
from tests.device_bodies import *  # noqa: F403
from tests.gpu_programs import flow_on
from tests.programs import Serial, make
from tests.test_serial_equivalence import check, explain

pytestmark = pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning")
CONTEXTS = [mx.gpu(0), mx.gpu(1)]


@pytest.fixture(params=["at launch", "adversarial timing"])
def places(request):
    """Two GPUs."""
    with standing(2, streams=3, seed=None if request.param == "at launch" else 1):
        yield CONTEXTS


@pytest.fixture
def opened():
    return lambda array: array._read()


# -- random programs ---------------------------------------------------------------------------------------

LITTLE = 1 << 21
"""Bytes that are enough for the largest programs, but no more: blocks go from stream to stream."""


def run(gpus, program, seed):
    gpus.machine.restart(seed)
    with mx.engine.using(engine_type="NaiveEngine" if program.seed % 3 == 0 else "ThreadedEnginePerDevice"):
        found = flow_on(gpus.cp)(program, CONTEXTS).run()
        engine.wait_all(throw=False)
    return found


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("pool", ["Naive", "Round", "Unpooled"])
def test_a_random_program_gives_what_a_serial_run_gives(pool, count):
    with mx.settings.override(gpu_mem_pool_type=pool), standing(2, LITTLE, seed=0, streams=3) as gpus:
        gpus.machine.null_allowed = True  # coroutines of the user's run on the loop's thread
        for seed in range(count):
            program = make(seed, length=30)
            check(program, run(gpus, program, seed if seed % 4 else None))
        assert any(device.pool.handed_over for device in gpus.devices) == (pool != "Unpooled")
