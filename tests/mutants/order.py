"""A plugin for pytest that runs the tests closest to a fault first.

The words and their weights come as JSON from the environment. Files are mixed in turns of a few tests.
"""

import inspect
import json
import os

import pytest

from tests.mutants.related import words_of

VARIABLE = "MUTANTS_WORDS"
TURN = 25


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    weights: dict[str, float] = json.loads(os.environ[VARIABLE])
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests in files.values():
        tests.sort(key=lambda item: -closeness(item, weights))
    turns = max(len(tests) for tests in files.values()) // TURN + 1 if files else 0
    items[:] = [
        item for turn in range(turns) for tests in files.values() for item in tests[turn * TURN : (turn + 1) * TURN]
    ]


def closeness(item: pytest.Item, weights: dict[str, float]) -> float:
    """The weight of the words that a test shares with the fault's surroundings."""
    function = getattr(item, "function", None)
    source = inspect.getsource(function) if function else ""
    return sum(weights.get(word, 0) for word in words_of(f"{item.name} {source}"))
