"""One worker of a job that pushes and pulls arrays, or rows of one, under flowmx, MXNet (ps-lite) or PyTorch (gloo).

``kvstore.py SYSTEM CASES ITERATIONS OPTIMIZER FOLDER`` writes into the folder the start and end of every iteration,
for each case and each way to run it, by the machine's clock. All workers start an iteration at the same tick of that
clock.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

TICK, WARM = 0.05, 3
ROWS, CHOSEN, PULLS = 1_000_000, 1000, 25

INCEPTIONS = (
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
)


def googlenet():
    """The weights and biases of GoogLeNet: 7 million numbers in 116 arrays."""
    layers = [(64, 3, 7, 7), (64, 64, 1, 1), (192, 64, 3, 3)]
    for channels, one, reduce3, three, reduce5, five, pool in INCEPTIONS:
        layers += [(one, channels, 1, 1), (reduce3, channels, 1, 1), (three, reduce3, 3, 3)]
        layers += [(reduce5, channels, 1, 1), (five, reduce5, 5, 5), (pool, channels, 1, 1)]
    return [shape for layer in [*layers, (1000, 1024)] for shape in (layer, layer[:1])]


def resnet_50():
    """The weights of ResNet-50 with gamma and beta of each normalization: 25.6 million numbers in 161 arrays."""
    layers, channels = [(64, 3, 7, 7)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers += [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            layers += [(4 * width, channels, 1, 1)] if not block else []
            channels = 4 * width
    return [shape for layer in layers for shape in (layer, layer[:1], layer[:1])] + [(1000, 2048), (1000,)]


CASES = {
    "25 of 4 MB": [(1_000_000,)] * 25,
    "200 of 256 B": [(64,)] * 200,
    "GoogLeNet": googlenet(),
    "1 of 100 MB": [(25_000_000,)],
    "50 of 1 MB": [(250_000,)] * 50,
    "1000 of 256 B": [(64,)] * 1000,
    "ResNet-50": resnet_50(),
}


def gradients(shapes, rank):
    """Return arrays of integers, whose sums are exact."""
    return [np.full(shape, index % 5 + rank, np.float32) for index, shape in enumerate(shapes)]


def timed(exchange, meet, iterations):
    """Return the (start, end) times of each iteration of `exchange`."""
    times = []
    for iteration in range(-WARM, iterations):
        meet()
        time.sleep(TICK - time.monotonic() % TICK)
        start = time.monotonic()
        exchange()
        if iteration >= 0:
            times.append((start, time.monotonic()))
    return times


def rows_like_mxnet(mx, cases, iterations):
    """Measure row_sparse_pull: some rows of a large value, one pull after another."""
    store, random, figures = mx.kv.create("dist_sync"), np.random.default_rng(7), {}
    for case in cases:
        width = int(case.rpartition(" ")[2])
        store.init(case, mx.nd.ones((ROWS, width)).tostype("row_sparse"))
        rows = [np.sort(random.choice(ROWS, CHOSEN, replace=False)) for _ in range(8)]
        ids = [mx.nd.array(each, dtype="int64") for each in rows]
        out = mx.nd.zeros((ROWS, width), stype="row_sparse")
        times = []
        for pull in range(-WARM, iterations * PULLS):
            start = time.monotonic()
            store.row_sparse_pull(case, out=out, row_ids=ids[pull % len(ids)])
            out.wait_to_read()
            if pull >= 0:
                times.append((start, time.monotonic()))
            assert pull % PULLS or (out.data.asnumpy() == np.ones((CHOSEN, width))).all(), f"{case}: wrong rows"
            assert pull % PULLS or (out.indices.asnumpy() == rows[pull % len(ids)]).all(), f"{case}: other rows"
        figures[f"{case}/row_sparse_pull"] = times
    store._barrier()
    return figures


def like_mxnet(mx, cases, iterations, optimizer):
    """Measure push and pull of lists of keys, and pushpull."""
    store = mx.kv.create("dist_sync")
    if optimizer:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    figures, first = {}, 0
    for case in cases:
        shapes = CASES[case]
        keys = list(range(first, first + len(shapes)))
        first += len(shapes)
        pushed = [mx.nd.array(each) for each in gradients(shapes, store.rank)]
        pulled = [mx.nd.zeros(shape) for shape in shapes]
        store.init(keys, [mx.nd.zeros(shape) for shape in shapes])

        def wait(pulled=pulled):
            for each in pulled:
                each.wait_to_read()

        def push_and_pull(keys=keys, pushed=pushed, pulled=pulled, wait=wait):
            store.push(keys, pushed)
            store.pull(keys, pulled)
            wait()

        def pushpull(keys=keys, pushed=pushed, pulled=pulled, wait=wait):
            store.pushpull(keys, pushed, pulled)
            wait()

        for exchange in (push_and_pull, pushpull):
            figures[f"{case}/{exchange.__name__}"] = timed(exchange, store._barrier, iterations)
            if not optimizer and mx.__name__ == "flowmx":
                for index, each in enumerate(pulled):
                    assert (each.asnumpy() == 2 * (index % 5) + 1).all(), f"{case}: array {index} has a wrong sum"
    store._barrier()
    return figures


def pytorch(cases, iterations):
    """Measure an all-reduce of each array, all started before the first wait, and of one flat array."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    figures = {}
    for case in cases:
        arrays = [torch.from_numpy(each) for each in gradients(CASES[case], dist.get_rank())]
        flat = torch.empty(sum(each.numel() for each in arrays))

        def each(arrays=arrays):
            for work in [dist.all_reduce(array, async_op=True) for array in arrays]:
                work.wait()

        def one_flat(arrays=arrays, flat=flat):
            torch.cat([array.view(-1) for array in arrays], out=flat)
            dist.all_reduce(flat)
            for array, part in zip(arrays, flat.split([array.numel() for array in arrays]), strict=True):
                array.view(-1).copy_(part)

        def meet(arrays=arrays):
            for array in arrays:
                array.fill_(1)
            dist.barrier()

        for exchange in (each, one_flat):
            figures[f"{case}/{exchange.__name__}"] = timed(exchange, meet, iterations)
    dist.destroy_process_group()
    return figures


def main():
    system, cases, iterations, optimizer, folder = sys.argv[1:]
    names = cases.split(",")
    if system == "torch":
        figures = pytorch(names, int(iterations))
    elif names[0] not in CASES:
        figures = rows_like_mxnet(__import__(system), names, int(iterations))
    else:
        figures = like_mxnet(__import__(system), names, int(iterations), optimizer == "sgd")
    (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
