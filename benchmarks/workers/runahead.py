"""A million operations pushed without a wait: memory and speed over time."""

import json
import time
from pathlib import Path

import flowmx as mx

TOTAL, PART = 1_000_000, 100_000
HEAVY = (64, 1024)  # 256 KiB: large enough to be queued instead of run by the push


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def loop(shape, total, part):
    x = mx.nd.ones(shape)
    for _ in range(part // 10):
        x = x + 1
    mx.nd.waitall()
    before, peak, parts = resident_mb(), 0.0, []
    for _ in range(total // part):
        start = time.perf_counter()
        for _ in range(part):
            x = x + 1
        parts.append((time.perf_counter() - start) / part * 1e6)
        peak = max(peak, resident_mb())
    mx.nd.waitall()
    return peak - before, parts


growth, parts = loop((16,), TOTAL, PART)
user = mx.engine.Variable()
before = resident_mb()
start = time.perf_counter()
for _ in range(PART):
    mx.engine.push(lambda: None, writes=[user])
pushed_us = (time.perf_counter() - start) / PART * 1e6
grown_user = resident_mb() - before
grown_heavy, _ = loop(HEAVY, 20_000, 2_000)
print(
    json.dumps(
        {
            "tiny_grown_mb": growth,
            "tiny_first_us": parts[0],
            "tiny_last_us": parts[-1],
            "user_pushes_us": pushed_us,
            "user_pushes_grown_mb": grown_user,
            "large_grown_mb": grown_heavy,
        }
    )
)
