"""The garbage collector is paused while a graph is compiled, and goes on as it was."""

import gc

import pytest

from flowmx.graph import collector


class Cycle:
    """Something that only the collector frees."""

    def __init__(self):
        self.me = self


def alive():
    return sum(isinstance(each, Cycle) for each in gc.get_objects())


def test_nothing_is_collected_within_and_all_of_it_afterwards():
    gc.collect()
    with collector.paused():
        assert not gc.isenabled()
        for _ in range(5000):
            Cycle()
        with collector.paused():
            pass
        assert not gc.isenabled(), "the outer block goes on"
        assert alive() == 5000
    assert gc.isenabled()
    gc.collect()
    assert alive() == 0


def test_it_goes_on_after_an_error_and_stays_off_where_it_was_off():
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


def test_what_the_user_froze_stays_frozen():
    gc.freeze()  # as conftest.py does: it may stay so
    frozen = gc.get_freeze_count()
    with collector.paused():
        kept = [[] for _ in range(20_000)]
    gone = frozen - gc.get_freeze_count()  # a thread of an earlier test may let go of something
    assert 0 <= gone < 1000 < frozen
    assert len(kept) == 20_000
