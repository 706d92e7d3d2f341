"""LeNet's training step plain, under the profiler, and without the flight recorder, in short turns."""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import flowmx as mx

KIND = sys.argv.pop(2)
BATCH, TURNS, STEPS = 64, 30, 5


def symbolic():
    import lenet  # a module of this folder, which reads the command line

    executor = lenet.bound(BATCH)
    return lambda: lenet.step(executor)


def block(hybrid):
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    for channels in (20, 50):
        net.add(nn.Conv2D(channels, 5, activation="tanh"), nn.MaxPool2D(2, 2))
    net.add(nn.Flatten(), nn.Dense(500, activation="tanh"), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=None)
    random = np.random.RandomState(0)
    x = mx.nd.array(random.randn(BATCH, 1, 28, 28).astype("float32"))
    y = mx.nd.array(random.randint(0, 10, BATCH).astype("float32"))

    def step():
        with mx.autograd.record():
            error = loss(net(x), y)
        error.backward()
        trainer.step(BATCH)

    return step


def tiny():
    x = mx.nd.ones((16,))

    def step():
        y = x
        for _ in range(2000):
            y = y + 1

    return step


def off():
    pass


def with_profiler():
    mx.profiler.set_state("run")


def without_profiler():
    mx.profiler.set_state("stop")
    mx.profiler.dumps(reset=True)


WAYS = {
    "plain": (off, off),
    "profiled": (with_profiler, without_profiler),
    "no_flight": (mx.flight_recorder.stop, mx.flight_recorder.start),
}


def turn(step):
    step()  # the first step of a turn is slower
    mx.nd.waitall()
    time.sleep(0.02)
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    mx.nd.waitall()
    return (time.perf_counter() - start) / STEPS * 1e3


def typical(times):
    """Return the first quartile: close to the time on an idle machine."""
    return statistics.quantiles(times, n=4)[0]


def main():
    step = {"symbolic": symbolic, "gluon": lambda: block(True), "imperative": lambda: block(False), "tiny": tiny}[
        KIND
    ]()
    times = {way: [] for way in WAYS}
    for number in range(TURNS + 2):
        ways = list(WAYS.items())
        for way, (begin, end) in ways[number % 3 :] + ways[: number % 3]:  # each way follows each other way
            begin()
            duration = turn(step)
            end()
            if number >= 2:  # the first ones compile
                times[way].append(duration)
    if KIND == "tiny":  # steps of 2000 operations
        print(json.dumps({f"{way}_us": min(durations) / 2 for way, durations in times.items()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        mx.profiler.set_config(filename=str(Path(folder) / "profile.json"))
        mx.profiler.dump()
    plain, profiled, no_flight = (times[way] for way in WAYS)
    print(
        json.dumps(
            {
                **{f"{way}_ms": typical(durations) for way, durations in times.items()},
                "profiler_ratio": typical(profiled) / typical(plain),
                "flight_ratio": typical(plain) / typical(no_flight),
            }
        )
    )


if __name__ == "__main__":
    main()
