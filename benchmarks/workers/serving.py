"""A service of ResNet-18 for 32x32 images, on flowmx or PyTorch, until its input ends.

    python serving.py SYSTEM [aiohttp's folder]

Systems: ``flowmx``; ``flowmx_gated``, behind the gate of ``python -m flowmx serve``; ``torch_pool``, which computes
each request separately on a thread pool; ``torch_batch``, which batches waiting requests with hand-written code. It
prints its port. It answers ``POST /predict`` with .npy bodies, and ``GET /lag`` with the delays of its loop's timers
since the last call and the resident memory.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if len(sys.argv) > 2:
    sys.path.append(sys.argv[2])  # after the peer's packages

import blocks  # a module of this folder: the peers cannot import the package
import networks
import numpy as np
from aiohttp import web

MAX_BATCH, MAX_LATENCY, TICK = 32, 0.002, 0.005
lags: list[float] = []


async def watch() -> None:
    """Record how late the loop wakes this task."""
    while True:
        start = time.perf_counter()
        await asyncio.sleep(TICK)
        lags.append(1e3 * (time.perf_counter() - start - TICK))


async def lag(request: web.Request) -> web.Response:
    """Answer with the lags since the last call in milliseconds, resident megabytes, and processor time."""
    delays = np.array(lags) if lags else np.zeros(1)
    lags.clear()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    figures = {"median_ms": np.median(delays), "p99_ms": np.quantile(delays, 0.99), "max_ms": delays.max()}
    spent = {"resident_mb": pages * 4096 / 1e6, "cpu_s": time.process_time()}
    return web.json_response({**{name: float(value) for name, value in figures.items()}, **spent})


def flowmx(application: web.Application) -> Any:
    """Add flowmx's service; return its connections."""
    import flowmx as mx
    from flowmx.comm.heap import return_freed_memory
    from flowmx.serve.aiohttp_app import CONNECTIONS

    return_freed_memory()  # as `python -m flowmx serve` does
    mx.random.seed(1)
    net = blocks.network(mx.gluon, blocks.CIFAR_RESNET_18)
    net.initialize(mx.init.Xavier())
    predictor = mx.serve.Predictor(net, shape=(3, 32, 32), max_batch=MAX_BATCH, max_latency=MAX_LATENCY)
    below = mx.serve.app(predictor)
    application.add_subapp("/ml", below)
    return below[CONNECTIONS]


def guarded(connections: Any, server: Any) -> Any:
    """Return a protocol factory for connections that the service limits."""
    from flowmx.comm.connection_handler import ConnectionHandler

    return lambda: ConnectionHandler(connections, server, None)


def pytorch(application: web.Application, batching: bool) -> None:
    """Add a hand-written service with PyTorch, in the faster of its memory layouts."""
    import torch

    threads = 1 if not batching else torch.get_num_threads()
    torch.set_num_threads(threads)
    pool = ThreadPoolExecutor(2 if not batching else 1)
    net, layout = fastest(torch, 1 if not batching else MAX_BATCH)

    def compute(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            outputs = net(torch.from_numpy(images).to(memory_format=layout))
        result: np.ndarray[Any, Any] = outputs.numpy()
        return result

    loop_of = asyncio.get_event_loop
    waiting: asyncio.Queue[tuple[np.ndarray[Any, Any], asyncio.Future[Any]]] = asyncio.Queue()

    async def batches() -> None:
        while True:
            requests = [await waiting.get()]
            end = time.perf_counter() + MAX_LATENCY
            while len(requests) < MAX_BATCH:
                try:
                    requests.append(waiting.get_nowait())
                except asyncio.QueueEmpty:
                    try:
                        requests.append(await asyncio.wait_for(waiting.get(), max(0.0, end - time.perf_counter())))
                    except TimeoutError:
                        break
            outputs = await loop_of().run_in_executor(pool, compute, np.stack([image for image, _ in requests]))
            for (_, future), row in zip(requests, outputs, strict=True):
                if not future.done():
                    future.set_result(row)

    async def predict(request: web.Request) -> web.Response:
        image = np.load(io.BytesIO(await request.read()))
        if batching:
            future = loop_of().create_future()
            waiting.put_nowait((image, future))
            row = await future
        else:
            row = (await loop_of().run_in_executor(pool, compute, image[None]))[0]
        stream = io.BytesIO()
        np.save(stream, row)
        return web.Response(body=stream.getvalue(), content_type="application/x-npy")

    async def start(app: web.Application) -> None:
        app["task"] = asyncio.create_task(batches())

    application.router.add_post("/ml/predict", predict)
    if batching:
        application.on_startup.append(start)


def fastest(torch: Any, batch: int) -> tuple[Any, Any]:
    """Return the network and the memory layout that is faster for a batch."""
    timings = []
    for layout in (torch.contiguous_format, torch.channels_last):
        net = networks.module(torch, blocks.CIFAR_RESNET_18, 32).eval().to(memory_format=layout)
        data = torch.randn(batch, 3, 32, 32).to(memory_format=layout)
        with torch.inference_mode():
            timings.append((min(timed(net, data) for _ in range(4)), net, layout))
    _, net, layout = min(timings, key=lambda each: each[0])
    return net, layout


def timed(net: Any, data: Any) -> float:
    """Return the seconds of one run."""
    start = time.perf_counter()
    net(data)
    return time.perf_counter() - start


async def main(system: str) -> None:
    """Serve until the input ends."""
    watching = asyncio.create_task(watch())
    application = web.Application()
    application.router.add_get("/lag", lag)
    connections = None
    if system.startswith("flowmx"):
        connections = flowmx(application)
    else:
        pytorch(application, system == "torch_batch")
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    server: Any = runner.server
    make = guarded(connections, server) if connections is not None and system == "flowmx_gated" else server
    listener = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, backlog=1024)
    lags.clear()  # discard the lags of the start
    print(json.dumps({"port": listener.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    watching.cancel()
    listener.close()
    await runner.cleanup()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(sys.argv[1]))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loops:
            loops.run(main(sys.argv[1]))
