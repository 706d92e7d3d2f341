"""A RecordIO file of a gigabyte, read from beginning to end and at random, compared with MXNet."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks import turns
from flowmx import recordio

SIZE = 1 << 30


def compare(rounds: int) -> None:
    """Measure both, and print the seconds to read the whole file."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), SIZE)
        figures = turns.compare("recordio", ["mxnet"], rounds, [folder], min)
    bars: turns.Bars = {"sequential_s": [("mxnet", 1 / 0.9)], "random_s": [("mxnet", 1.0)]}
    turns.report("A .rec file of 1 GB (seconds for all records)", figures, bars)


def write(folder: Path, size: int) -> None:
    """Write a file of ``size`` bytes: records as long as photographs of 256 x 256."""
    chance = random.Random(0)
    content = chance.randbytes(1 << 20)
    with recordio.MXIndexedRecordIO(folder / "big.idx", folder / "big.rec", "w") as file:
        number = 0
        while file.tell() < size:
            start = chance.randrange(1 << 19)
            body = content[start : start + chance.randrange(15_000, 50_000)]
            file.write_idx(number, recordio.pack(recordio.IRHeader(0, number % 1000, number, 0), body))
            number += 1
