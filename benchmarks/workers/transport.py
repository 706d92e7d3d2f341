"""Two client processes and one service: 25 arrays of 4 MB from each client and back, by TCP and by shared memory.

Prints milliseconds of wall time for both clients' calls together, and MB/s over both directions.
"""

import asyncio
import json
import multiprocessing
import sys
import time

import numpy as np
import uvloop

from flowmx.comm.client import Peer
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.security import Security
from flowmx.comm.server import Service

ARRAYS, SIZE, CLIENTS, ROUNDS = 25, 1_000_000, 2, 12
SECRET = "the benchmark's own secret"


def security(kind):
    return Security(SECRET) if kind == "signed" else None


async def serve(pipe, kind):
    """Serve clients; each has separate arrays, into which requests are received and from which replies are sent."""
    stored = {}

    def place(caller, header):
        if caller.node not in stored:
            stored[caller.node] = [np.zeros(SIZE, np.float32) for _ in header["tensors"]]
        return [array.view(np.uint8).data for array in stored[caller.node]]

    async def echo(caller, message):
        return Message({}, [Tensor.of(array) for array in stored[caller.node]])

    async def echo_borrowed(caller, message):
        return Message({}, [Tensor.of(array) for array in stored[caller.node]])

    service = Service("benchmark", security=security(kind))
    service.operation("echo", echo, place)
    service.operation("borrow", echo_borrowed, borrow=True)
    pipe.send(await service.start())
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await service.stop()


async def call(number, pipe, barrier, address, kind):
    arrays = [np.random.default_rng(number).random(SIZE, np.float32) for _ in range(ARRAYS)]
    into = [np.empty_like(array) for array in arrays]
    peer = Peer(address, security=security(kind), node=f"client-{number}", local=kind not in ("tcp", "signed"))
    operation = "borrow" if kind == "borrowed" else "echo"
    await peer.call("echo", {}, arrays, into)
    for _ in range(ROUNDS):
        barrier.wait()
        start = time.monotonic()
        await peer.call(operation, {}, arrays, into)
        pipe.send((start, time.monotonic()))
    assert all(np.array_equal(a, b) for a, b in zip(arrays, into, strict=True))
    await peer.close()


def process(coroutine, *arguments):
    uvloop.run(coroutine(*arguments))


def measure(kind):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=process, args=(serve, theirs, kind))
    server.start()
    address, barrier = ours.recv(), context.Barrier(CLIENTS)
    pipes = [context.Pipe() for _ in range(CLIENTS)]
    clients = [
        context.Process(target=process, args=(call, number, pipe[1], barrier, address, kind))
        for number, pipe in enumerate(pipes)
    ]
    for client in clients:
        client.start()
    rounds = [[pipe[0].recv() for pipe in pipes] for _ in range(ROUNDS)]
    for client in clients:
        client.join()
    ours.send(None)
    server.join()
    return min(max(end for _, end in times) - min(start for start, _ in times) for times in rounds)


if __name__ == "__main__":
    moved = 2 * CLIENTS * ARRAYS * SIZE * 4 / 1e6
    figures = {}
    for kind in sys.argv[2:] or ["tcp", "signed", "shared", "borrowed"]:
        seconds = measure(kind)
        figures |= {f"{kind}_ms": 1e3 * seconds, f"{kind}_mb_per_s": moved / seconds}
    print(json.dumps(figures))
