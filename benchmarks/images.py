"""ImageRecordIter, compared with MXNet's: JPEG photographs of 256 x 256 and 32 x 32, cropped, mirrored, normalized."""

from __future__ import annotations

import io
import random
import tempfile
from pathlib import Path

from benchmarks import turns
from flowmx import recordio

COUNTS = {256: 3000, 32: 50_000}
"""The numbers of photographs, by the length of their sides."""
DIFFERENT = 2000
"""The number of distinct photographs."""


def compare(rounds: int) -> None:
    """Measure both, and print milliseconds for a thousand images."""
    for side, count in COUNTS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), count, side)
            figures = turns.compare("images", ["mxnet"], rounds, [folder, str(side)], min)
        bars: turns.Bars = {name: [("mxnet", 1.0)] for name in figures["flowmx"]}
        turns.report(f"ImageRecordIter (milliseconds for 1000 JPEG images of {side} x {side})", figures, bars)


def write(folder: Path, count: int, length: int) -> None:
    """Write a file of square photographs of a side, cropped from scikit-learn's two."""
    import PIL.Image
    import sklearn.datasets

    chance = random.Random(0)
    photographs = [PIL.Image.fromarray(each) for each in sklearn.datasets.load_sample_images().images]
    files = []
    for number in range(min(count, DIFFERENT)):
        picture = photographs[number % len(photographs)]
        side = chance.randint(length, min(picture.size))
        left, top = (chance.randint(0, extent - side) for extent in picture.size)
        part = picture.resize((length, length), PIL.Image.Resampling.BICUBIC, (left, top, left + side, top + side))
        raw = io.BytesIO()
        part.save(raw, "JPEG", quality=95)
        files.append(raw.getvalue())
    with recordio.MXIndexedRecordIO(folder / "images.idx", folder / "images.rec", "w") as file:
        for number in range(count):
            header = recordio.IRHeader(0, number % 10, number, 0)
            file.write_idx(number, recordio.pack(header, files[number % len(files)]))
