"""Jobs on a Dask cluster: two workers with two threads each, as processes that Dask restarts when they are killed."""

import asyncio
import importlib
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from flowmx import kvstore as kv
from flowmx import settings
from flowmx.kvstore.launching import call
from tests import warm

pytestmark = [
    pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is an extra: pip install distributed"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # Dask's own sockets, of workers that are killed
]

FAST = {"FLOWMX_KVSTORE_HEARTBEAT": "0.1"}

NODE = """
import asyncio, os, sys
from flowmx.comm.node import Node

async def main():
    async with Node.from_settings() as node:
        await node.barrier("init")
        first = node.view.at("worker", 1)
        print("rank", node.rank, "process", os.getpid(), "secret" if "FLOWMX_SECRET_FILE" in os.environ else "")
        if "fail" in sys.argv and node.rank == 1:
            raise ValueError("bad data")
        if "wait" in sys.argv or "fail" in sys.argv:
            await node.unless_gone(asyncio.Event().wait())
        if node.rank == 1 and not os.path.exists(os.environ.get("mark", "/")):
            await node.unless_gone(asyncio.Event().wait())
        while "mark" in os.environ and node.rank == 0 and same(node.view.at("worker", 1), first):
            await node.wait_for_change()
        await node.barrier("end")

def same(member, first):
    return member.id == first.id or member.state != "alive"

def train():
    asyncio.run(main())

if __name__ == "__main__":
    train()
"""


@pytest.fixture(scope="module")
def distributed():
    """Import Dask only in tests that run: it takes a third of a second in each collecting process."""
    return importlib.import_module("distributed")


@pytest.fixture(scope="module")
def cluster(distributed):
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, silence_logs=50
    ) as new_cluster:
        yield new_cluster


@pytest.fixture
def client(distributed, cluster):
    with distributed.Client(cluster) as new_cluster:
        new_cluster.wait_for_workers(2)
        new_cluster.run(starting_quickly)
        yield new_cluster


def starting_quickly():
    """Make a Dask worker start Python processes as tests do."""
    if subprocess.Popen is not warm.Popen:
        warm.Popen.server = warm.Server()
        subprocess.Popen = warm.Popen


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train_on_dask.py"
    path.write_text(NODE)
    return [sys.executable, str(path)]


def lines_of(result, name):
    return [line for who, line in result.logs if who == name]


def launch(client, what, output=lambda name, line: None, **options):
    options["env"] = FAST | options.get("env", {})
    return kv.launch(client, what, output=output, **{"grace": 5.0, "servers": 0, **options})


def test_a_job_of_two_workers_and_a_server(client, program, capsys):
    job = launch(client, program, output=None, workers=2, servers=1)
    result = job.result(60)
    assert result.ok, result.logs
    assert job.done()
    shown = capsys.readouterr().out
    for rank in (0, 1):
        assert any(line.startswith(f"rank {rank} process") for line in lines_of(result, f"worker {rank}"))
        assert f"[worker {rank}] rank {rank} process" in shown
    dask = set(client.scheduler_info()["workers"])
    assert set(result.placement) == {"scheduler", "server 0", "worker 0", "worker 1"}
    assert {result.placement["worker 0"], result.placement["worker 1"]} == dask


def test_a_killed_dask_worker_is_reported_and_its_nodes_are_replaced(client, program, tmp_path):
    def heard(name, line):
        if name == "worker 1" and line.startswith("rank") and not killed:
            killed.append(job.placement["worker 1"])
            mark.touch()
            os.kill(processes[killed[0]], signal.SIGKILL)

    mark, killed = tmp_path / "mark", []
    processes = client.run(os.getpid)
    job = launch(client, program, heard, workers=2, servers=1, policy="elastic", env={"mark": str(mark)})
    result = job.result(60)
    assert result.ok, result.logs
    lines = lines_of(result, "launch")
    assert f"worker 1 on {killed[0]} ended: the Dask worker {killed[0]} is lost" in lines
    assert any(line.startswith("worker 1 is restarted on tcp://") for line in lines)
    assert result.placement["worker 1"] != killed[0]
    assert not list(tmp_path.glob("flowmx-*"))


def test_the_culprit_is_named_with_its_dask_worker_and_its_reason(client, program):
    result = launch(client, [*program, "fail"], workers=2).result(60)
    assert result.status == 1
    where = result.placement["worker 1"]
    assert f"because of worker 1 on {where}: " in result.failure
    assert "bad data" in result.failure


def test_nothing_is_left_after_cancelling(distributed, client, program):
    def heard(name, line):
        if line.startswith("rank"):
            handles.append(os.pidfd_open(int(line.split()[3])))
            if len(handles) == 2:
                job.cancel()

    handles = []
    job = launch(client, [*program, "wait"], heard, workers=2)
    with pytest.raises((asyncio.CancelledError, distributed.CancelledError)):
        job.result(60)
    for handle in handles:
        assert select.select([handle], [], [], 10.0)[0], "a process outlived its job"
        os.close(handle)
    assert not client.run(_running)[job.placement["worker 0"]]


def _running():
    from flowmx.kvstore.launching import dask_task

    return list(dask_task._running)


def test_nothing_is_left_when_the_client_is_killed(cluster, program):
    text = f"""
import distributed, sys
from flowmx import kvstore as kv
if __name__ == "__main__":
    client = distributed.Client({cluster.scheduler_address!r})
    kv.launch(client, {[*program, "wait"]!r}, workers=2, servers=0).result()
"""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", text], stdout=subprocess.PIPE, text=True, env={**os.environ, **FAST}
    ) as process:
        handles = []
        while len(handles) < 2:
            words = process.stdout.readline().split()
            handles += [os.pidfd_open(int(words[words.index("process") + 1]))] if "process" in words else []
        process.kill()
        for handle in handles:
            assert select.select([handle], [], [], 20.0)[0], "a process outlived its client"
            os.close(handle)


@pytest.mark.soak
def test_more_processes_than_slots_run_too(client, program):
    result = launch(client, program, workers=6).result(60)
    assert result.ok, result.logs
    counts = Counter(host for name, host in result.placement.items() if name != "scheduler")
    assert sorted(counts.values()) == [3, 3]


async def test_an_asynchronous_client_awaits_a_function_with_the_jobs_secret(distributed, cluster, program, tmp_path):
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("what all the nodes of this job share")
    async with distributed.Client(cluster.scheduler_address, asynchronous=True) as client:
        with settings.override(secret_file=str(path)):
            job = launch(client, "train_on_dask:train", workers=1, folder=str(tmp_path))
            with pytest.raises(RuntimeError, match="await job"):
                job.result()
            result = await asyncio.wait_for(job, 60)
    assert result.ok, result.logs
    assert any(line.startswith("rank 0") and line.endswith("secret") for line in lines_of(result, "worker 0"))


@pytest.mark.soak
def test_the_command_line_takes_a_cluster(cluster, program):
    command = [sys.executable, "-m", "flowmx", "launch", "--cluster", cluster.scheduler_address, "--servers", "0"]
    done = subprocess.run(
        [*command, "--", *program], env={**os.environ, **FAST}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "[worker 0] rank 0 process" in done.stdout


def test_invalid_launches_are_refused(client):
    def inner(): ...

    with pytest.raises(ValueError, match="cannot be imported by other processes"):
        launch(client, inner)
    with pytest.raises(ValueError, match="workers is 0, expected a number of at least 1"):
        launch(client, "python train.py", workers=0)
    with pytest.raises(TypeError, match="machines"):
        launch(client, "python train.py", machines=3)


@pytest.mark.parametrize("env", [None, {"DATA": "/data"}])
def test_only_the_variables_of_env_are_forwarded(env, monkeypatch):
    monkeypatch.setenv("HERE", "stays")
    plans = []
    monkeypatch.setattr("flowmx.kvstore.launching.job.Job", lambda plan, *_, **__: plans.append(plan))
    kv.launch("ray", ["python", "train.py"], env=env)
    (plan,) = plans
    assert tuple(plan.forward) == tuple(env or ())
    assert dict(plan.environ) == {**os.environ, **(env or {})}


def test_a_function_by_name():
    assert call.find("os.path:join") is os.path.join
    assert call.name_of(call.find) == "flowmx.kvstore.launching.call:find"
    for wrong in ("os.path", "os.path:missing", "nowhere:f", "os:sep"):
        with pytest.raises(ValueError, match="function"):
            call.find(wrong)


async def test_the_connection_of_a_nodes_worker_to_the_scheduler_is_closed(monkeypatch):
    from flowmx.kvstore.launching import dask_task

    class Line:
        closed = False

        async def call(self, *_, **__):
            raise asyncio.CancelledError

        async def close(self):
            self.closed = True

    line = Line()
    monkeypatch.setattr(dask_task, "connect_to", lambda *_: line)
    with pytest.raises(asyncio.CancelledError):
        await dask_task.TaskProcess._send_views(
            SimpleNamespace(address="http://127.0.0.1:9", spec=SimpleNamespace(secret=None))
        )
    assert line.closed


async def test_a_task_that_fails_says_why():
    from flowmx.kvstore.launching.dask import DaskProcess

    lines_of = []

    async def fails():
        raise ModuleNotFoundError("No module named 'flowmx'")

    spec = SimpleNamespace(name="worker 0", node="w0")
    instance = DaskProcess(
        SimpleNamespace(name="tcp://a"), spec, "key", fails(), lambda *line: lines_of.append(line), False
    )
    assert await instance.ended == 1
    assert lines_of == [("worker 0", "its Dask task failed: ModuleNotFoundError: No module named 'flowmx'")]
    assert (instance.status, instance.lost, instance.status_text) == (1, False, "exit status 1")
