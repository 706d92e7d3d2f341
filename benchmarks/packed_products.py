"""Products with quantized weights: time, memory traffic, operations per second, and the tokens per second they allow.

``python -m benchmarks packed`` prints two tables. The first one has the products of SmolLM2-135M and of a model with
10⁹ parameters, for some numbers of rows. The second one runs all products of SmolLM2-135M as one graph, and compares
the tokens per second with those of llama.cpp for the whole model, if ``PEERS`` has ``llama.cpp/llama-bench`` and the
variable ``SMOLLM2`` names the model's GGUF file.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import flowmx as mx
from benchmarks.turns import PEERS
from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.ops.quantization.interleaved_weights import interleave

SHAPES = [
    ("Q4_1", 576, 576), ("Q4_1", 576, 192), ("Q4_1", 576, 1536), ("Q4_1", 1536, 576), ("Q8_0", 576, 49152),
    ("Q4_K", 2048, 2048), ("Q4_K", 2048, 8192), ("Q6_K", 8192, 2048), ("BF16", 576, 1536), ("F32", 576, 1536),
]  # fmt: skip
"""Format, values of a row, and rows of the weights."""
ROWS = (1, 4, 16, 128, 512)
LAYERS, UNITS, HIDDEN, KEYS, WORDS = 30, 576, 1536, 192, 49152
"""SmolLM2-135M: its layers, the widths of states, of feed-forward layers and of keys, and the vocabulary."""
PROMPT = 512
STREAMS = 16


def _weight(form: str, units: int, rows: int, seed: int = 0) -> mx.nd.NDArray:
    """Return an interleaved weight of normal numbers."""
    values = np.random.default_rng(seed).standard_normal((rows, units), np.float32)
    return mx.nd.array(interleave(form, FORMATS[form].quantize(values)), dtype="uint8")


def _least_seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the time of the fastest of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _run(bound: mx.executor.Executor) -> None:
    """Run a bound symbol."""
    bound.forward()[0].wait_to_read()


def _product(name: str, data: mx.sym.Symbol, form: Any, units: int, rows: int) -> mx.sym.Symbol:
    weight = mx.sym.var(name)
    return mx.sym.contrib.packed_dense(data, weight, format=form, num_hidden=rows, in_units=units, interleaved=True)


def products(repeats: int) -> None:
    """Print the table of products."""
    print("format  units x outputs  rows        µs    GB/s    GOP/s")
    for form, units, outputs in SHAPES:
        weight = _weight(form, units, outputs)
        for rows in ROWS:
            out = _product("w", mx.sym.var("x"), form, units, outputs)
            bound = out.bind(mx.cpu(), {"x": mx.nd.random.normal(shape=(rows, units)), "w": weight}, grad_req="null")
            seconds = _least_seconds(partial(_run, bound), 12 + repeats)
            traffic, operations = weight.size / seconds / 1e9, 2 * rows * units * outputs / seconds / 1e9
            print(f"{form:6} {units:6} x {outputs:<7} {rows:5} {seconds * 1e6:9.1f} {traffic:7.1f} {operations:8.1f}")


def _model(rows: int, rows_of_logits: int) -> tuple[mx.sym.Symbol, dict[str, tuple[str, int, int]]]:
    """Return all products of SmolLM2-135M, and the format and shape of each weight."""
    weights: dict[str, tuple[str, int, int]] = {}

    def product(name: str, data: mx.sym.Symbol, units: int, outputs: int, form: str = "Q4_1") -> mx.sym.Symbol:
        weights[name] = form, units, outputs
        return _product(name, data, form, units, outputs)

    state = mx.sym.var("x")
    for at in range(LAYERS):
        queries, keys, values = (
            product(f"{n}{at}", state, UNITS, w) for n, w in (("q", UNITS), ("k", KEYS), ("v", KEYS))
        )
        state = product(f"o{at}", queries, UNITS, UNITS)
        gate, up = (product(f"{name}{at}", state, UNITS, HIDDEN) for name in ("gate", "up"))
        state = product(f"down{at}", gate + up, HIDDEN, UNITS) + mx.sym.concat(keys, values, keys, dim=1) * 1e-6
        state = mx.sym.L2Normalization(state)
    last = mx.sym.slice_axis(state, axis=0, begin=rows - rows_of_logits, end=rows)
    return product("words", last, UNITS, WORDS, "Q8_0"), weights


def tokens_per_second(rows: int, rows_of_logits: int, repeats: int) -> float:
    """Return the tokens per second of the products of SmolLM2-135M."""
    symbol, shapes = _model(rows, rows_of_logits)
    arrays = {name: _weight(*shape, seed=at) for at, (name, shape) in enumerate(shapes.items())}
    arrays["x"] = mx.nd.random.normal(shape=(rows, UNITS))
    bound = symbol.bind(mx.cpu(), arrays, grad_req="null")
    return rows / _least_seconds(partial(_run, bound), 12 + repeats)


def _of_llama() -> dict[str, float]:
    """Return llama.cpp's tokens per second; empty if it is not installed."""
    program, model = PEERS / "llama.cpp" / "llama-bench", os.environ.get("SMOLLM2", "")
    if not (program.exists() and model):
        return {}
    command = [str(program), "-m", model, "-t", "2", "-p", str(PROMPT), "-n", "64", "-o", "json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"prompt" if row["n_prompt"] else "one stream": row["avg_ts"] for row in rows}


def report(repeats: int) -> None:
    """Print both tables."""
    products(repeats)
    peer = _of_llama()
    print("\nTokens per second of all products of SmolLM2-135M, and of llama.cpp for the whole model")
    for name, rows, logits in (("one stream", 1, 1), (f"{STREAMS} streams", STREAMS, STREAMS), ("prompt", PROMPT, 1)):
        theirs = f"{peer[name]:8.0f}" if name in peer else ""
        print(f"{name:12} {tokens_per_second(rows, logits, repeats):8.0f} {theirs}")
