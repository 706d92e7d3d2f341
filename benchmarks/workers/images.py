"""Milliseconds that ImageRecordIter takes for 1000 images of 256 x 256 or 32 x 32.

    python images.py SYSTEM FOLDER SIDE

With ``CPU=1`` in the environment, processor time is measured.
"""

import importlib
import json
import os
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
SMALL_CASES = {"whole": {}, "shuffled": {"shuffle": True}, "padded, cropped": {"pad": 4, **USUAL}}


def milliseconds(mx, folder, length, arguments):
    """Return the milliseconds for 1000 images, in the fastest of three epochs."""
    paths = {f"path_img{kind}": str(Path(folder, f"images.{kind}")) for kind in ("rec", "idx")}
    iterator = mx.io.ImageRecordIter(
        **paths, data_shape=(3, length, length), batch_size=BATCH, preprocess_threads=2, verbose=False, **arguments
    )
    best, clock = float("inf"), time.process_time if os.environ.get("CPU") else time.perf_counter
    for _ in range(3):
        start, count = clock(), 0
        for batch in iterator:
            batch.data[0].wait_to_read()
            count += BATCH
        best = min(best, 1e6 * (clock() - start) / count)
        iterator.reset()
    return best


def main():
    """Measure one system."""
    system, folder, side = sys.argv[1:]
    mx = importlib.import_module(system)
    length, cases = (32, SMALL_CASES) if side == "32" else (224, CASES)
    print(json.dumps({name: milliseconds(mx, folder, length, arguments) for name, arguments in cases.items()}))


if __name__ == "__main__":
    main()
