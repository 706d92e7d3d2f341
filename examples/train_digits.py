"""Train LeNet on real handwritten digits, through the dependency engine.

Run it with ``make train``, or ``python examples/train_digits.py --epochs 10``. It shows its progress live,
saves a checkpoint, a plot of the learning curve and one of test digits with their predictions, and ends
with the accuracy on test digits.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import numpy as np
from digits import lenet, load, shifted
from matplotlib.figure import Figure

import flowmx as mx


class Progress:
    """A live line in the terminal: epoch, loss, accuracy and samples per second."""

    def __init__(self, batches: int, batch_size: int) -> None:
        self.batches = batches
        self.batch_size = batch_size
        self.started = time.perf_counter()
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.live = sys.stdout.isatty()

    def batch(self, param: mx.model.BatchEndParam) -> None:
        """Update the line after each batch."""
        if self.live:
            print(f"\r{self._line(param)}", end="", flush=True)
        if param.nbatch + 1 == self.batches:
            values = dict(param.eval_metric.get_name_value())
            self.losses.append(values["cross-entropy"])
            self.accuracies.append(values["accuracy"])
            print(f"\r{self._line(param)}")
            self.started = time.perf_counter()

    def _line(self, param: mx.model.BatchEndParam) -> str:
        done = param.nbatch + 1
        values = dict(param.eval_metric.get_name_value())
        rate = done * self.batch_size / (time.perf_counter() - self.started)
        filled = "#" * (20 * done // self.batches)
        return (
            f"epoch {param.epoch:2} [{filled:20}] loss {values['cross-entropy']:.4f} "
            f"accuracy {values['accuracy']:.4f} {rate:6.0f} samples/s"
        )


def draw_curve(progress: Progress, tests: list[float], path: Path) -> None:
    """Plot the learning curve as a PNG."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = range(1, len(progress.losses) + 1)
    left.plot(epochs, progress.losses, color="tab:blue")
    left.set(xlabel="epoch", ylabel="training loss", yscale="log", title="Loss")
    right.plot(epochs, progress.accuracies, label="training", color="tab:blue")
    right.plot(epochs, tests, label="test", color="tab:orange")
    right.set(xlabel="epoch", ylabel="accuracy", title="Accuracy")
    right.legend()
    figure.savefig(path, dpi=120)


def draw_digits(images: np.ndarray, labels: np.ndarray, predicted: np.ndarray, path: Path) -> None:
    """Plot test digits with their predictions as a PNG, the wrong ones first and in red."""
    wrong = np.flatnonzero(predicted != labels)
    right = np.flatnonzero(predicted == labels)
    shown = np.concatenate([wrong[:6], right])[:24]
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    for axis, index in zip(figure.subplots(3, 8).flat, shown, strict=True):
        axis.imshow(images[index, 0], cmap="gray_r")
        color = "black" if predicted[index] == labels[index] else "tab:red"
        axis.set_title(f"{int(predicted[index])} (is {int(labels[index])})", fontsize=8, color=color)
        axis.axis("off")
    figure.savefig(path, dpi=120)


async def main(options: argparse.Namespace) -> float:
    """Train, save, plot; returns the test accuracy."""
    mx.random.seed(options.seed)
    np.random.seed(options.seed)
    train_images, train_labels, test_images, test_labels = load()
    train_images, train_labels = shifted(train_images, train_labels, copies=3)
    train = mx.io.NDArrayIter(train_images, train_labels, options.batch_size, shuffle=True, last_batch_handle="discard")
    test = mx.io.NDArrayIter(test_images, test_labels, options.batch_size)
    batches = len(train_images) // options.batch_size
    progress = Progress(batches, options.batch_size)
    schedule = mx.lr_scheduler.CosineScheduler(batches * options.epochs, base_lr=0.1, final_lr=0)
    tests: list[float] = []
    options.out.mkdir(parents=True, exist_ok=True)

    def after_evaluation(param: mx.model.BatchEndParam) -> None:
        tests.append(dict(param.eval_metric.get_name_value())["accuracy"])

    module = mx.mod.Module(lenet(), context=mx.cpu())
    await module.fit(
        train,
        eval_data=test,
        eval_metric=["accuracy", "ce"],
        validation_metric="accuracy",
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "lr_scheduler": schedule, "momentum": 0.9, "wd": 1e-4},
        initializer=mx.init.Xavier(),
        num_epoch=options.epochs,
        batch_end_callback=progress.batch,
        eval_end_callback=after_evaluation,
    )
    module.save_checkpoint(str(options.out / "lenet"), options.epochs, save_optimizer_states=True)
    test.reset()
    scores = await module.predict(test)
    await scores
    predicted = scores.asnumpy().argmax(axis=1)
    draw_curve(progress, tests, options.out / "learning_curve.png")
    draw_digits(test_images, test_labels, predicted, options.out / "test_digits.png")
    print(f"checkpoint and plots: {options.out}")
    return float((predicted == test_labels).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, default=Path("build/digits"))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    print(f"test accuracy: {mx.run(main(arguments)):.4f}")
