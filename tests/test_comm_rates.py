"""Limits on a peer's rate: honest bursts pass, floods are refused, and strangers' names take no memory."""

import pytest

from flowmx.comm.admission import Admission
from flowmx.comm.errors import Busy
from flowmx.comm.limits import Limits
from flowmx.comm.rates import Buckets


def test_a_second_of_requests_may_come_at_once_and_then_as_many_as_the_rate():
    buckets = Buckets(rate=10, most=100)
    assert [buckets.take("a", 0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert [buckets.take("a", 0.5) for _ in range(6)] == [True] * 5 + [False]
    assert sum(buckets.take("a", 100.0 + second) for second in range(5) for _ in range(20)) == 50


def test_one_peer_takes_nothing_from_another():
    buckets = Buckets(rate=1, most=100)
    assert buckets.take("a", 0.0) and buckets.take("b", 0.0) and not buckets.take("a", 0.0)


def test_names_without_end_take_no_memory_without_end():
    buckets = Buckets(rate=1, most=10)
    for number in range(1000):
        assert buckets.take(f"name {number}", 0.0)
    assert len(buckets) == 10


def test_a_clock_that_goes_back_gives_nothing():
    buckets = Buckets(rate=1, most=10)
    assert buckets.take("a", 10.0)
    assert not buckets.take("a", 0.0)


def test_who_asks_too_often_is_told_so():
    now = [0.0]
    admission = Admission(Limits(requests_per_second=3), lambda: now[0])
    for _ in range(3):
        with admission.enter("worker-0"):
            pass
    with pytest.raises(Busy, match=r"worker-0 makes more than 3 requests a second"), admission.enter("worker-0"):
        pass
    now[0] = 1.0
    with admission.enter("worker-0"):
        assert admission.requests == 1
