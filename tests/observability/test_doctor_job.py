"""The doctor diagnoses the processes of a real job: late, stopped and lost ones. Slow: each test starts four."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from flowmx import settings
from flowmx.observability.doctor.command import main as doctor
from tests.ports import free_port

pytestmark = pytest.mark.soak

WORKER = """
    import sys, time
    import flowmx as mx
    kv = mx.kv.create("dist_sync")
    kv.init(3, mx.nd.zeros((4,)))
    out = mx.nd.zeros((4,))
    kv.pull(3, out)
    out.wait_to_read()
    print("ready", flush=True)
    if kv.rank == 1:
        sys.stdin.readline()  # late
    kv.push(3, mx.nd.ones((4,)))
    kv.pull(3, out)
    out.wait_to_read()  # waits for the other
    sys.stdin.readline()
"""


@contextlib.contextmanager
def job(tmp_path, **variables):
    """Start a scheduler, a server and two workers; return the processes by name."""
    port = free_port()
    (tmp_path / "worker.py").write_text(textwrap.dedent(WORKER))
    common = {
        **os.environ, "FLOWMX_RUNTIME_FOLDER": str(tmp_path), "FLOWMX_SCHEDULER": f"127.0.0.1:{port}",
        "FLOWMX_NUM_WORKERS": "2", "FLOWMX_NUM_SERVERS": "1", **variables,
    }  # fmt: skip
    flowmx = [sys.executable, "-m", "flowmx"]
    commands = {
        "scheduler": ([*flowmx, "scheduler"], {}),
        "server 0": ([*flowmx, "server"], {"FLOWMX_ROLE": "server"}),
        "worker 0": ([sys.executable, str(tmp_path / "worker.py")], {"FLOWMX_RANK": "0"}),
        "worker 1": ([sys.executable, str(tmp_path / "worker.py")], {"FLOWMX_RANK": "1"}),
    }
    processes = {}
    try:
        for name, (command, more) in commands.items():
            processes[name] = subprocess.Popen(
                command, env=common | more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True,
            )  # fmt: skip
        for name in ("worker 0", "worker 1"):
            assert processes[name].stdout.readline() == "ready\n"
        yield processes
    finally:
        for each in processes.values():
            each.kill()
            each.wait()
            each.stdin.close()
            each.stdout.close()


def diagnose(capsys, tmp_path, *processes):
    with settings.override(runtime_folder=str(tmp_path)):
        assert doctor([*(str(each.pid) for each in processes), "--seconds", "2", "--json"]) == 3
    first = json.loads(capsys.readouterr().out)["findings"][0]
    return first["kind"], first["node"], first["line"], first["text"]


def test_a_late_worker_is_named_through_the_server(capsys, tmp_path):
    with job(tmp_path) as processes:
        actual = diagnose(capsys, tmp_path, processes["worker 0"], processes["server 0"], processes["worker 1"])
    assert actual[:2] == ("a late node", "worker 1")
    assert actual[2].endswith("sys.stdin.readline()  # late")


def test_a_stopped_server_is_named(capsys, tmp_path):
    with job(tmp_path, FLOWMX_KVSTORE_TIMEOUT="60") as processes:
        processes["server 0"].send_signal(signal.SIGSTOP)
        alone = diagnose(capsys, tmp_path, processes["worker 0"])
        together = diagnose(capsys, tmp_path, processes["worker 0"], processes["server 0"])
    assert alone[:2] == ("lost peer", "server 0")
    assert together[0] == "a process that does not respond" and "it is stopped" in together[3]


def test_a_lost_worker_is_named(capsys, tmp_path):
    timing = {"FLOWMX_KVSTORE_TIMEOUT": "2", "FLOWMX_KVSTORE_HEARTBEAT": "0.5", "FLOWMX_KVSTORE_POLICY": "elastic"}
    with job(tmp_path, **timing) as processes:
        processes["worker 1"].kill()
        processes["worker 1"].wait()
        kinds = []
        for _ in range(8):  # until the scheduler has declared it gone
            kinds.append(diagnose(capsys, tmp_path, processes["worker 0"], processes["server 0"]))
            if kinds[-1][0] == "lost peer" and kinds[-1][1] == "worker 1":
                break
    assert kinds[-1][:2] == ("lost peer", "worker 1")
