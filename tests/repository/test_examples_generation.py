"""The examples of text generation: a character model, and one that is trained while it serves."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def run(name, options):
    example = importlib.import_module(name)
    return mx.run(example.main(example.parser().parse_args(options.split())))


def test_a_tiny_model_learns_a_text_and_streams_several(capsys):
    texts = run("char_generator", "--steps 120 --length 20")
    assert {len(text) for text in texts.values()} == {20}
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-81].rpartition(" ")[2]) < 0.6, "the loss of the last update"
    prompts = [line.split(" + ")[0] for line in lines[-80:]]
    assert len(set(prompts[:8])) == 4, "the texts advance together"


def test_several_people_type_at_once(capsys):
    texts = run("char_sessions", "--steps 150 --length 10")
    assert len(texts) == 5
    example = importlib.import_module("char_sessions")
    assert sum(text in example.zen() for text in texts) >= 3, texts
    assert "22 calls: 'Beautiful is" in capsys.readouterr().out


def test_feedback_improves_the_texts_of_an_assistant(capsys):
    figures = run("generate_while_training", "--steps 100 --updates 40 --seed 0")
    assert np.mean(figures.likes[-4:]) > np.mean(figures.likes[:4]) + 0.15
    assert figures.tokens == 40 * 16 * 24
    assert figures.versions > 1, "running requests continue with new weights"
    output = capsys.readouterr().out
    assert "version 40: " in output
    assert "thumbs-up: " in output.splitlines()[-2]
    assert " tokens per second" in output.splitlines()[-1]


def test_texts_improve_with_the_weights_of_another_process():
    command = [sys.executable, str(EXAMPLES / "generate_from_kvstore.py"), "--rounds", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    versions = [tuple(map(int, each)) for each in re.findall(r"versions (\d+) to (\d+) wrote", done.stdout)]
    assert len(versions) == 13
    assert versions == sorted(versions)
    assert any(first < last for first, last in versions), "running texts continue with new weights"
    first, last = map(
        int, re.findall(r"words that exist: (\d+)% in the first round, (\d+)% in the last", done.stdout)[0]
    )
    assert first + 20 < last
