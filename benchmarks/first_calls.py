"""First calls of hybridized networks in fresh processes, with an empty and a warm kernel cache, compared with MXNet.

python -m benchmarks.first_calls [MODEL ...] [--phases predict train] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence

from benchmarks import turns

MODELS = (
    "residual_gru", "deepar", "lstm", "gru", "resnet_18", "resnet_50", "mobilenet_v2", "mlp", "text_cnn", "transformer",
    "seq2seq", "wavenet", "bidirectional_lstm", "densenet_121",
)  # fmt: skip
PHASES = ("predict", "train")
BARS = {"cold": 3.0, "warm": 1.5}
"""The largest permitted ratio of a first call's time to MXNet's."""

Figures = dict[str, dict[str, float]]


def measure(name: str, phase: str, rounds: int) -> Figures:
    """Return the least of each figure over turns of MXNet, and of flowmx with an empty and then a warm kernel cache."""
    turns_of: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for label, system in (("mxnet", "mxnet"), ("cold", "flowmx"), ("warm", "flowmx")):
                if turns.python_of(system):
                    figures = turns.run("first_calls", system, [name, phase], {"FLOWMX_KERNEL_CACHE": folder})
                    turns_of.setdefault(label, []).append(figures)
    return {
        label: {key: min(each[key] for each in figures) for key in figures[0]} for label, figures in turns_of.items()
    }


def compare(rounds: int, models: Sequence[str] = MODELS, phases: Sequence[str] = PHASES) -> None:
    """Measure all, and print milliseconds, and the ratios to MXNet of wall time and processor time."""
    ratios: dict[str, list[float]] = {f"{label}{kind}": [] for kind in ("", " (processor)") for label in BARS}
    print(f"\nFirst calls (milliseconds)\n  {'':24} {'mxnet':>8} {'cold':>8} {'warm':>8}   cold   warm   processor")
    for name in models:
        for phase in phases:
            figures = measure(name, phase, rounds)
            line = f"  {name + ', ' + phase:24}"
            for label in ("mxnet", *BARS):
                line += f" {figures[label]['first_ms']:8.1f}" if label in figures else f" {'':8}"
            for kind, figure in (("", "first_ms"), (" (processor)", "first_cpu_ms")):
                for label, limit in BARS.items() if "mxnet" in figures else ():
                    ratio = figures[label][figure] / figures["mxnet"][figure]
                    ratios[f"{label}{kind}"].append(ratio)
                    line += f" {ratio:6.2f}{' ' if ratio <= limit else '!'}"
            print(line, flush=True)
    if ratios["cold"]:
        means = ", ".join(f"{label} {statistics.geometric_mean(each):.2f}" for label, each in ratios.items())
        print(f"  average ratios to MXNet: {means}; ! marks ratios above {BARS['cold']:g} and {BARS['warm']:g}")


def first_operators(rounds: int) -> None:
    """Measure the first operators of a process."""
    figures = turns.compare("first_calls", ["mxnet"], rounds, ["eager", "predict"], min)
    turns.report("First operators of a process (milliseconds)", figures)


def main() -> None:
    """Measure the models and phases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS])
    parser.add_argument("--phases", nargs="*", default=PHASES, choices=PHASES)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    compare(options.rounds, options.models or MODELS, options.phases)


if __name__ == "__main__":
    main()
