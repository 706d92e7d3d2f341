"""Real ONNX files (``onnx_models.py``) in flowmx, onnxruntime and OpenVINO, two threads each, in turns.

``python -m benchmarks onnx`` prints the times, the ratio to the faster peer, and how far the results differ.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import turns
from benchmarks.onnx_models import FOLDER, MODELS, Model

PEERS = ["onnxruntime", "openvino"]
BAR, SMALL_BAR = 0.9, 1.0
"""The largest permitted mean of the ratios, and the largest ratio of models that take less than a millisecond."""


def measure(model: Model, peers: list[str], rounds: int) -> tuple[dict[str, float], float]:
    """Return the milliseconds of each system that can run a model, and how far flowmx's results differ.

    The difference is relative to the larger of 1 and the largest result.
    """
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {system: str(Path(folder) / f"{system}.npz") for system in ["flowmx", *peers]}
        for _ in range(rounds):
            for system, file in files.items():
                try:
                    figure = turns.run("onnx_file", system, [model.name, file])["call_ms"]
                except RuntimeError as error:
                    if system in ("flowmx", "onnxruntime"):
                        raise
                    print(f"  {str(error).splitlines()[-1][:110]}")
                    continue
                times[system] = min(figure, times.get(system, figure))
        differences = [0.0]
        if "onnxruntime" in peers:
            own, other = (np.load(files[system]) for system in ("flowmx", "onnxruntime"))
            for name in other.files:
                if own[name].shape != other[name].shape:
                    raise ValueError(f"{model.name}: {name} has shape {own[name].shape}, expected {other[name].shape}")
                size = max(1.0, float(np.abs(other[name]).max(initial=0)))
                differences.append(float(np.abs(own[name] - other[name]).max(initial=0)) / size)
    return times, max(differences)


def compare(rounds: int) -> None:
    """Measure every file and print the figures."""
    models = [model for model in MODELS if model.path.exists()]
    peers = [peer for peer in PEERS if turns.python_of(peer)]
    print(f"\nONNX files (milliseconds a call; {len(models)} of {len(MODELS)} are in {FOLDER})")
    print(f"  {'':48} {'flowmx':>9} " + " ".join(f"{peer:>11}" for peer in peers) + "   ratio  difference")
    ratios = []
    for model in models:
        times, difference = measure(model, peers, rounds)
        line = f"  {model.name[-48:]:48} {times['flowmx']:9.3f} "
        line += " ".join(f"{times[peer]:11.3f}" if peer in times else f"{'':11}" for peer in peers)
        best = min((times[peer] for peer in peers if peer in times), default=None)
        if best is not None:
            ratios.append(times["flowmx"] / best)
            line += f"  {ratios[-1]:6.2f}  {difference:.1e}"
            if best < 1:
                line += f"  at most {SMALL_BAR:g}: {'met' if ratios[-1] <= SMALL_BAR else 'MISSED'}"
        print(line, flush=True)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"\n  geometric mean of the ratios: {mean:.2f}, at most {BAR}: {'met' if mean <= BAR else 'MISSED'}")
