"""DataLoader, compared with MXNet's and PyTorch's: rows in memory, small images augmented, JPEG files augmented."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import images, turns

COUNT = 640


def compare(rounds: int) -> None:
    """Measure all, and print milliseconds for a thousand samples."""
    with tempfile.TemporaryDirectory() as folder:
        images.write(Path(folder), COUNT, 256)
        figures = turns.compare("loader", ["mxnet", "torch"], rounds, [folder], min)
    turns.report("DataLoader (milliseconds for 1000 samples)", figures)
    figures = turns.compare("loader_start", ["mxnet"], rounds, pick=min)
    turns.report("DataLoader, first epoch of 10 batches, 4 workers (seconds)", figures)
