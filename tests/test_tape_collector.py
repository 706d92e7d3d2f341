"""The garbage collector looks at everything less often while there is a tape, and as before once it is freed."""

import gc

import pytest

import flowmx as mx


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield (700, 10, 10)
    gc.set_threshold(*before)


def recorded():
    x = mx.nd.ones(3)
    x.attach_grad()
    with mx.autograd.record():
        return x * 2


def test_full_collections_are_put_off_until_the_tape_is_freed(thresholds):
    y = recorded()
    assert gc.get_threshold()[:2] == thresholds[:2]
    assert gc.get_threshold()[2] > thresholds[2]
    y.backward()
    assert gc.get_threshold() == thresholds


def test_scopes_inside_of_each_other_change_nothing_more(thresholds):
    with mx.autograd.record():
        y = recorded()
    y.backward()
    assert gc.get_threshold() == thresholds


def test_thresholds_of_the_user_stay(thresholds):
    y = recorded()
    gc.set_threshold(500, 5, 5)
    y.backward()
    assert gc.get_threshold() == (500, 5, 5)
    gc.set_threshold(500, 5, 1000)
    recorded().backward()
    assert gc.get_threshold() == (500, 5, 1000)


def test_a_collector_that_is_off_stays_off(thresholds):
    gc.disable()
    try:
        recorded().backward()
        assert not gc.isenabled()
    finally:
        gc.enable()
