"""Seconds to import a system, in this fresh process."""

import importlib
import json
import sys
import time


def main() -> None:
    """Measure, and print the figure as JSON."""
    start = time.perf_counter()
    importlib.import_module(sys.argv[1])
    print(json.dumps({"import_s": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
