"""Milliseconds that ImageRecordIter takes for 1000 images (run by turns.py)."""

import importlib
import json
import sys
import time
from pathlib import Path

BATCH = 64
NORMALIZED = {
    "mean_r": 123.68, "mean_g": 116.28, "mean_b": 103.53, "std_r": 58.395, "std_g": 57.12, "std_b": 57.375,
}  # fmt: skip
USUAL = {"rand_crop": True, "rand_mirror": True, **NORMALIZED}
CASES = {
    "cropped": USUAL,
    "cropped, shuffled": {**USUAL, "shuffle": True},
    "resized to 240, cropped": {**USUAL, "resize": 240},
    "parts of random area": {
        "random_resized_crop": True, "min_random_area": 0.08, "max_aspect_ratio": 4 / 3, "min_aspect_ratio": 3 / 4,
        "rand_mirror": True, **NORMALIZED,
    },
}  # fmt: skip


def milliseconds(mx, folder, arguments):
    """The fastest of three epochs, for 1000 images."""
    paths = {f"path_img{kind}": str(Path(folder, f"images.{kind}")) for kind in ("rec", "idx")}
    iterator = mx.io.ImageRecordIter(
        **paths, data_shape=(3, 224, 224), batch_size=BATCH, preprocess_threads=2, verbose=False, **arguments
    )
    best = float("inf")
    for _ in range(3):
        start, count = time.perf_counter(), 0
        for batch in iterator:
            batch.data[0].wait_to_read()
            count += BATCH
        best = min(best, 1e6 * (time.perf_counter() - start) / count)
        iterator.reset()
    return best


def main():
    """Measure one system."""
    mx = importlib.import_module(sys.argv[1])
    print(json.dumps({name: milliseconds(mx, sys.argv[2], arguments) for name, arguments in CASES.items()}))


if __name__ == "__main__":
    main()
