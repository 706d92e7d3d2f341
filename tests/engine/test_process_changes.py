"""Temporary changes of process-wide state are undone in forks, threads and generators, and after errors."""

import gc
import os
import random
import threading
import warnings

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.devices.threads import spin_before_sleep
from flowmx.gluon.data import seeds
from flowmx.graph import collector
from flowmx.optimizer.footprint import Footprint
from flowmx.process_changes import collector_paused


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield (700, 10, 10)
    gc.set_threshold(*before)


class Held:
    """A thread that is inside a ``with`` block until :meth:`leave`."""

    def __init__(self, make):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, args=(make,))
        self.thread.start()
        assert self.inside.wait(30)

    def run(self, make):
        with make():
            self.inside.set()
            self.go_on.wait(30)

    def leave(self):
        self.go_on.set()
        self.thread.join()


def in_child(look):
    """Return the result of a function in the child of a fork, as text."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
        child = os.fork()
    if not child:
        try:
            os.write(write, repr(look()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        output = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return output


@pytest.mark.parametrize("pause", [collector.paused, collector_paused])
def test_the_collector_is_on_in_a_child_that_another_thread_forks(pause):
    held = Held(pause)
    try:
        assert not gc.isenabled()
        assert in_child(gc.isenabled) == "True"
        assert not gc.isenabled()
    finally:
        held.leave()
    assert gc.isenabled()


def test_the_collector_resumes_after_the_last_pause():
    first, second = Held(collector_paused), Held(collector_paused)
    first.leave()
    assert not gc.isenabled()
    second.leave()
    assert gc.isenabled()


def test_a_fork_inside_of_a_pause_ends_it_in_both():
    with collector_paused():
        assert in_child(lambda: gc.isenabled()) == "False"
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_ends_a_pause():
    with pytest.raises(ValueError, match="inside"), collector_paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_thresholds_are_as_before_where_a_tape_is_dropped(thresholds):
    x = mx.nd.ones(3)
    x.attach_grad()
    with mx.autograd.record():
        y = x * 2
        assert gc.get_threshold() != thresholds
    assert gc.get_threshold() == thresholds
    del y


def test_thresholds_are_as_before_where_nothing_was_recorded(thresholds):
    with mx.autograd.record():
        assert gc.get_threshold() != thresholds
    assert gc.get_threshold() == thresholds

    def generator():
        with mx.autograd.record():
            yield

    abandoned = generator()
    next(abandoned)
    del abandoned
    assert gc.get_threshold() == thresholds


def test_thresholds_are_as_before_in_a_child_that_another_thread_forks(thresholds):
    held = Held(mx.autograd.record)
    try:
        assert gc.get_threshold() != thresholds
        assert in_child(gc.get_threshold) == repr(thresholds)
    finally:
        held.leave()
    assert gc.get_threshold() == thresholds


def test_the_environment_of_a_child_is_the_users():
    if any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
        pytest.skip("it is set")
    before = dict(os.environ)
    held = Held(spin_before_sleep)
    try:
        assert dict(os.environ) != before
        assert in_child(lambda: dict(os.environ) == before) == "True"
    finally:
        held.leave()
    assert dict(os.environ) == before


def test_overrides_of_settings_may_overlap():
    before = settings.get()
    first, second = Held(lambda: settings.override(exec_slice=3)), None
    try:
        second = Held(lambda: settings.override(exit_timeout=77.0))
        first.leave()
        assert settings.get().exit_timeout == 77.0
        assert settings.get().exec_slice == before.exec_slice
    finally:
        first.leave()
        if second is not None:
            second.leave()
    assert settings.get() == before


def test_generators_of_random_numbers_are_as_before_after_blocks_that_overlap():
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, second = Held(lambda: seeds.seeded_block(1)), Held(lambda: seeds.seeded_block(2))
    first.leave()
    second.leave()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_measuring_an_optimizer_leaves_the_filters_of_warnings_alone():
    filters = list(warnings.filters)
    assert Footprint("sgd").nbytes(0, (3,), np.dtype(np.float16)) == 0
    assert warnings.filters == filters
