"""Liveness reports without the interpreter lock: a busy node is alive; a stopped, killed or unreachable one is not."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import pytest

from flowmx import settings
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.comm.members import Denied, Job, JoinRequest, Members
from flowmx.comm.node import Node
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security
from flowmx.comm.timing import Timing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a process for this on Linux alone")


def running(policy="elastic", busy=600.0):
    members = Members(Job(2, policy=policy, busy=busy), 0.0)
    for name in "ab":
        members.join(0.0, JoinRequest(name, "worker", 1))
    return members


def pass_time(members, start, end, *pulsing):
    for now in range(start, end + 1):
        for name in pulsing:
            with contextlib.suppress(Denied):  # it is gone
                members.pulse(now, name, 1, now)
        members.tick(float(now))


def test_a_node_whose_process_runs_is_alive_and_one_of_which_nothing_is_heard_is_not():
    members = running()
    pass_time(members, 1, 40, "a")
    assert [member.id for member in members.view.workers] == ["a"]
    assert members.view.lost[0].why == "silent for 11.0 s"


def test_a_node_may_be_busy_for_a_limited_time():
    members = running(busy=30.0)
    pass_time(members, 1, 40, "a", "b")
    assert len(members.view.workers) == 2
    members.heartbeat(40.0, "b", 1, 1, members.term)
    pass_time(members, 41, 60, "a", "b")
    assert [member.id for member in members.view.workers] == ["b"]
    assert members.view.lost[0].why == "silent for 41.0 s"


def test_late_messages_and_those_of_another_start_are_ignored():
    members = running()
    pass_time(members, 1, 5, "a")
    for now in range(6, 16):
        members.pulse(now, "a", 1, 5)
        members.tick(float(now))
    members.tick(16.0)
    assert not members.view.workers
    for node, incarnation in (("a", 1), ("b", 2), ("nobody", 1)):
        with pytest.raises(Denied):
            members.pulse(20.0, node, incarnation, 99)


HOLDS = """
import ctypes, os, signal, sys
import flowmx as mx
kv = mx.kv.create("dist_sync")
kv.init(0, mx.nd.zeros(2))
out = mx.nd.zeros(2)
for step in range(4):
    if (kv.rank, step) == (1, 2):
        if sys.argv[1] == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        ctypes.PyDLL(None).usleep(6_000_000)  # holds the interpreter lock, unlike CDLL, for twice the timeout
    kv.push(0, mx.nd.ones(2))
    kv.pull(0, out=out)
    print("sum", out.asnumpy()[0], flush=True)
"""


async def job(folder, what):
    (folder / "train.py").write_text(HOLDS)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = inherited | {"FLOWMX_KVSTORE_HEARTBEAT": "0.1", "FLOWMX_KVSTORE_TIMEOUT": "3"}
    lines = []
    with settings.override(kvstore_heartbeat=0.1, kvstore_timeout=3.0):
        plan = Plan([sys.executable, str(folder / "train.py"), what], 2, 1, environ=environ, grace=2.0)
        launcher = Launcher(plan, lambda *line: lines.append(line))
        return await launcher.run(), launcher.failure, lines


async def test_a_call_that_holds_the_interpreter_lock_is_waited_for(tmp_path):
    status, failure, lines = await job(tmp_path, "busy")
    assert (status, failure) == (0, ""), lines
    assert lines.count(("worker 0", "sum 2.0")) == 4


async def test_a_stopped_process_is_lost(tmp_path):
    status, failure, lines = await job(tmp_path, "stopped")
    assert status == 137, lines
    assert "worker 1 on" in failure and "is gone: silent for" in failure


NODE = """
import asyncio, os, sys
from flowmx.comm.node import Node

async def main():
    async with Node.from_settings():
        print("runs", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


@pytest.mark.parametrize("secret", ["", "a secret of the job's own"])
async def test_without_a_launcher_a_killed_process_is_known_at_once(secret, tmp_path):
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text(secret)
    security = Security(secret) if secret else None
    scheduler = Scheduler(Job(2, timeout=500.0, policy="elastic"), security=security)
    address = await scheduler.start()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = {"FLOWMX_SCHEDULER": address, "FLOWMX_KVSTORE_TIMEOUT": "500", "FLOWMX_KVSTORE_HEARTBEAT": "0.1"}
    if secret:
        environ["FLOWMX_SECRET_FILE"] = str(tmp_path / "secret")
    with subprocess.Popen([sys.executable, "-c", NODE], env=inherited | environ, stdin=subprocess.PIPE) as process:
        async with Node("worker", address, timing=Timing(0.1, 500.0), security=security) as node:
            other = next(place for place in scheduler.members.places.values() if place.member.id != node.id)
            async with asyncio.timeout(20):
                while other.pulse < 2:
                    await asyncio.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            async with asyncio.timeout(20):
                while not node.view.lost:
                    await node.wait_for_change()
            assert node.view.lost[0].why == "its process ended without leaving the job"
    await scheduler.stop()
