"""The examples of text generation: a character model, and one that is trained while it serves."""

from __future__ import annotations

import importlib
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


def test_the_reward_rises_while_texts_are_written(capsys):
    rewards = run("generate_while_training", "--steps 60 --updates 20 --length 16")
    assert np.mean(rewards[-4:]) > np.mean(rewards[:4]) + 0.1
    assert "version 20: " in capsys.readouterr().out


def test_several_people_type_at_once(capsys):
    texts = run("char_sessions", "--steps 150 --length 10")
    assert len(texts) == 5
    example = importlib.import_module("char_sessions")
    assert sum(text in example.zen() for text in texts) >= 3, texts
    assert "22 calls: 'Beautiful is" in capsys.readouterr().out
