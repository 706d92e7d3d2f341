"""Jobs on a Ray cluster: two nodes of two CPUs each, on this machine."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from concurrent.futures import CancelledError

import pytest

from flowmx import kvstore as kv
from tests.kvstore.test_launch_dask import FAST, NODE, lines_of

ray = pytest.importorskip("ray", reason="Ray is an extra of 250 MB: pip install ray")
from ray.cluster_utils import Cluster  # noqa: E402 - only where it is

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster():
    result = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    result.add_node(num_cpus=2)
    ray.init(result.address, log_to_driver=False, logging_level="ERROR")
    yield result
    ray.shutdown()
    result.shutdown()


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train_on_ray.py"
    path.write_text(NODE)
    return [sys.executable, str(path)]


def launch(what, output=lambda name, line: None, **options):
    options["env"] = FAST | options.get("env", {})
    return kv.launch("ray", what, output=output, **{"grace": 5.0, "servers": 0, **options})


def test_a_job_of_two_workers_and_a_server(cluster, program):
    result = launch(program, workers=2, servers=1).result(100)
    assert result.ok, result.logs
    for rank in (0, 1):
        assert any(line.startswith(f"rank {rank} process") for line in lines_of(result, f"worker {rank}"))
    assert set(result.placement) == {"scheduler", "server 0", "worker 0", "worker 1"}
    assert len(set(result.placement.values())) == 2


async def test_a_function_is_awaited(cluster, program, tmp_path):
    result = await asyncio.wait_for(launch("train_on_ray:train", workers=1, folder=str(tmp_path)), 100)
    assert result.ok, result.logs
    assert any(line.startswith("rank 0") and line.endswith("secret") for line in lines_of(result, "worker 0"))


def test_the_culprit_is_named_with_its_node_and_its_reason(cluster, program):
    result = launch([*program, "fail"], workers=2).result(100)
    assert result.status == 1
    assert f"because of worker 1 on {result.placement['worker 1']}: " in result.failure
    assert "bad data" in result.failure


def test_nothing_is_left_after_cancelling(cluster, program):
    def heard(name, line):
        if line.startswith("rank"):
            handles.append(os.pidfd_open(int(line.split()[3])))
            if len(handles) == 2:
                job.cancel()

    handles = []
    job = launch([*program, "wait"], heard, workers=2)
    with pytest.raises(CancelledError):
        job.result(100)
    for handle in handles:
        assert select.select([handle], [], [], 10.0)[0], "a process outlived its job"
        os.close(handle)


LOST = """
import asyncio, os
from flowmx.comm.node import Node

async def main():
    async with Node.from_settings() as node:
        await node.barrier("init")
        begun = {rank: node.view.at("worker", rank).id for rank in range(3)}
        print("rank", node.rank, "waits", flush=True)
        again = os.path.exists(os.environ["mark"])
        while not again and not any(changed(node, rank, id) for rank, id in begun.items()):
            await node.wait_for_change()
        await node.barrier("end")

def changed(node, rank, id):
    member = node.view.at("worker", rank)
    return member.state == "alive" and member.id != id

asyncio.run(main())
"""


@pytest.mark.parametrize("policy", ["stop", "elastic"])
def test_a_lost_ray_node_is_named_and_its_processes_are_replaced(cluster, tmp_path, policy):
    def heard(name, line):
        waiting.update({name} if line.endswith("waits") else ())
        if len(waiting) == 3 and not mark.exists():
            mark.touch()
            (raylet,) = extra.all_processes["raylet"]
            os.kill(raylet.process.pid, signal.SIGKILL)

    path, mark, waiting = tmp_path / "lost_on_ray.py", tmp_path / "mark", set()
    path.write_text(LOST)
    extra = cluster.add_node(num_cpus=2)
    try:
        result = launch([sys.executable, str(path)], heard, workers=3, policy=policy, env={"mark": str(mark)}).result(
            150
        )
    finally:
        cluster.remove_node(extra, allow_graceful=False)
    record = [line for name, line in result.logs if "the Ray node" in line]
    assert record or "the Ray node" in result.failure, result.logs
    assert result.ok == (policy == "elastic"), result.logs


def test_more_processes_than_cpus_run_too(cluster, program):
    result = launch(program, workers=6).result(100)
    assert result.ok, result.logs


def test_the_command_line_takes_a_cluster(cluster, program):
    command = [sys.executable, "-m", "flowmx", "launch", "--ray", cluster.address, "--servers", "0", "--", *program]
    done = subprocess.run(command, env={**os.environ, **FAST}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "[worker 0] rank 0 process" in done.stdout


def test_without_a_cluster_the_error_says_so(monkeypatch, program):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"ray\.init"):
        launch(program).result(100)
