"""1,000 sessions of Silero's voice activity detector, compared with onnxruntime for each session and in batches.

``python -m benchmarks sessions`` needs the file that ``make models`` fetches. A real-time factor is the time for the
chunks of all sessions divided by their duration: below 1, they are computed in real time. The latencies are those of
sessions that send a chunk every 32 ms, at different times.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles

import numpy as np

import flowmx as mx
from benchmarks.silero import CHUNK, SECONDS, STATES, Detector, Runtime, Samples, speech
from benchmarks.text_models import SILERO

SESSIONS, CHUNKS, THREADS, BATCH = 1000, 64, 2, 256
_SOUNDS = 16
"""The number of different sounds, whose results are compared with onnxruntime's."""
Figures = dict[str, float]


def report(rounds: int) -> None:
    """Print the figures of flowmx and onnxruntime, the best of some rounds in turns."""
    if not SILERO.exists():
        print(f"{SILERO} does not exist: make models")
        return
    sounds = [speech(CHUNKS, seed) for seed in range(_SOUNDS)]
    best = Figures()
    for _ in range(rounds):
        figures = {
            **mx.run(flowmx(sounds)), "onnxruntime for each session, real-time factor": single(sounds),
            "onnxruntime in batches, real-time factor": batched(sounds),
        }  # fmt: skip
        for name, value in figures.items():
            best[name] = min(best.get(name, value), value)
    print(f"{SESSIONS} sessions, chunks of {1000 * SECONDS:g} ms, {THREADS} threads")
    for name, value in best.items():
        print(f"{name:50} {value:10.3g}")
    ours = best["flowmx, real-time factor"]
    for peer in ("for each session", "in batches"):
        print(f"flowmx is {best[f'onnxruntime {peer}, real-time factor'] / ours:.2f}x faster than onnxruntime {peer}")


async def flowmx(sounds: list[Samples]) -> Figures:
    """Measure flowmx: as fast as possible, then with a chunk every 32 ms."""
    expected = [expected_of(sound) for sound in sounds]
    limits = {"sessions": SESSIONS}
    model = Detector()
    async with mx.serve.Predictor(model, (CHUNK,), states=STATES, max_batch=BATCH, sessions=limits) as predictor:
        await asyncio.gather(*(_fast(predictor, sounds[0][:8]) for _ in range(SESSIONS)))  # the first runs are slow
        cpu, start = time.process_time(), time.perf_counter()
        runs = (_fast(predictor, sounds[index % _SOUNDS]) for index in range(SESSIONS))
        results = await asyncio.gather(*runs)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        error = max(float(np.abs(result - expected[index % _SOUNDS]).max()) for index, result in enumerate(results))
        latencies: list[float] = []
        begin = time.perf_counter() + 0.5
        paced = (
            _paced(predictor, sounds[k % _SOUNDS], begin + SECONDS * k / SESSIONS, latencies) for k in range(SESSIONS)
        )
        results = await asyncio.gather(*paced)
    error = max(error, *(float(np.abs(y - expected[index % _SOUNDS]).max()) for index, y in enumerate(results)))
    points = quantiles(latencies, n=1000)
    duration = SESSIONS * CHUNKS * SECONDS
    return {
        "flowmx, real-time factor": SESSIONS * seconds / duration,
        "flowmx, processor time per chunk, us": 1e6 * cpu / (SESSIONS * CHUNKS),
        "flowmx in real time, latency, p50, ms": 1000 * points[499],
        "flowmx in real time, latency, p99, ms": 1000 * points[989],
        "flowmx in real time, later than 32 ms, %": 100 * sum(each > SECONDS for each in latencies) / len(latencies),
        "largest difference from onnxruntime": error,
    }  # fmt: skip


async def _fast(predictor: mx.serve.Predictor, sound: Samples) -> Samples:
    """Send each chunk when the one before is answered."""
    async with predictor.session() as session:
        return np.array([await session(chunk) for chunk in sound])


async def _paced(predictor: mx.serve.Predictor, sound: Samples, begin: float, latencies: list[float]) -> Samples:
    """Send a chunk every 32 ms; record the time from the moment when it is complete to its answer."""
    results = []
    async with predictor.session() as session:
        for index, chunk in enumerate(sound):
            due = begin + index * SECONDS
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            results.append(await session(chunk))
            latencies.append(time.perf_counter() - due)
    return np.array(results)


def expected_of(sound: Samples) -> Samples:
    """Return onnxruntime's results for a sound, (chunks, 1)."""
    runtime = Runtime()
    return np.concatenate([runtime.run(chunk[None]) for chunk in sound])


def single(sounds: list[Samples]) -> float:
    """Return the real-time factor of onnxruntime with one run for each chunk, on two threads."""
    chunks = 8

    def run(count: int) -> None:
        runtime = Runtime()  # the states of sessions do not change the time
        for index in range(chunks):
            for place in range(count):
                runtime.run(sounds[place % _SOUNDS][index][None])

    with ThreadPoolExecutor(THREADS) as pool:
        start = time.perf_counter()
        list(pool.map(run, [SESSIONS // THREADS] * THREADS))
    return (time.perf_counter() - start) / (chunks * SECONDS)


def batched(sounds: list[Samples]) -> float:
    """Return the real-time factor of onnxruntime with the chunks of many sessions in a run."""
    runtime = Runtime(THREADS, SESSIONS)
    chunks = np.stack([sounds[index % _SOUNDS] for index in range(SESSIONS)], 1)
    runtime.run(chunks[0])
    start = time.perf_counter()
    for each in chunks[1:]:
        runtime.run(each)
    return (time.perf_counter() - start) / ((CHUNKS - 1) * SECONDS)
