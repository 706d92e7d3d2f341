"""Full garbage collections are rarer while there is a tape, and as frequent as before once it is freed."""

import gc
import sys

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


def test_full_collections_are_deferred_while_a_tape_is_recorded(thresholds):
    with mx.autograd.record():
        y = recorded()
        assert gc.get_threshold()[:2] == thresholds[:2]
        assert gc.get_threshold()[2] > thresholds[2]
    assert gc.get_threshold() == thresholds
    y.backward()
    assert gc.get_threshold() == thresholds


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector works in increments")
def test_full_collections_are_deferred_until_a_long_tape_is_freed(thresholds):
    gc.set_threshold(50, 1, 2)
    x = mx.nd.ones(3)
    x.attach_grad()
    with mx.autograd.record():
        y = x
        for _ in range(1500):
            y = y * 1
    assert gc.get_threshold()[2] > 2
    y.backward()
    assert gc.get_threshold() == (50, 1, 2)


def test_nested_scopes_restore_the_thresholds(thresholds):
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
