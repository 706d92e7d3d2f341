"""Seconds of the first epoch of loaders with 4 workers, the first of a process and the second (run by turns.py)."""

import importlib
import json
import sys
import time

import numpy as np


def main():
    """Measure one system."""
    mx = importlib.import_module(sys.argv[1])
    rows = np.random.default_rng(0).random((640, 3, 32, 32), np.float32)
    dataset = mx.gluon.data.ArrayDataset(mx.nd.array(rows), mx.nd.arange(640))
    figures = {}
    for name in ("first_loader_s", "second_loader_s"):
        start = time.perf_counter()
        for data, _ in mx.gluon.data.DataLoader(dataset, 64, num_workers=4):
            data.wait_to_read()
        figures[name] = time.perf_counter() - start
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
