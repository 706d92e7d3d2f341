"""bfloat16 on the CPU: predictions and training steps, compared with float32 and with PyTorch in bfloat16.

The three take turns; the best round counts, since other work on the machine only adds time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import turns

PREDICTED = ("resnet_50", "vgg_16", "mobilenet_v2", "inception_v3", "bert", "lstm")
BATCHES = (16, 1)
TRAINED = {"resnet_50": 16, "block": 8}
SIDES = (("flowmx", "float32"), ("flowmx", "bfloat16"), ("torch", "bfloat16"))


class Bar(NamedTuple):
    """The largest permitted ratio of flowmx's time in bfloat16 to another: of each model, and on average."""

    against: int
    """An index into ``SIDES``."""
    each: float
    mean: float


PREDICTION = (Bar(0, 0.9, 0.6), Bar(2, 1.15, 1.0))
TRAINING = (Bar(0, 0.7, 0.7),)


def compare(rounds: int) -> None:
    """Measure, and print each figure with its ratios."""
    _table("Prediction", [(name, batch, 0) for batch in BATCHES for name in PREDICTED], PREDICTION, rounds)
    _table("A training step", [(name, batch, 1) for name, batch in TRAINED.items()], TRAINING, rounds)


def _table(title: str, rows: Sequence[tuple[str, int, int]], bars: Sequence[Bar], rounds: int) -> None:
    sides = [(system, dtype) for system, dtype in SIDES if turns.python_of(system)]
    print(f"\n{title} (milliseconds)")
    print(
        f"  {'':22}"
        + "".join(f"{system + ' ' + dtype:>17}" for system, dtype in sides)
        + "   ratio to float32, to torch"
    )
    ratios_of: list[list[float]] = [[] for _ in sides]
    for name, batch, train in rows:
        times = [float("inf")] * len(sides)
        for _ in range(rounds):
            for at, (system, dtype) in enumerate(sides):
                figures = turns.run("half", system, [dtype, name, str(batch), str(train)])
                times[at] = min(times[at], *figures.values())
        ratios = [times[1] / each for at, each in enumerate(times) if at != 1]
        for column, ratio in zip(ratios_of, [ratios[0], 1.0, *ratios[1:]], strict=True):
            column.append(ratio)
        cells = "".join(f"{each:17.1f}" for each in times) + "   " + ", ".join(f"{each:.2f}" for each in ratios)
        print(f"  {f'{name}, batch {batch}':22}{cells}", flush=True)
    for bar in bars:
        if bar.against < len(sides):
            mean, worst = statistics.geometric_mean(ratios_of[bar.against]), max(ratios_of[bar.against])
            verdict = "met" if mean <= bar.mean and worst <= bar.each else "MISSED"
            peer = " ".join(sides[bar.against])
            print(
                f"  ratio to {peer}: {mean:.2f} on average, at most {bar.mean:g}; "
                f"{worst:.2f} in the worst case, at most {bar.each:g}: {verdict}"
            )
