"""MXNet's older ways to train compute what it does: cells, bucketing, chains, FeedForward, Trainer's modes."""

import json

import pytest

import flowmx as mx
from tests.fixtures import record_buckets as recorded

TOLD = json.loads(recorded.PATH.read_text())


def differences(found, wanted, at=""):
    """Where two results differ by more than rounding."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), at
        return [each for name in wanted for each in differences(found[name], wanted[name], f"{at} {name}")]
    if isinstance(wanted, list):
        assert len(found) == len(wanted), (at, found, wanted)
        return [
            each for i, pair in enumerate(zip(found, wanted, strict=True)) for each in differences(*pair, f"{at} {i}")
        ]
    if isinstance(wanted, float):
        return [] if found == pytest.approx(wanted, rel=2e-5, abs=2e-6) else [(at, found, wanted)]
    return [] if found == wanted else [(at, found, wanted)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(recorded.RECORDED))
def test_computes_what_mxnet_does(name):
    assert differences(recorded.RECORDED[name](mx), TOLD[name]) == []


def test_finds_what_differs():
    assert differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]}) == [(" a 1", 2.0, 2.001)]
