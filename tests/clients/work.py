"""One client in one environment: ``python work.py CLIENT FOLDER [CASE ...]`` saves the results of its cases."""

import importlib
import json
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

for name, kind in {"bool": bool, "float": float, "int": int, "object": object}.items():
    if name not in np.__dict__:  # NumPy took these away after the packages were written
        setattr(np, name, kind)


def main():
    client, folder, *wanted = sys.argv[1:]
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name, run in importlib.import_module(client).CASES.items():
        if wanted and name not in wanted:
            continue
        start, error = time.perf_counter(), ""
        try:
            np.savez(target / f"{name.replace('/', '_')}.npz", **run())
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"[:300]
            traceback.print_exc()
        outcomes[name] = {"error": error, "seconds": round(time.perf_counter() - start, 2)}
        (target / "outcomes.json").write_text(json.dumps(outcomes, indent=1))


main()
