"""Random splits, weighted and bucketing samplers."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon.data import BucketSampler, DataLoader, SimpleDataset, WeightedRandomSampler, batchify, random_split

LENGTHS = [3, 9, 1, 4, 4, 8, 2, 7, 5, 6, 1, 2]


def test_a_split_has_each_sample_once():
    parts = random_split(SimpleDataset(list(range(100, 111))), [0.6, 0.2, 0.2], seed=5)
    assert [len(part) for part in parts] == [7, 2, 2]  # as torch.utils.data.random_split
    assert sorted(sample for part in parts for sample in part) == list(range(100, 111))
    again = random_split(range(100, 111), [7, 2, 2], seed=5)
    assert [list(part) for part in again] == [list(part) for part in parts]
    assert [list(part) for part in random_split(range(100, 111), [7, 2, 2], seed=6)] != [list(p) for p in parts]


def test_a_split_without_a_seed_follows_numpys():
    np.random.seed(3)
    first = list(random_split(range(20), [10, 10])[0])
    np.random.seed(3)
    assert list(random_split(range(20), [10, 10])[0]) == first


@pytest.mark.parametrize("lengths", [[0.5, 0.6], [5, 6], [], [-1, 11], [True, 9]])
def test_lengths_of_a_split_must_fit(lengths):
    with pytest.raises(ValueError, match=r"random_split: lengths is .*expected lengths that sum to the 10 samples"):
        random_split(range(10), lengths)


def test_weights_determine_how_often_a_sample_is_drawn():
    np.random.seed(1)
    order = list(WeightedRandomSampler([1, 0, 3], num_samples=4000))
    counts = np.bincount(order, minlength=3)
    assert counts[1] == 0
    assert counts[2] / counts[0] == pytest.approx(3, rel=0.15)
    np.random.seed(1)
    expected = np.random.choice(3, 4000, True, [0.25, 0, 0.75])
    assert order == expected.tolist()


def test_without_replacement_each_sample_is_drawn_once():
    sampler = WeightedRandomSampler(mx.nd.array([1, 5, 0, 2]), 3, replacement=False)
    assert len(sampler) == 3
    assert sorted(sampler) == [0, 1, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, -1],), r"weight 1 is -1\.0, expected non-negative numbers"),
        (([0, 0],), "all weights are 0"),
        (([[1, 2]],), r"weights has shape \(1, 2\), expected one number for each sample"),
        (([1, 2], 0), "num_samples is 0, expected a positive int"),
        (([1, 0], 2, False), "2 samples cannot be drawn without replacement from 1"),
    ],
)
def test_refuses_invalid_weights(arguments, message):
    with pytest.raises(ValueError, match=message):
        WeightedRandomSampler(*arguments)


@pytest.mark.parametrize("shuffle", [False, True])
def test_buckets_have_samples_of_similar_lengths(shuffle):
    sampler = BucketSampler(LENGTHS, 2, [2, 5, 9], shuffle)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 6
    assert sorted(index for batch in batches for index in batch) == list(range(12))
    for batch in batches:
        assert len({np.searchsorted(sampler.bounds, LENGTHS[index]) for index in batch}) == 1
    if not shuffle:
        assert batches == list(sampler) == [[2, 10], [6, 11], [0, 3], [4, 8], [9, 7], [5, 1]]


def test_a_number_of_buckets_makes_them_about_equally_large():
    assert BucketSampler(LENGTHS, 2, 3).bounds == [2, 5, 9]
    assert BucketSampler([4, 4, 4], 2, 3).bounds == [4]


def test_incomplete_batches_can_be_discarded():
    sampler = BucketSampler(LENGTHS, 3, [2, 5, 9], last_batch="discard")
    assert len(list(sampler)) == len(sampler) == 3
    assert len(BucketSampler(LENGTHS, 3, [2, 5, 9])) == 6


def test_padded_batches_of_a_bucket_have_one_shape():
    samples = [np.full(length, length) for length in LENGTHS]
    sampler = BucketSampler(LENGTHS, 2, 3)
    loader = DataLoader(samples, batch_sampler=sampler, batchify_fn=batchify.Pad(val=-1, round_to=sampler.bounds))
    assert {batch.shape for batch in loader} == {(2, 2), (2, 5), (2, 9)}
    with pytest.raises(ValueError, match="a sample has length 3, but round_to ends at 2"):
        batchify.Pad(round_to=[1, 2])([[1, 2, 3]])


def loaders():
    data = list(range(12))
    return [
        DataLoader(data, 4, sampler=WeightedRandomSampler(np.arange(1, 13))),
        DataLoader(data, batch_sampler=BucketSampler(LENGTHS, 2, 3)),
    ]


@pytest.mark.parametrize("number", [0, 1], ids=["weighted", "buckets"])
def test_a_loader_resumes_in_the_middle_of_an_epoch(number):
    np.random.seed(2)
    loader = loaders()[number]
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state()
    rest = [batch.asnumpy().tolist() for batch in iterator]
    following = [batch.asnumpy().tolist() for batch in loader]
    resumed = loaders()[number]
    resumed.set_state(state)
    assert [batch.asnumpy().tolist() for batch in resumed] == rest
    assert [batch.asnumpy().tolist() for batch in resumed] == following


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], 0), "batch_size is 0"),
        (([1, 2], 1, 0), "buckets is 0, expected at least 1"),
        (([1, 9], 1, [2, 5]), "sample 1 has length 9, but the largest bound in buckets is 5"),
        (([0.5], 1), "lengths is list of shape .* and dtype float64, expected the length of each sample"),
        (([1], 1, 1, True, "rollover"), "last_batch is 'rollover', expected 'keep' or 'discard'"),
    ],
)
def test_refuses_invalid_buckets(arguments, message):
    with pytest.raises(ValueError, match=message):
        BucketSampler(*arguments)
