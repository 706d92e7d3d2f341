"""Text generation with SmolLM2-135M in Q4_1: one stream, a prompt of 512 tokens, 16 streams, and the event loop's lag.

A second table has the time to the first token of prompts that come while 16 streams run, and of the same prompts alone.
The bar is one step: the longest time between two tokens of a stream.

``python -m benchmarks generation`` needs the file that ``make models`` fetches. The peers are llama.cpp (``PEERS`` has
``llama.cpp/llama-bench`` and ``llama.cpp/llama-batched-bench``) and openvino-genai (installed in the environment ``ov``
of ``PEERS``). They take turns on the same two threads.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np

import flowmx as mx
from benchmarks.text_models import SMOLLM2
from benchmarks.turns import PEERS, WORKERS

STREAMS, LENGTH, PROMPT, ARRIVALS = 16, 64, 512, 80
Figures = dict[str, float]


def report(rounds: int) -> None:
    """Print tokens per second of flowmx and llama.cpp, the best of some rounds, and the ratios."""
    if not SMOLLM2.exists():
        print(f"{SMOLLM2} does not exist: make models")
        return
    systems: dict[str, Callable[[], Figures]] = {
        "llama.cpp": llama, "openvino-genai": openvino, "flowmx": lambda: asyncio.run(flowmx())
    }  # fmt: skip
    best = {system: Figures() for system in systems}
    for _ in range(rounds):
        for system, measure in systems.items():
            for name, value in measure().items():
                pick = min if name.endswith("ms") else max
                best[system][name] = pick(best[system].get(name, value), value)
    ours, peers = best.pop("flowmx"), best
    print(f"{'SmolLM2-135M, Q4_1, two threads':34} {'flowmx':>10} {'llama.cpp':>18} {'openvino-genai':>18}")
    for name, value in ours.items():
        ratios = [f" {each[name]:9.1f} {value / each[name]:6.2f}x" for each in peers.values() if name in each]
        print(f"{name:34} {value:10.1f}" + " ".join(ratios))
    for name, value in asyncio.run(first_tokens()).items():
        print(f"{name:50} {value:8.1f}")


async def flowmx() -> Figures:
    """Measure flowmx; return its figures."""
    async with mx.generation.load(SMOLLM2, max_length=2048, dtype="bfloat16", prefill_tokens=PROMPT) as generator:
        prompts = [list(range(100 + 40 * index, 132 + 40 * index)) for index in range(STREAMS)]
        for count in (1, 2):  # the first time compiles
            tokens = list(range(200 * count, 200 * count + PROMPT))
            start = time.perf_counter()
            await generator(tokens, max_tokens=1, temperature=0)
            prompt = PROMPT / (time.perf_counter() - start)
            single = await _speed(generator, [[5 + count]])
            lags: list[float] = []
            watching = asyncio.create_task(_watch(lags))
            together = await _speed(generator, [[count, *each] for each in prompts])
            watching.cancel()
    return {
        "one stream, tokens/s": single, f"a prompt of {PROMPT}, tokens/s": prompt,
        f"{STREAMS} streams, tokens/s": together, "loop lag, p99, ms": 1000 * quantiles(lags, n=100)[98],
    }  # fmt: skip


async def _speed(generator: mx.generation.Generator, prompts: list[list[int]]) -> float:
    """Return the generated tokens per second, without the first step, which computes the prompts."""
    running = [generator(prompt, max_tokens=LENGTH, temperature=0, ignore_end=True) for prompt in prompts]
    await asyncio.gather(*(anext(each) for each in running))
    start = time.perf_counter()
    await asyncio.gather(*running)
    return len(prompts) * (LENGTH - 1) / (time.perf_counter() - start)


async def first_tokens() -> Figures:
    """Measure the time to the first token under load, and without."""
    start, rng = time.perf_counter(), np.random.default_rng(0)
    async with mx.generation.load(SMOLLM2, max_length=2048, dtype="bfloat16", max_sequences=2 * STREAMS) as generator:
        await generator.warm_up()
        warming = time.perf_counter() - start
        alone = {
            length: min([await _first_token(generator, rng, length) for _ in range(5)]) for length in (16, 64, 160, 250)
        }
        gaps: list[float] = []
        streams = [asyncio.create_task(_stream(generator, [each] * 32, gaps)) for each in range(STREAMS)]
        await asyncio.sleep(1)
        gaps.clear()
        excess = []
        for length in rng.choice(list(alone), ARRIVALS):
            await asyncio.sleep(rng.uniform(0, 0.1))
            excess.append(await _first_token(generator, rng, int(length)) - alone[int(length)])
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
    figures = {f"first token of {length} tokens alone, ms": 1000 * seconds for length, seconds in alone.items()}
    return {"load and warm up, s": warming} | figures | {
        "longer with 16 streams, median, ms": 1000 * median(excess),
        "longer with 16 streams, p99, ms": 1000 * quantiles(excess, n=100)[98],
        "a step of the streams, median, ms": 1000 * median(gaps), "the longest step, ms": 1000 * max(gaps),
    }  # fmt: skip


async def _first_token(generator: mx.generation.Generator, rng: np.random.Generator, length: int) -> float:
    """Return the time to the first token of a new prompt."""
    prompt = rng.integers(1000, 40000, length).tolist()
    start = time.perf_counter()
    await anext(generator(prompt, max_tokens=1, temperature=0))
    return time.perf_counter() - start


async def _stream(generator: mx.generation.Generator, prompt: list[int], gaps: list[float]) -> None:
    """Generate for ever; record the times between tokens."""
    while True:
        latest = None
        async for _ in generator(prompt, max_tokens=1900, ignore_end=True):
            now = time.perf_counter()
            if latest is not None:
                gaps.append(now - latest)
            latest = now


async def _watch(lags: list[float]) -> None:
    """Record how much longer than a millisecond the loop takes for a sleep of one."""
    while True:
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        lags.append(time.perf_counter() - start - 0.001)


def openvino() -> Figures:
    """Measure openvino-genai; return its figures, or none if it is not installed."""
    python = PEERS / "ov" / "bin" / "python"
    command = [python, WORKERS / "openvino_text.py", SMOLLM2, LENGTH, PROMPT, STREAMS]
    if not python.exists():
        return {}
    done = subprocess.run(list(map(str, command)), capture_output=True, check=False, text=True)
    return Figures(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else {}


def llama() -> Figures:
    """Measure llama.cpp; return its figures, or none if it is not installed."""
    folder = PEERS / "llama.cpp"
    if not (folder / "llama-bench").exists():
        return {}
    bench = [folder / "llama-bench", "-m", SMOLLM2, "-t", "2", "-p", str(PROMPT), "-n", str(LENGTH), "-o", "json"]
    rows = json.loads(subprocess.run(list(map(str, bench)), capture_output=True, check=True, text=True).stdout)
    figures = {
        ("one stream, tokens/s" if row["n_gen"] else f"a prompt of {PROMPT}, tokens/s"): row["avg_ts"] for row in rows
    }
    batched = [
        folder / "llama-batched-bench", "-m", SMOLLM2, "-t", "2", "-c", "4096", "-npp", "32", "-ntg", str(LENGTH),
        "-npl", str(STREAMS), "--output-format", "jsonl",
    ]  # fmt: skip
    text = subprocess.run(list(map(str, batched)), capture_output=True, check=True, text=True).stdout
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return figures | {f"{STREAMS} streams, tokens/s": line["speed_tg"] for line in lines}
