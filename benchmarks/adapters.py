"""Decode steps of SmolLM2-135M in Q4_1 whose rows have adapters, compared with the same steps without.

``python -m benchmarks adapters`` needs the file that ``make models`` fetches. Both kinds of steps take turns, on one
thread: the processor time does not depend on other programs. Four adapters of rank 8 are in all layers.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

import flowmx as mx
from benchmarks.text_models import SMOLLM2
from flowmx.generation import PagedDecoder
from flowmx.generation.step_batch import StepBatch
from flowmx.gluon import lora

ADAPTERS, RANK, CONTEXT, TURNS = 4, 8, 40, 20


def report(rounds: int) -> None:
    """Print the processor time of steps without and with adapters."""
    if not SMOLLM2.exists():
        print(f"{SMOLLM2} does not exist: make models")
        return
    decoder = _decoder()
    print(f"{'SmolLM2-135M, Q4_1, processor time of a step':50} {'plain':>8} {'adapters':>9} {'ratio':>7}")
    for rows in (1, 16):
        batches = _batch(rows, False), _batch(rows, True)
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(TURNS * (rounds + 1)):
            for batch, kind in zip(batches, times, strict=True):
                start = time.process_time()
                decoder.step(batch).wait_to_read()
                if turn >= TURNS:  # the first ones compile
                    kind.append(time.process_time() - start)
        plain, adapted = (1000 * median(each) for each in times)
        print(f"{f'{rows} sequences, ms':50} {plain:8.2f} {adapted:9.2f} {adapted / plain:6.2f}x")


def _decoder() -> PagedDecoder:
    """Return a decoder with adapters."""
    net = mx.gluon.model_zoo.from_pretrained(SMOLLM2)
    adapter = lora.attach(net, "attention|widen|narrow", rank=RANK)
    weights = []
    for seed in range(ADAPTERS):
        mx.random.seed(seed)
        for parameter in adapter.parameters():
            parameter.set_data(mx.nd.random.normal(0, 0.02, shape=parameter.shape))
        weights.append(adapter.weights())
    adapter.detach()
    decoder = PagedDecoder(net, pages=512, dtype="bfloat16")
    for each in weights:
        decoder.add_adapter(each)
    return decoder


def _batch(rows: int, has_adapters: bool) -> StepBatch:
    """Return the next token of some sequences, all at one position."""
    numbers, pages = np.arange(rows, dtype=np.int32), CONTEXT // 16 + 1
    tables = np.arange(rows * pages, dtype=np.int32).reshape(rows, pages)
    slots = tables[:, CONTEXT // 16] * 16 + np.int32(CONTEXT % 16)
    return StepBatch(
        numbers + 100, np.full(rows, CONTEXT, np.int32), slots, numbers, tables, numbers,
        numbers % ADAPTERS if has_adapters else None,
    )  # fmt: skip
