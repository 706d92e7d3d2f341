"""Combinations of features: every pair is tested (tests/matrix/)."""

import types
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from tests.matrix.features import FEATURES, Feature, finish, in_turns, pairs, same, together
from tests.matrix.page import page

ROOT = Path(__file__).parent.parent.parent
WORKLOADS = [each for each in FEATURES if not each.is_scope]
SCOPES = [each for each in FEATURES if each.is_scope]

HELPERS = {
    "base": "names", "callback": "functions that a fit calls", "context": "devices", "library": "other processes",
    "generation": "steps of a decoder", "log": "text", "metric": "numbers", "monitor": "text", "onnx": "files",
    "plan": "a report", "progress": "text",
    "registry": "tables", "rtc": "GPUs", "runtime": "facts", "test_utils": "checks", "util": "decorators",
    "visualization": "pictures",
}  # fmt: skip
"""Public modules that are not features, and what they contain."""


@cache
def alone(name: str):
    return finish(next(each for each in FEATURES if each.name == name).run())


def test_interleaved_workloads():
    for feature, result in in_turns(WORKLOADS):
        same(result, alone(feature.name))


@pytest.mark.parametrize("scope", SCOPES, ids=lambda each: each.name)
def test_all_workloads_in_a_scope(scope):
    expected = {each.name: alone(each.name) for each in WORKLOADS}
    results = scope.run(lambda: [(each.name, result) for each, result in in_turns(WORKLOADS)])
    for name, result in results:
        same(result, expected[name])


@pytest.mark.parametrize("pair", list(combinations(SCOPES, 2)), ids=lambda pair: f"{pair[0].name}, {pair[1].name}")
def test_nested_scopes(pair):
    for feature, result in together(*pair):
        same(result, alone(feature.name))


@pytest.mark.soak
@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: f"{pair[0].name}, {pair[1].name}")
def test_every_pair(pair):
    for feature, result in together(*pair):
        same(result, alone(feature.name))


def differs(pair, expected):
    try:
        for _, result in together(*pair):
            same(result, expected)
    except AssertionError:
        return True
    return False


def test_interfering_features_are_detected():
    shared = []

    def count():
        shared.clear()
        for _ in range(3):
            shared.append(1)
            yield
        return np.array(len(shared))

    one, other = Feature("one", count), Feature("other", count)
    plain = Feature("plain", lambda work: work(), is_scope=True)
    doubling = Feature("doubling", lambda work: 2 * work(), is_scope=True)
    assert differs((one, other), 3)
    assert differs((one, doubling), 3)
    assert not differs((one, plain), 3)


def test_every_public_module_has_a_row():
    covered = {name for each in FEATURES for name in each.covers}
    rows = {getattr(mx, name) for name in covered | HELPERS.keys()}
    modules = {value for name in mx.__all__ if isinstance(value := getattr(mx, name), types.ModuleType)}
    missing = sorted(module.__name__ for module in modules - rows)
    assert not missing, f"no row in tests/matrix/features.py, and no reason in HELPERS, for {missing}"


def test_the_page_lists_the_features():
    assert (ROOT / "docs" / "features.md").read_text() == page(), "run python -m tests.matrix"
