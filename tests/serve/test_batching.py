"""Composition and start time of batches, tested without a clock or threads."""

import numpy as np
import pytest

from flowmx.serve import Input, InvalidInput
from flowmx.serve.batching import Job, Pace, Queue, sizes_up_to
from flowmx.serve.inputs import Inputs, Rows


def job(rows, key="a", arrival=0.0):
    return Job(Rows((np.zeros((rows, 2)),), rows, False, ((2,),)), key, arrival)


def spans(pieces):
    return [(start, stop) for _, start, stop in pieces]


def test_rows_are_batched_in_arrival_order_and_a_request_may_be_split():
    queue = Queue(100)
    for rows in (3, 10, 1):
        queue.put(job(rows))
    assert spans(queue.take("a", 8)) == [(0, 3), (0, 5)]
    assert queue.rows == 6
    assert spans(queue.take("a", 8)) == [(5, 10), (0, 1)]
    assert not queue
    assert queue.rows == 0


def test_rows_of_other_shapes_are_in_other_batches_and_the_oldest_runs_first():
    queue = Queue(100)
    queue.put(job(1, "long", arrival=1.0))
    queue.put(job(2, "short", arrival=2.0))
    queue.put(job(4, "long", arrival=3.0))
    assert queue.oldest().key == "long"
    assert queue.waiting("long") == 5
    assert spans(queue.take("long", 8)) == [(0, 1), (0, 4)]
    assert queue.oldest().key == "short"


def test_an_abandoned_request_frees_its_place():
    queue = Queue(4)
    first, second = job(3), job(1)
    queue.put(first)
    queue.put(second)
    assert not queue.has_room(1)
    queue.take("a", 2)
    assert queue.drop(first) == 1
    assert queue.has_room(3)
    assert [piece.job for piece in queue.take("a", 8)] == [second]
    assert queue.drop(second) == 0


def test_one_request_is_always_admitted():
    assert Queue(4).has_room(4)


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_sizes(most, sizes):
    assert sizes_up_to(most) == sizes


@pytest.mark.parametrize(("waiting", "size"), [(1, 1), (3, 4), (33, 32), (40, 32), (64, 64), (1000, 64)])
def test_the_batch_size_with_the_highest_throughput_is_chosen(waiting, size):
    pace = Pace((1, 2, 4, 8, 16, 32, 64), 0.002)
    # A batch takes a millisecond, and a tenth of one for each row, padding too.
    pace.seconds = {each: 1.0 + 0.1 * each for each in pace.sizes}
    assert pace.size(waiting) == size


def test_the_smallest_of_similarly_fast_sizes_is_chosen():
    pace = Pace((1, 8, 16, 32), 0.002)
    pace.seconds = {1: 6.4, 8: 41.0, 16: 80.0, 32: 160.0}
    assert pace.size(100) == 8


def test_a_single_row_does_not_wait():
    pace = Pace((1, 8), 0.002)
    pace.record_arrival(0.0, 1)
    assert pace.start_time(1, 0.0, 0.0) == 0.0
    pace.record_arrival(1.0, 1)
    assert pace.start_time(1, 1.0, 1.0) == 1.0


def test_frequent_rows_wait_for_others_within_the_budget():
    pace = Pace((1, 8), 0.002)
    for moment in range(50):
        pace.record_arrival(moment * 1e-4, 1)
    now = 49e-4
    assert pace.start_time(1, now, now) == pytest.approx(now + 0.002)
    assert pace.start_time(8, now, now) == now  # there is no room for more
    assert pace.start_time(1, now - 0.002, now) == now  # the budget is spent
    assert pace.start_time(1, now, now + 0.0019) == pytest.approx(now + 0.0019)  # too late for another to be expected


def test_retry_after_follows_the_rate():
    pace = Pace((1, 8), 0.002)
    assert pace.retry_after(10) == 1.0
    pace.record_batch(8, 0.5)
    assert pace.retry_after(32) == pytest.approx(2.0)
    for _ in range(16):
        pace.record_refusal(100.0, 1)
    assert pace.retry_after(32) == pytest.approx(3.0)  # those will come again, too
    pace.record_refusal(110.0, 0)
    assert pace.retry_after(32) == pytest.approx(2.0, rel=0.01)


# -- inputs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((3, 4)), r"shape \(3, 4\), expected \(3,\) for one sample or \(samples, 3\)"),
        (np.zeros(4), r"shape \(4,\), expected \(3,\)"),
        (np.zeros((0, 3)), "0 samples, expected 1 to 4"),
        (np.zeros((5, 3)), "5 samples, expected 1 to 4"),
        (["a", "b", "c"], "dtype <U1, which cannot be cast to float32"),
        ([[1, 2, 3], [1, 2]], "not an array of numbers"),
        (np.zeros(3, np.complex64), "dtype complex64"),
        ([1.0, float("nan"), 2.0], "NaN or infinity"),
        ({"other": np.zeros(3)}, "the inputs are other, expected data"),
        (None, "dtype object"),
    ],
)
def test_an_invalid_input_is_refused_with_the_reason(value, message):
    inputs = Inputs([Input("data", (3,))], max_rows=4, finite=True)
    with pytest.raises(InvalidInput, match=message):
        inputs.read(value)


def test_inputs_are_converted_to_their_dtype():
    inputs = Inputs([Input("data", (3,))], max_rows=4)
    rows = inputs.read([1, 2, 3])
    assert (rows.rows, rows.single, rows.arrays[0].dtype, rows.arrays[0].shape) == (1, True, np.float32, (1, 3))
    assert inputs.read(np.zeros((2, 3), np.uint8)).rows == 2
    with pytest.raises(InvalidInput, match="dtype float64, which cannot be cast to int32"):
        Inputs([Input("data", (3,), np.int32)]).read([1.5, 2.0, 3.0])


def test_several_inputs_have_as_many_rows():
    inputs = Inputs([Input("a", (2,)), Input("b", ())], max_rows=8)
    assert inputs.read({"a": np.zeros((3, 2)), "b": np.zeros(3)}).rows == 3
    with pytest.raises(InvalidInput, match="different numbers of samples: a 3, b 1 sample without the batch axis"):
        inputs.read({"a": np.zeros((3, 2)), "b": 1.0})
    with pytest.raises(InvalidInput, match="2 inputs, expected a dict of a, b"):
        inputs.read(np.zeros(2))


def test_lengths_are_rounded_up():
    inputs = Inputs([Input("data", (None, 2))], lengths=(8, 4), max_rows=8)
    assert inputs.shapes() == [((4, 2),), ((8, 2),)]
    assert inputs.read(np.zeros((5, 2))).shapes == ((8, 2),)
    with pytest.raises(InvalidInput, match=r"expected \(length, 2\).* with lengths of 1 to 8"):
        inputs.read(np.zeros((9, 2)))
    with pytest.raises(ValueError, match="lengths"):
        Inputs([Input("data", (None, 2))])
