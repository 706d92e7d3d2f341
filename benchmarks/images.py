"""ImageRecordIter, compared with MXNet's: JPEG photographs of 256 x 256, crops of 224 x 224, mirrored, normalized."""

from __future__ import annotations

import io
import random
import tempfile
from pathlib import Path

from benchmarks import turns
from flowmx import recordio

COUNT = 3000
SIDE = 256


def compare(rounds: int) -> None:
    """Measure both, and print milliseconds for a thousand images."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), COUNT)
        figures = turns.compare("images", ["mxnet"], rounds, [folder], min)
    bars: turns.Bars = {name: [("mxnet", 1 / 0.9)] for name in figures["flowmx"]}
    turns.report("ImageRecordIter (milliseconds for 1000 JPEG images of 256 x 256)", figures, bars)


def write(folder: Path, count: int) -> None:
    """Write a file of photographs, cut from the two that come with scikit-learn."""
    import PIL.Image
    import sklearn.datasets

    chance = random.Random(0)
    photographs = [PIL.Image.fromarray(each) for each in sklearn.datasets.load_sample_images().images]
    with recordio.MXIndexedRecordIO(folder / "images.idx", folder / "images.rec", "w") as file:
        for number in range(count):
            picture = photographs[number % len(photographs)]
            side = chance.randint(SIDE, min(picture.size))
            left, top = (chance.randint(0, length - side) for length in picture.size)
            part = picture.resize((SIDE, SIDE), PIL.Image.Resampling.BICUBIC, (left, top, left + side, top + side))
            raw = io.BytesIO()
            part.save(raw, "JPEG", quality=95)
            file.write_idx(number, recordio.pack(recordio.IRHeader(0, number % 10, number, 0), raw.getvalue()))
