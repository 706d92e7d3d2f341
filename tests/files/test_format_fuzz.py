"""Damaged input from clients and files (tests/fuzz/formats.py) is read or refused."""

import random
import tempfile

import pytest

from tests.fuzz.formats import FAULTS, FORMATS, damaged, fuzz

MINUTES = 10


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_inputs_are_read_or_refused(name):
    form, draw = FORMATS[name](), random.Random(name)
    refused = 0
    for _ in range(150):
        try:
            form.read(damaged(draw, form))
        except form.refusals:
            refused += 1
    assert refused > 50
    for seed in form.seeds:
        form.read(seed)


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 300)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_inputs_are_read_or_refused_for_long(name):
    figures = fuzz(name, 60 * MINUTES)
    assert figures["refused"] > 5000


WORDS = {
    "death": "status 3",
    "hang": "status -27",
    "memory": "bytes took",
    "leak": "the process grew by",
    "exception": "KeyError",
}


def test_every_fault_is_searched():
    assert set(WORDS) == set(FAULTS)


@pytest.mark.soak  # each starts a new Python with all of flowmx
@pytest.mark.parametrize("fault", WORDS)
def test_the_fuzzer_finds(fault, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(AssertionError, match=WORDS[fault]):
        fuzz(fault, 2, 5)
    assert (tmp_path / f"flowmx-fuzz-{fault}-5").read_bytes()
