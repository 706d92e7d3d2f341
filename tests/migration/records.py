"""Writes the .rec files that the scripts of this folder read."""

from pathlib import Path

import numpy as np

import flowmx as mx


def _write(path: Path, images: list[np.ndarray], labels: list[float]) -> None:
    record = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path.with_suffix(".rec")), "w")
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        header = mx.recordio.IRHeader(0, label, i, 0)
        record.write_idx(i, mx.recordio.pack_img(header, image.astype(np.uint8), quality=9, img_fmt=".png"))
    record.close()


def write_gradients(path: Path, count: int, seed: int) -> None:
    """Images of two kinds: brighter above, or brighter on the left."""
    random, ramp = np.random.RandomState(seed), np.linspace(220, 30, 20)
    labels = [float(i % 2) for i in range(count)]
    images = [
        (ramp[:, None, None] if label else ramp[None, :, None]) + random.uniform(-25, 25, (20, 20, 3))
        for label in labels
    ]
    _write(path, images, labels)


def write_faces(path: Path, identities: int = 6, each: int = 24) -> None:
    """Noisy images of a few patterns."""
    random = np.random.RandomState(0)
    faces = [np.kron(random.uniform(40, 215, (4, 4, 3)), np.ones((3, 3, 1))) for _ in range(identities)]
    labels = [float(i % identities) for i in range(identities * each)]
    _write(path, [faces[int(label)] + random.uniform(-20, 20, (12, 12, 3)) for label in labels], labels)


def prepare(folder: Path) -> None:
    """Write all files."""
    write_gradients(folder / "train", 128, 0)
    write_gradients(folder / "val", 32, 1)
    write_faces(folder / "faces")
