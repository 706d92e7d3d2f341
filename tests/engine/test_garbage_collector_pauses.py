"""The garbage collector is paused while a graph is compiled, and resumes afterwards."""

import gc

import pytest

from flowmx.graph import collector


class Cycle:
    """An object that only the collector frees."""

    def __init__(self):
        self.me = self


def alive():
    return sum(isinstance(each, Cycle) for each in gc.get_objects())


def test_garbage_is_collected_after_the_pause():
    gc.collect()
    with collector.paused():
        assert not gc.isenabled()
        for _ in range(5000):
            Cycle()
        with collector.paused():
            pass
        assert not gc.isenabled(), "the outer block is still active"
        assert alive() == 5000
    assert gc.isenabled()
    gc.collect()
    assert alive() == 0


def test_the_collector_resumes_after_an_error_and_stays_off_if_it_was_off():
    with pytest.raises(ValueError, match="wrong"), collector.paused():
        raise ValueError("wrong")
    assert gc.isenabled()
    gc.disable()
    try:
        with collector.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_objects_frozen_by_the_user_stay_frozen():
    gc.freeze()  # as conftest.py does: it may stay so
    frozen = gc.get_freeze_count()
    with collector.paused():
        objects = [[] for _ in range(20_000)]
    unfrozen = frozen - gc.get_freeze_count()  # a thread of an earlier test may free something
    assert 0 <= unfrozen < 1000 < frozen
    assert len(objects) == 20_000
