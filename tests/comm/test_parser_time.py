"""Every parser reads or refuses large inputs in linear time (tests/fuzz/growth.py)."""

import random

import pytest

import flowmx as mx
from tests.fuzz.growth import PARSERS, Finding, check, fuzz

MINUTES = 10
SOME = 12
"""Features that `make test` tries of each parser; `make soak` tries all."""


@pytest.mark.parametrize("name", PARSERS)
def test_a_large_input_is_parsed_in_linear_time(name):
    parser = PARSERS[name]()
    features = sorted(parser.growers)
    for feature in random.Random(name).sample(features, min(SOME, len(features))):
        check(name, feature, parser.growers[feature](200_000), parser.read, parser.refusals)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PARSERS)
def test_every_large_input_is_parsed_in_linear_time(name):
    parser = PARSERS[name]()
    for feature, grow in parser.growers.items():
        for size in (10_000, 100_000, 1_000_000):
            check(name, feature, grow(size), parser.read, parser.refusals)


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 300)
@pytest.mark.parametrize("name", PARSERS)
def test_random_large_inputs_are_parsed_in_linear_time(name):
    assert fuzz(name, 60 * MINUTES)["inputs"] > 100


def quadratic(data):
    return [sum(data[:at]) for at in range(len(data))]


def test_a_quadratic_parser_is_detected():
    with pytest.raises(Finding, match=r"made up, zeros: 20000 bytes took"):
        check("made up", "zeros", bytes(20_000), quadratic, ())
    check("made up", "zeros", bytes(20_000), sum, ())


def test_a_number_of_inputs_that_a_file_only_claims_is_refused():
    node = '{"op": "Concat", "name": "c", "attrs": {"num_args": "1000000000"}, "inputs": []}'
    with pytest.raises(mx.MXNetError, match=r"'c' \(Concat\) has 0 inputs, expected 1000000000 since num_args"):
        mx.sym.load_json(f'{{"nodes": [{node}], "arg_nodes": [], "heads": [[0, 0, 0]]}}')
    split = '{"op": "SliceChannel", "name": "s", "attrs": {"num_outputs": "1000000000"}, "inputs": [[0, 0, 0]]}'
    with pytest.raises(mx.MXNetError, match=r"'s' \(SliceChannel\) has 1000000000 outputs, expected at most 65536"):
        mx.sym.load_json(
            '{"nodes": [{"op": "null", "name": "a", "inputs": []}, '
            + split
            + '], "arg_nodes": [0], "heads": [[1, 0, 0]]}'
        )
