"""A worker that says what the job's sums are: ``pushing.py <rounds> [<pause>]``; each pushes its rank + 1.

With a pause, a round begins when the worker's input says so: tests cut connections between rounds.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import numpy as np

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.node import Node
from flowmx.comm.security import Security

SIZE = 2500  # floats of a key: several packets


async def train(rounds: int) -> None:
    """Push and pull one key on each server, so many times; check every answer."""
    config = settings.get()
    async with Node.from_settings("worker") as node:
        security = Security.from_file(config.secret_file)
        servers = node.view.alive("server")
        peers = [Peer(member.address, security=security, node=node.id) for member in servers]
        common = {"incarnation": node.incarnation}
        me = node.view.at("worker", node.rank)
        assert me is not None
        total = sum(range(1, config.num_workers + 1))

        async def init(home: int) -> None:
            header = {**common, "turn": 1, "rank": node.rank, "joined": me.epoch, "parts": [[f"w{home}", 0, home]]}
            await peers[home].call("init", header, [np.zeros(SIZE, np.float32)])

        async def pushpull(home: int, number: int) -> None:
            header = {**common, "parts": [[f"w{home}", 0, home, number]]}
            with node.during(f"pushpull of w{home}, round {number}"):
                gradient = np.full(SIZE, (node.rank + 1) * number, np.float32)
                answer = await node.unless_gone(peers[home].call("pushpull", header, [gradient]), servers[home])
            assert (answer.tensors[0].array() == total * number).all()

        try:
            await asyncio.gather(*(init(home) for home in range(len(peers))))
            await node.barrier("begin")
            for number in range(1, rounds + 1):
                print(f"round {number}", flush=True)
                await asyncio.gather(*(pushpull(home, number) for home in range(len(peers))))
            print(f"all {rounds} rounds were right", flush=True)
            await node.barrier("end")
        finally:
            for peer in peers:
                await peer.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(train(int(sys.argv[1])))
