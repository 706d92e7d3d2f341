"""A worker of a real job whose computation is waits of measured lengths: ``figure8_training.py <profile> <seconds>
<overlap or not> <steps>``.

Everything else is real: arrays, the engine, the store, its servers and the network. Prints the seconds of a step's
waits without a store, and of a whole step.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import time
from typing import Any

import flowmx as mx
from flowmx.engine import Variable
from flowmx.kvstore.simulation import Profile


class Training:
    """A training loop like that of a Module: a pushpull of each gradient, with priorities by place in the network."""

    def __init__(self, kv: Any, profile: Profile, overlap: bool) -> None:
        self.kv, self.profile, self.overlap = kv, profile, overlap
        self.weights = {key: mx.nd.zeros(shape) for key, shape in profile.shapes.items()}
        self.gradients = {key: mx.nd.ones(shape) for key, shape in profile.shapes.items()}
        self.priorities = {key: -index for index, key in enumerate(profile.shapes)}
        self.order = Variable("the pass")  # steps run one after the other
        self.ends: list[float] = []
        self.workers = kv.num_workers  # read once: workers that have finished leave
        mx.nd.waitall()
        kv.init(list(self.weights), list(self.weights.values()))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.0))

    def step(self) -> None:
        """Enqueue a training step; without overlap, wait for its passes and its pulls."""
        for part in self.profile.forward:
            self._compute(part.seconds, reads=[self.weights[key] for key in part.keys])
        for part in self.profile.backward:
            self._compute(part.seconds, writes=[self.gradients[key] for key in part.keys])
            if self.overlap:
                self._exchange(part.keys)
        mx.engine.push(lambda: self.ends.append(time.perf_counter()), writes=[self.order]).wait()
        if not self.overlap:
            self._exchange([key for part in self.profile.backward for key in part.keys])
            mx.nd.waitall()
            self.ends[-1] = time.perf_counter()

    def alone(self) -> float:
        """Return the seconds of a step's waits without a store: slightly more than requested."""
        mx.nd.waitall()
        start = time.perf_counter()
        for part in (*self.profile.forward, *self.profile.backward):
            self._compute(part.seconds)
        mx.nd.waitall()
        return time.perf_counter() - start

    def check(self, steps: int) -> None:
        """Check that every push of every worker was applied once: gradients of ones, at a learning rate of 1."""
        for key, weight in self.weights.items():
            values, expected = weight.asnumpy(), -steps * self.workers
            assert (values == expected).all(), f"{key} is {values}, expected {expected}"

    def _compute(self, seconds: float, reads: Any = (), writes: Any = ()) -> None:
        mx.engine.push(functools.partial(time.sleep, seconds), reads, [self.order, *writes])

    def _exchange(self, keys: Any) -> None:
        for key in keys:
            self.kv.pushpull(key, self.gradients[key], out=self.weights[key], priority=self.priorities[key])


def main(path: str, seconds: float, overlap: bool, steps: int) -> None:
    """Train, and print the mean seconds of all steps except the first."""
    kv = mx.kv.create("dist_sync")
    training = Training(kv, Profile.load(path).at(seconds), overlap)
    waits = training.alone()
    for _ in range(steps + 1):
        training.step()
    mx.nd.waitall()
    training.check(steps + 1)
    figures = {"waits": waits, "step": (training.ends[-1] - training.ends[0]) / steps}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3] == "overlap", int(sys.argv[4]))
