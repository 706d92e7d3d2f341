"""Milliseconds to write and to read 500 MB of parameters, in few arrays and in many (run by turns.py)."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FLOATS = 125_000_000
COUNTS = {"few": 4, "many": 400}
TIMES = 3


def milliseconds(work):
    """Return the milliseconds that a function takes."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def torch_calls(arrays, folder):
    """Return functions that write and read with PyTorch, by name."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    net = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros_like(each)) for name, each in tensors.items()})
    path = folder / "x.pt"

    def write():
        path.unlink(missing_ok=True)
        torch.save(tensors, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def read():
        return torch.load(path)

    def resume():
        net.load_state_dict(read())

    return {"arrays": (write, read), "parameters": (write, resume), "run": (write, resume)}


def flowmx_calls(arrays, folder):
    """Return functions that write and read with flowmx, by name."""
    import flowmx as mx

    net = mx.gluon.nn.HybridSequential()
    for name, array in arrays.items():
        setattr(net, name, net.params.get(name, shape=array.shape))
    net.initialize(mx.init.Zero())
    for name, array in arrays.items():
        getattr(net, name).set_data(mx.nd.from_numpy(array))
    mx.nd.waitall()
    parameters = {name: getattr(net, name).data() for name in arrays}

    def saved(path, save):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        save(str(path))

    def loaded(load):
        load()
        mx.nd.waitall()

    def write_run():
        shutil.rmtree(folder / "run", ignore_errors=True)
        mx.checkpoint.Run(folder / "run", net=net).save()

    files = {name: folder / f"{name}.params" for name in ("arrays", "parameters")}
    return {
        "arrays": (
            lambda: saved(files["arrays"], lambda path: mx.nd.save(path, parameters)),
            lambda: loaded(lambda: mx.nd.load(str(files["arrays"]))),
        ),
        "parameters": (
            lambda: saved(files["parameters"], net.save_parameters),
            lambda: loaded(lambda: net.load_parameters(str(files["parameters"]))),
        ),
        "run": (write_run, lambda: loaded(mx.checkpoint.Run(folder / "run", net=net).resume)),
    }


def main():
    """Measure one system."""
    chance = np.random.default_rng(0)
    figures = {}
    for size, count in COUNTS.items():
        arrays = {f"p{i}": chance.random(FLOATS // count, dtype=np.float32) for i in range(count)}
        with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
            calls = (torch_calls if sys.argv[1] == "torch" else flowmx_calls)(arrays, Path(folder))
            for name, (write, read) in calls.items():
                times = [(milliseconds(write), milliseconds(read)) for _ in range(TIMES)]
                figures[f"{size}_{name}_save_ms"] = min(saving for saving, _ in times)
                figures[f"{size}_{name}_load_ms"] = min(load for _, load in times)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
