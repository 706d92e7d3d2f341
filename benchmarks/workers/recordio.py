"""Seconds to read all records of a file, in file order and in random order (run by turns.py)."""

import importlib
import json
import random
import sys
import time
from pathlib import Path


def seconds(read):
    """Return the seconds that a reader takes, and the bytes that it read."""
    start = time.perf_counter()
    size = read()
    return time.perf_counter() - start, size


def main():
    """Measure one system."""
    recordio = importlib.import_module(sys.argv[1]).recordio
    rec, idx = (str(Path(sys.argv[2], f"big.{kind}")) for kind in ("rec", "idx"))

    def in_order():
        file = recordio.MXRecordIO(rec, "r")
        size = 0
        while True:
            record = file.read()
            if record is None:
                return size
            size += len(record)

    indexed = recordio.MXIndexedRecordIO(idx, rec, "r")
    keys = list(indexed.keys)
    random.Random(1).shuffle(keys)

    def at_random():
        return sum(len(indexed.read_idx(key)) for key in keys)

    in_order()  # from here on, the file is in the page cache
    sequential, size = seconds(in_order)
    at_any_place, same = seconds(at_random)
    assert size == same, "both read every record"
    print(json.dumps({"sequential_s": sequential, "random_s": at_any_place}))


if __name__ == "__main__":
    main()
