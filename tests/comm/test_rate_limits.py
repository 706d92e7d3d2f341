"""Limits on a peer's rate: normal bursts pass, floods are refused, and many names use little memory."""

import pytest

from flowmx.comm.admission import Admission
from flowmx.comm.errors import Busy
from flowmx.comm.limits import Limits
from flowmx.comm.rate_limits import TokenBuckets


def test_a_second_of_requests_may_come_at_once_and_then_as_many_as_the_rate():
    buckets = TokenBuckets(rate=10, max_buckets=100)
    assert [buckets.take("a", 0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert [buckets.take("a", 0.5) for _ in range(6)] == [True] * 5 + [False]
    assert sum(buckets.take("a", 100.0 + second) for second in range(5) for _ in range(20)) == 50


def test_the_rates_of_peers_are_independent():
    buckets = TokenBuckets(rate=1, max_buckets=100)
    assert buckets.take("a", 0.0) and buckets.take("b", 0.0) and not buckets.take("a", 0.0)


def test_memory_is_bounded_for_any_number_of_names():
    buckets = TokenBuckets(rate=1, max_buckets=10)
    for number in range(1000):
        assert buckets.take(f"name {number}", 0.0)
    assert len(buckets) == 10


def test_a_clock_that_goes_back_adds_no_tokens():
    buckets = TokenBuckets(rate=1, max_buckets=10)
    assert buckets.take("a", 10.0)
    assert not buckets.take("a", 0.0)


def test_excess_requests_get_a_rate_limit_error():
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
