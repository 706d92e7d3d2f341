"""Servers in a real job: the scheduler, two servers and a worker, over sockets."""

import asyncio
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.members import Job
from flowmx.comm.node import Node
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security
from flowmx.errors import KVStoreError
from flowmx.kvstore.server import main

SERVERS = 2


async def push_and_pull(node, rounds, security=None):
    """Train one key on each server: a worker in a few lines."""
    peers = [Peer(member.address, security=security, node=node.id) for member in node.view.alive("server")]
    common = {"incarnation": node.incarnation}
    joined = node.view.at("worker", node.rank).epoch
    part = ["w", 0, 0]
    header = {**common, "turn": 1, "rank": node.rank, "joined": joined, "parts": [part]}
    start = (await peers[0].call("init", header, [np.zeros(5, np.float32)])).header["numbers"][0]
    for number in range(start + 1, start + rounds + 1):
        answer = await peers[0].call(
            "pushpull", {**common, "parts": [[*part, number]]}, [np.full(5, number, np.float32)]
        )
        assert answer.tensors[0].array().tolist() == [number] * 5
    for peer in peers:
        await peer.close()
    return start + rounds


@pytest.mark.parametrize("secret", [False, True])
async def test_a_job_with_two_servers_ends_when_its_worker_leaves(tmp_path, secret):
    file = tmp_path / "secret"
    file.write_text("a secret of more than thirty-two characters")
    file.chmod(0o600)
    security = Security.from_file(file) if secret else None
    scheduler = Scheduler(Job(workers=1, servers=SERVERS), security=security)
    address = await scheduler.start()
    with settings.override(scheduler=address, num_servers=SERVERS, secret_file=str(file) if secret else ""):
        folder = tmp_path / "state"
        servers = [asyncio.create_task(main.serve("127.0.0.1", 0, SERVERS, folder)) for _ in range(SERVERS)]
        async with Node.from_settings("worker") as node:
            assert await push_and_pull(node, 3, security) == 3
        await asyncio.wait_for(asyncio.gather(*servers), 30)
        assert sorted(path.name for path in folder.iterdir()) == ["server-0.snapshot", "server-1.snapshot"]
    await scheduler.stop()

    scheduler = Scheduler(Job(workers=1, servers=1), security=security)  # another job resumes from there
    address = await scheduler.start()
    with settings.override(scheduler=address, num_servers=1, secret_file=str(file) if secret else ""):
        server = asyncio.create_task(main.serve("127.0.0.1", 0, 1, folder))
        async with Node.from_settings("worker") as node:
            assert await push_and_pull(node, 1, security) == 4
        await asyncio.wait_for(server, 30)
    await scheduler.stop()


async def test_sigterm_ends_a_server_cleanly():
    scheduler = Scheduler(Job(workers=1, servers=1, policy="elastic"))
    address = await scheduler.start()
    command = [sys.executable, "-c", "from flowmx.kvstore.server.main import main; raise SystemExit(main([]))"]
    server = subprocess.Popen(command, env={**os.environ, "FLOWMX_SCHEDULER": address})
    with settings.override(scheduler=address):
        async with Node.from_settings("worker") as node:
            await push_and_pull(node, 1)
            server.send_signal(signal.SIGTERM)
            while node.view.alive("server"):
                await node.wait_for_change()
            assert node.view.at("server", 0).why == "terminated by SIGTERM (exit status 143)"
            assert await asyncio.get_running_loop().run_in_executor(None, server.wait, 30) == 143
    await scheduler.stop()


def test_outside_a_job_the_missing_setting_is_named(caplog):
    assert main.main([]) == 1
    assert "FLOWMX_SCHEDULER" in caplog.text


def test_a_store_without_servers_is_refused_at_once():
    with settings.override(scheduler="127.0.0.1:1", num_servers=0), pytest.raises(KVStoreError, match="--servers 1"):
        mx.kv.create("dist_sync")
