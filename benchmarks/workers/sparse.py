"""Milliseconds of sparse arrays: products, a lazy step of an embedding, an epoch of a factorization machine.

    python sparse.py SYSTEM [PART ...]

Parts: ``products``, ``embedding``, ``factorization``; all of them by default. The machine is that of MXNet's example
(Rendle 2010, "Factorization Machines"), on synthetic samples like those of Criteo's contest. SciPy runs only products.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from timing import best_ms

CHANCE = np.random.default_rng(0)
ROWS, COLUMNS, WIDTH = 1_000_000, 2_000, 64
"""The shape of the matrices: MXNet supports no more elements, including those that are not stored."""
EMBEDDED = 10_000_000
"""The rows of the embedding."""

FEATURES, FIELDS, BATCH, BATCHES, FACTORS = 1_000_000, 39, 1000, 30, 16

Csr = tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]


def matrix(rows: int, columns: int, stored: int) -> Csr:
    """Return random data, column indices and row starts of about ``stored`` elements, and the shape."""
    places = np.unique(CHANCE.integers(0, rows * columns, stored))
    starts = np.concatenate([[0], np.cumsum(np.bincount(places // columns, minlength=rows))])
    return CHANCE.standard_normal(len(places), np.float32), places % columns, starts, (rows, columns)


def products(system: str) -> dict[str, float]:
    """Measure products of csr matrices and transposed csr matrices with dense ones."""
    figures = {}
    for filled in (1e-2, 1e-4):
        csr = matrix(ROWS, COLUMNS, round(filled * ROWS * COLUMNS))
        for width in (1, WIDTH):
            few = CHANCE.standard_normal((COLUMNS, width), np.float32)
            whole = CHANCE.standard_normal((ROWS, width), np.float32)
            for name, step in zip(("csr", "csr.T"), steps(system, csr, few, whole), strict=True):
                figures[f"{name} x {width}, {filled:.2%} filled: ms"] = best_ms(step, 1.0)
    return figures


def steps(system: str, csr: Csr, few: np.ndarray, whole: np.ndarray) -> list[Callable[[], Any]]:
    """Return a product and one with the matrix transposed, each with its wait."""
    data, indices, starts, shape = csr
    if system == "scipy":
        import scipy.sparse

        scipy_csr = scipy.sparse.csr_matrix((data, indices.astype(np.int32), starts.astype(np.int32)), shape)
        across = scipy_csr.T
        return [lambda: scipy_csr @ few, lambda: across @ whole]
    mx = importlib.import_module(system)
    sparse = mx.nd.sparse.csr_matrix((data, indices, starts), shape=shape)
    left, right = mx.nd.array(few), mx.nd.array(whole)
    return [
        lambda: mx.nd.sparse.dot(sparse, left).wait_to_read(),
        lambda: mx.nd.sparse.dot(sparse, right, transpose_a=True).wait_to_read(),
    ]


def embedding(system: str) -> dict[str, float]:
    """Measure a step of AdaGrad on an embedding of ten million rows; a batch uses a thousand."""
    mx = importlib.import_module(system)
    net = mx.gluon.nn.Embedding(EMBEDDED, WIDTH, sparse_grad=True)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adagrad", {"learning_rate": 0.1})
    batches = [mx.nd.array(CHANCE.integers(0, EMBEDDED, 1000)) for _ in range(8)]
    turn = iter(range(1 << 30))

    def step() -> None:
        with mx.autograd.record():
            loss = (net(batches[next(turn) % len(batches)]) ** 2).sum()
        loss.backward()
        trainer.step(1)
        net.weight.data()[0:1].wait_to_read()

    return {"embedding, a lazy step: ms": best_ms(step)}


def machine(mx: Any) -> Any:
    """Return the factorization machine: a score for each sample, from its features and all their pairs."""
    x = mx.symbol.Variable("data", stype="csr")
    normal = mx.initializer.Normal(sigma=0.01)
    v = mx.symbol.Variable("v", shape=(FEATURES, FACTORS), init=normal, stype="row_sparse")
    weight = mx.symbol.Variable("w", shape=(FEATURES, 1), init=normal, stype="row_sparse")
    bias = mx.symbol.Variable("b", shape=(1,), init=mx.initializer.Zero())
    linear = mx.symbol.broadcast_add(mx.symbol.sparse.dot(x, weight), bias)
    squares = mx.symbol._internal._square_sum(data=v, axis=1, keepdims=True)
    own = mx.symbol.sparse.dot(mx.symbol.sparse.square(x), squares)
    all_pairs = 0.5 * mx.symbol.square(data=mx.symbol.sparse.dot(x, v))
    summed = mx.symbol.sum(mx.symbol.Concat(linear, all_pairs, dim=1), axis=1, keepdims=True)
    out = mx.symbol.elemwise_add(summed, 0.5 * mx.symbol.negative(own))
    return mx.symbol.LogisticRegressionOutput(data=out, label=mx.symbol.Variable("softmax_label"))


def factorization(system: str) -> dict[str, float]:
    """Measure an epoch of the factorization machine with Adam, the best of three."""
    mx = importlib.import_module(system)
    batches = []
    for _ in range(BATCHES):
        *parts, shape = matrix(BATCH, FEATURES, BATCH * FIELDS)
        rows = mx.nd.sparse.csr_matrix(tuple(parts), shape=shape)
        batches.append(mx.io.DataBatch([rows], [mx.nd.array(CHANCE.integers(0, 2, BATCH))]))
    module = mx.mod.Module(machine(mx), data_names=["data"], label_names=["softmax_label"])
    module.bind([("data", (BATCH, FEATURES))], [("softmax_label", (BATCH,))])
    module.init_params()
    module.init_optimizer(kvstore=None, optimizer="adam", optimizer_params={"learning_rate": 0.001})
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        for batch in batches:
            module.forward_backward(batch)
            module.update()
        mx.nd.waitall()
        best = min(best, time.perf_counter() - start)
    return {"factorization machine, an epoch: ms": 1000 * best}


PARTS = {"products": products, "embedding": embedding, "factorization": factorization}


def main() -> None:
    """Print the figures of the system that the command line names, as JSON."""
    system, *parts = sys.argv[1:]
    figures: dict[str, float] = {}
    for name in parts or (["products"] if system == "scipy" else PARTS):
        figures.update(PARTS[name](system))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
