"""Jobs without flowmx's launcher: every process takes its role from its environment."""

import os
import signal
import subprocess
import sys

import pytest

from tests.ports import free_port

PROGRAM = """
print("the program begins", flush=True)
import flowmx as mx

kv = mx.kv.create("dist_sync")  # does not return in a server, nor in the scheduler
kv.init("w", mx.nd.zeros(2))
kv.push("w", mx.nd.ones(2))
out = mx.nd.zeros(2)
kv.pull("w", out=out)
print("worker", kv.rank, "of", kv.num_workers, "pulled", out.asnumpy())
"""

NAMES = {
    "MXNet's": {
        "role": "DMLC_ROLE",
        "workers": "DMLC_NUM_WORKER",
        "servers": "DMLC_NUM_SERVER",
        "host": "DMLC_PS_ROOT_URI",
        "port": "DMLC_PS_ROOT_PORT",
    },
    "flowmx's": {"role": "FLOWMX_ROLE", "workers": "FLOWMX_NUM_WORKERS", "servers": "FLOWMX_NUM_SERVERS"},
}


def environ(names, role, port):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    variables = {names["role"]: role, names["workers"]: "2", names["servers"]: "1"}
    if "host" in names:
        return inherited | variables | {names["host"]: "127.0.0.1", names["port"]: str(port)}
    return inherited | variables | {"FLOWMX_SCHEDULER": f"http://127.0.0.1:{port}"}


@pytest.mark.parametrize("names", ["MXNet's", pytest.param("flowmx's", marks=pytest.mark.soak)])
def test_one_program_started_in_each_role(names, tmp_path):
    path, port = tmp_path / "train.py", free_port()
    path.write_text(PROGRAM)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen([sys.executable, str(path)], env=environ(NAMES[names], role, port), **pipes)
        for role in ("worker", "server", "scheduler", "worker")
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], outputs
    assert all("the program begins" in output for output in outputs)
    assert sorted(line for line in "".join(outputs).splitlines() if line.startswith("worker")) == [
        "worker 0 of 2 pulled [2. 2.]",
        "worker 1 of 2 pulled [2. 2.]",
    ]
    assert f"flowmx scheduler at http://127.0.0.1:{port}" in outputs[2]


def test_a_server_without_a_scheduler_says_what_is_missing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "FLOWMX_ROLE": "server"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "FLOWMX_SCHEDULER" in done.stderr


def test_a_scheduler_by_environment_alone_ends_at_sigterm():
    port = free_port()
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environ(NAMES["MXNet's"], "scheduler", port), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "the program begins\n"
        assert process.stdout.readline() == f"flowmx scheduler at http://127.0.0.1:{port}\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_an_invalid_address_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "flowmx", "scheduler"],
        env={**os.environ, "FLOWMX_SCHEDULER": "127.0.0.1:many"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "FLOWMX_SCHEDULER is '127.0.0.1:many', expected host:port" in done.stderr
