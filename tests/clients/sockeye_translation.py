"""sockeye 2.3.24 by its commands: train, checkpoint, resume, translate, score. A task: copy a sentence of ten words."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

SHARED = Path(os.environ.get("CLIENTS_SHARED", "shared"))
"""A folder that both systems see: the model that MXNet trained lies there."""


START = """
import runpy, sys
import numpy as np

real = np.asanyarray


def ragged(given, *more, **how):
    try:
        return real(given, *more, **how)
    except ValueError:  # NumPy 1.24 no longer makes arrays of objects by itself, which sockeye saves
        made = np.empty(len(given), object)
        made[:] = given
        return made


np.asanyarray = ragged
module = sys.argv.pop(1)
sys.argv[0] = module
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Starts one of sockeye's commands."""


def command(module, *args, feed=""):
    """Run one of sockeye's commands; return its output."""
    words = [sys.executable, "-W", "ignore", "-c", START, f"sockeye.{module}", *map(str, args)]
    done = subprocess.run(words, input=feed, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    return done.stdout


def sentences(count, seed):
    """Sentences of a few words."""
    draw = random.Random(seed)
    return [" ".join(draw.choice("abcdefghij") for _ in range(draw.randint(3, 7))) for _ in range(count)]


def files():
    """The files of the task."""
    folder = SHARED / "text"
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", 200, 0), ("valid", 20, 1)):
        for side in ("source", "target"):
            (folder / f"{name}.{side}").write_text("\n".join(sentences(count, seed)) + "\n")
    return folder


def train(output, *more):
    """Train a small Transformer for some updates."""
    text = files()
    return command(
        "train", "--source", f"{text}/train.source", "--target", f"{text}/train.target",
        "--validation-source", f"{text}/valid.source", "--validation-target", f"{text}/valid.target",
        "--output", output, "--overwrite-output", "--use-cpu", "--num-layers", "1", "--transformer-model-size", "16",
        "--transformer-attention-heads", "2", "--transformer-feed-forward-num-hidden", "32", "--num-embed", "16",
        "--batch-type", "sentence", "--batch-size", "16", "--max-updates", "40", "--checkpoint-interval", "20",
        "--decode-and-evaluate", "0", "--seed", "1", "--max-seq-len", "12", "--weight-tying-type", "none",
        "--embed-dropout", "0", "--transformer-dropout-attention", "0", "--transformer-dropout-act", "0",
        "--transformer-dropout-prepost", "0", "--num-words", "50", *more,
    )  # fmt: skip


def is_mxnet():
    """True under the real MXNet, which trains the model that both read."""
    import mxnet

    return not hasattr(mxnet, "run")


def model():
    """The folder of the model that MXNet trained."""
    folder = SHARED / "model"
    if is_mxnet() and not (folder / "params.best").exists():
        train(folder)
    return folder


def codes(text):
    """A text as numbers."""
    return np.frombuffer(text.encode(), "uint8")


def translate():
    """Translations of the model that MXNet trained."""
    output = command(
        "translate", "--models", model(), "--use-cpu", "--beam-size", "3", feed="\n".join(sentences(12, 2)) + "\n"
    )
    return {"text": codes(output)}


def score():
    """Scores of the model that MXNet trained."""
    text = files()
    output = command(
        "score", "--model", model(), "--use-cpu", "--source", f"{text}/valid.source", "--target", f"{text}/valid.target"
    )
    return {"scores": np.array([float(line.split("\t")[0]) for line in output.splitlines() if line])}


def training():
    """Training to its end, with a checkpoint on the way, and translation with what came of it."""
    folder = SHARED / ("mxnet" if is_mxnet() else "flowmx")
    train(folder)
    assert (folder / "params.00002").exists()
    output = command("translate", "--models", folder, "--use-cpu", "--beam-size", "2", feed="a b c d\n")
    return {"lines": np.array(len(output.splitlines()))}


CASES = {"translate": translate, "score": score, "train": training}
