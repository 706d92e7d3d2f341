"""Common code of the training examples: options, a progress line, and a plot of the learning curves."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import flowmx as mx

Curve = Sequence[tuple[float, float]]


def options(doc: str | None, epochs: int, batch_size: int, seed: int = 7) -> argparse.ArgumentParser:
    """Build a parser with the options of every training example, with the example's defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--plot", type=Path, help="write a plot to this file (needs matplotlib)")
    parser.add_argument("--checkpoint", type=Path, help="save checkpoints in this folder, and resume from the latest")
    parser.add_argument(
        "--every", type=int, default=100, help="batches between checkpoints, besides those after epochs"
    )
    return parser


class Progress:
    """The progress line in the terminal, and the losses for a plot.

    ``await progress.batch(loss, samples)`` reads the loss of the previous batch, so that exactly one batch is computed
    while the program reads another.
    """

    def __init__(self, epochs: int, batches: int) -> None:
        self.epochs, self.batches = epochs, batches
        self.losses: list[tuple[float, float]] = []
        self.live = sys.stdout.isatty()
        self.begin(0)

    def begin(self, epoch: int, batch: int = 0) -> None:
        """Start an epoch, or resume it after a batch."""
        self.epoch, self.first, self.done = epoch, batch, batch
        self.sum, self.samples, self.started = 0.0, 0, time.perf_counter()
        self.waiting: mx.nd.NDArray | None = None

    async def batch(self, loss: mx.nd.NDArray, samples: int) -> None:
        """Register a batch that was enqueued, with its mean loss."""
        await self._read_loss()
        self.waiting, self.samples = loss, self.samples + samples
        if self.live:
            print(f"\r{self._line()}", end="", flush=True)

    async def end(self, note: str = "") -> float:
        """End the epoch; returns its mean loss."""
        await self._read_loss()
        print("\r" * self.live + self._line() + note, flush=True)
        return self.mean

    @property
    def mean(self) -> float:
        """The mean loss of the epoch so far."""
        return self.sum / max(1, self.done - self.first)

    async def _read_loss(self) -> None:
        if self.waiting is None:
            return
        await self.waiting
        self.sum, self.done = self.sum + self.waiting.asscalar(), self.done + 1
        self.losses.append((self.epoch + self.done / self.batches, float(self.waiting.asscalar())))
        self.waiting = None

    def _line(self) -> str:
        rate = self.samples / (time.perf_counter() - self.started)
        return (
            f"epoch {self.epoch + 1:2}/{self.epochs} batch {self.done:4}/{self.batches} "
            f"loss {self.mean:7.4f} {rate:7.0f} samples/s"
        )


def draw(
    path: Path | None, title: str, curves: Mapping[str, Curve], ylabel: str = "loss", yscale: str = "linear"
) -> None:
    """Draw curves over the epochs into a file, if ``path`` is set."""
    if path is None:
        return
    axis = figure(path, 6, 3.5).subplots()
    for name, curve in curves.items():
        marker = "." if len(curve) < 50 else ""
        axis.plot([x for x, _ in curve], [y for _, y in curve], label=name, linewidth=1, marker=marker)
    axis.set(xlabel="epoch", ylabel=ylabel, yscale=yscale, title=title)
    axis.legend()
    axis.figure.savefig(path, dpi=120)


def figure(path: Path, width: float, height: float):  # type: ignore[no-untyped-def]  # matplotlib may be missing
    """Create a figure, and the folder of its file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    return Figure(figsize=(width, height), layout="constrained")
