"""Jobs launched on this machine, with small programs as workers."""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowmx.comm.launch.job import Launcher, Plan
from flowmx.comm.members import Job, JoinRequest, Members

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone")

FAST = {"FLOWMX_KVSTORE_HEARTBEAT": "0.1"}


def environ(**more):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    return inherited | FAST | more


def program(folder, text):
    path = folder / "train.py"
    path.write_text("import os, sys, signal, subprocess\nrank = int(os.environ['FLOWMX_RANK'])\n" + text)
    return [sys.executable, str(path)]


class Run:
    def __init__(self, launcher, lines):
        self.launcher, self.lines = launcher, lines

    def said(self, name):
        return [line for who, line in self.lines if who == name]


async def launch(command, on_line=None, **options):
    """Run a job; `on_line` is called with the launcher at each line."""
    lines = []

    def listen(name, line):
        lines.append((name, line))
        if on_line:
            on_line(launcher, name, line)

    launcher = Launcher(Plan(command, environ=environ(), **{"servers": 0, "grace": 5.0, **options}), listen)
    return await launcher.run(), Run(launcher, lines)


async def test_lines_go_to_standard_output_unless_a_callback_takes_them(tmp_path, capsys):
    plan = Plan(program(tmp_path, "print('hello from', rank)"), environ=environ(), servers=0, grace=5.0)
    assert await Launcher(plan).run() == 0
    assert "[worker 0] hello from 0\n" in capsys.readouterr().out
    lines = []
    assert await Launcher(plan, lambda name, line: lines.append((name, line))).run() == 0
    assert ("worker 0", "hello from 0") in lines
    assert capsys.readouterr().out == ""


NODE = """
import asyncio
from flowmx.comm.node import Node

async def main():
    async with Node.from_settings() as node:
        await node.barrier("init")
        print("rank", node.rank, "of", len(node.view.workers), "with", len(node.view.servers), "servers")
        if rank == 1 and "fail" in sys.argv:
            raise ValueError("bad data")
        if "fail" in sys.argv:
            await node.unless_gone(asyncio.Event().wait())
        while "until" in sys.argv and not os.path.exists(sys.argv[-1]):
            await asyncio.sleep(0.01)
        await node.barrier("end")

asyncio.run(main())
"""


async def test_a_job_of_two_workers_and_a_server(tmp_path):
    status, run = await launch(program(tmp_path, NODE), workers=2, servers=1)
    assert status == 0, run.lines
    for rank in (0, 1):
        assert f"rank {rank} of 2 with 1 servers" in run.said(f"worker {rank}")
    assert "INFO: the job is finished" in run.said("scheduler")


STRANGER = """
import asyncio, contextlib
from pathlib import Path
from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.errors import Unauthorized
from flowmx.comm.node import Node

async def main():
    async with Node.from_settings() as node:
        path = os.environ["FLOWMX_SECRET_FILE"]
        secret = Path(path).read_bytes()
        print(path, len(secret))
        shown = []
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # of another user, or ended meanwhile
                shown.append(each.read_bytes())
        print("shown" if any(secret in each for each in shown) else "hidden")
        async with Peer(settings.get().scheduler) as outsider:
            try:
                await outsider.call("view", {"node": "spy", "incarnation": 1})
            except Unauthorized as error:
                print("refused:", error)

asyncio.run(main())
"""


async def test_a_job_of_one_machine_has_a_secret_that_no_list_of_processes_shows(tmp_path):
    status, run = await launch(program(tmp_path, STRANGER))
    assert status == 0, run.lines
    descriptor, hidden, refused = run.said("worker 0")
    assert descriptor.startswith("/dev/fd/") and descriptor.endswith(" 64")
    assert hidden == "hidden"
    assert refused.startswith("refused: ")
    secret = run.launcher.site.secret.decode()
    assert not any(secret in line for _, line in run.lines)
    assert not any("has no secret" in line for line in run.said("scheduler"))


async def test_the_culprit_is_named_by_the_launcher_and_by_every_survivor(tmp_path):
    status, run = await launch([*program(tmp_path, NODE), "fail"], workers=2)
    assert status == 1
    assert "the job has failed because of worker 1: worker 1 on" in " ".join(run.said("launch"))
    for name in ("worker 0", "scheduler"):
        assert any("worker 1" in line and "bad data" in line for line in run.said(name)), run.lines


async def test_a_failing_program_stops_the_job_with_its_status(tmp_path):
    command = program(tmp_path, "sys.exit(3) if rank == 1 else signal.pause()")
    status, run = await launch(command, workers=2, grace=0.5)
    assert status == 3
    assert "worker 1 ended: exit status 3" in run.said("launch")
    assert all(child.status is not None for child in run.launcher._children.values())


async def test_a_killed_worker_is_started_again_under_elastic(tmp_path):
    text = f"""
mark = {str(tmp_path / "mark")!r}
if rank == 1 and not os.path.exists(mark):
    open(mark, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
print("done")
"""
    status, run = await launch(program(tmp_path, "import time\n" + text), workers=2, policy="elastic")
    assert status == 0
    assert "worker 1 ended: killed by SIGKILL" in run.said("launch")
    assert "done" in run.said("worker 0")


@pytest.mark.parametrize("name", ["scheduler", "worker 1"])
async def test_a_node_that_is_killed_in_the_middle_comes_back_under_elastic(tmp_path, name):
    def on_line(launcher, who, line):
        if line.startswith("rank") and not killed:
            killed.append(name)
            launcher._children[name].signal(signal.SIGKILL)
            done.touch()

    killed, done = [], tmp_path / "killed"
    command = [*program(tmp_path, NODE), "until", str(done)]
    status, run = await launch(command, on_line, workers=2, policy="elastic")
    assert status == 0, run.lines
    assert f"{name} is restarted (2 restarts left)" in run.said("launch")


STORE = """
import time
from pathlib import Path
import flowmx as mx

kv = mx.kv.create("dist_sync")
keys = [str(i) for i in range(8)]
kv.init(keys, [mx.nd.zeros(3)] * 8)
out = [mx.nd.zeros(3) for _ in keys]

def wait(condition):
    while not condition():
        time.sleep(0.02)

def push(value):
    kv.push(keys, [mx.nd.full(3, value)] * 8)
    kv.pull(keys, out=out)
    print("pulled", sorted({float(x) for array in out for x in array.asnumpy()}), flush=True)

push(1)
def saved_after(moment):
    times = [path.stat().st_mtime for path in Path(sys.argv[1]).iterdir() if not path.name.startswith(".")]
    return len(times) == 2 and min(times) > moment

for _ in range(2 if "all" in sys.argv else 0):  # the first may have begun before the push
    now = time.time()
    wait(lambda: saved_after(now))
print("saved", flush=True)
wait(Path(sys.argv[1] + ".killed").exists)
kv.pull(keys, out=out)
print("again", sorted({float(x) for array in out for x in array.asnumpy()}), flush=True)
push(2)
"""


@pytest.mark.parametrize(
    ("killed", "every"),
    [
        pytest.param(["server 0", "server 1"], 0.1, id="all, after a snapshot"),
        pytest.param(["server 0"], 60.0, id="one"),
    ],
)
async def test_killed_servers_are_restored_without_loss(tmp_path, killed, every):
    def on_line(launcher, who, line):
        if line == "saved":
            for name in killed:
                launcher._children[name].signal(signal.SIGKILL)
            Path(f"{folder}.killed").touch()

    folder = tmp_path / "state"
    command = [*program(tmp_path, STORE), str(folder), *(["all"] if len(killed) == 2 else [])]
    options = {"workers": 1, "servers": 2, "policy": "elastic", "snapshot": str(folder), "snapshot_every": every}
    status, run = await launch(command, on_line, **options)
    assert status == 0, run.lines
    assert [line for line in run.said("worker 0") if line.startswith(("pulled", "again"))] == [
        "pulled [1.0]",
        "again [1.0]",
        "pulled [2.0]",
    ]
    assert {f"server-{rank}.snapshot" for rank in (1, 2 - len(killed))} <= {path.name for path in folder.iterdir()}


async def test_restarts_come_to_an_end(tmp_path):
    status, run = await launch(program(tmp_path, "sys.exit(7)"), workers=1, policy="elastic", restarts=2)
    assert status == 7
    assert "worker 0 is not restarted: all 2 restarts are used up" in run.said("launch")


async def test_a_missing_program_is_reported(tmp_path):
    status, run = await launch([str(tmp_path / "missing")], workers=1)
    assert status == 127
    assert any("cannot be started: No such file" in line for line in run.said("worker 0"))


async def test_sigterm_reaches_the_workers_which_may_end_well(tmp_path):
    text = """
signal.signal(signal.SIGTERM, lambda *_: (print("draining"), sys.exit(0)))
print("ready")
signal.pause()
"""

    def on_line(launcher, name, line):
        if line == "ready":
            os.kill(os.getpid(), signal.SIGTERM)

    status, run = await launch(program(tmp_path, text), on_line, workers=1)
    assert status == 0
    assert "draining" in run.said("worker 0")


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path):
    text = """
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("processes", os.getpid(), child.pid, flush=True)
signal.pause()
"""
    command = [sys.executable, "-m", "flowmx", "launch", "--workers", "1", "--servers", "0", "--"]
    with subprocess.Popen(
        [*command, *program(tmp_path, text)], env=environ(), stdout=subprocess.PIPE, text=True
    ) as launcher:
        for line in launcher.stdout:
            if "processes" in line:
                break
        handles = [os.pidfd_open(int(number)) for number in line.split()[-2:]]
        launcher.kill()
        for handle in handles:
            assert select.select([handle], [], [], 10.0)[0], "a process outlived the launcher"
            os.close(handle)


def test_the_scheduler_is_a_command(tmp_path):
    command = [sys.executable, "-m", "flowmx", "scheduler", "--insecure", "--workers", "1"]
    command += ["--snapshot", str(tmp_path / "job")]
    with subprocess.Popen(command, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("flowmx scheduler at http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        said = process.stderr.read()
    assert (tmp_path / "job").exists()
    assert "this scheduler has no secret: it listens on the loopback address only" in said
    assert "export FLOWMX_SECRET_FILE=$PWD/flowmx.secret\n  python -m flowmx scheduler --workers 1" in said


JOINING = """
import flowmx as mx
kv = mx.kv.create("dist_sync")
kv.init(0, mx.nd.ones(2))
print("joined", flush=True)
"""


def test_a_scheduler_started_by_hand_creates_a_secret_and_prints_the_settings_of_the_others(tmp_path):
    """Users of this machine without the printed lines can neither join the job nor end it."""
    command = [sys.executable, "-m", "flowmx", "scheduler", "--workers", "1", "--servers", "1"]
    own = environ(FLOWMX_RUNTIME_FOLDER=str(tmp_path))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(subprocess.Popen(command, env=own, **pipes))
        stack.callback(scheduler.kill)
        address = scheduler.stdout.readline().removeprefix("flowmx scheduler at ").strip()
        exported = next(line for line in scheduler.stderr if line.startswith("  export "))
        variables = dict(each.split("=", 1) for each in shlex.split(exported)[1:])
        secret = Path(variables["FLOWMX_SECRET_FILE"])
        assert secret.stat().st_mode & 0o777 == 0o600 and secret.parent.stat().st_mode & 0o777 == 0o700
        assert variables["FLOWMX_SCHEDULER"] == address

        outsider = environ(FLOWMX_ROLE="worker", **{**variables, "FLOWMX_SECRET_FILE": ""})
        worker = [sys.executable, "-c", JOINING]
        refused = subprocess.run(worker, env=outsider, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode and "signed with its secret" in refused.stderr

        server = subprocess.Popen([sys.executable, "-m", "flowmx", "server"], env=environ(**variables))
        stack.callback(server.kill)
        done = subprocess.run(
            worker,
            env=environ(FLOWMX_ROLE="worker", **variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "joined\n"), done.stderr
        assert (scheduler.wait(30), server.wait(30)) == (0, 0)
        scheduler.stderr.read()
    assert not secret.exists()


def test_a_secret_that_every_user_may_read_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef0123456789abcdef")
    path.chmod(0o644)
    command = [sys.executable, "-m", "flowmx", "scheduler", "--secret-file", str(path)]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "every user of this machine may read or write it (-rw-r--r--): chmod 600" in done.stderr


def test_a_scheduler_that_others_reach_needs_a_secret():
    command = [sys.executable, "-m", "flowmx", "scheduler", "--host", "0.0.0.0"]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "flowmx: error:" in done.stderr and "Traceback" not in done.stderr


def test_a_node_that_was_lost_with_the_scheduler_can_be_given_up_at_once():
    first = Members(Job(workers=2, policy="elastic"), 0.0)
    for name in ("a", "b"):
        first.join(0.0, JoinRequest(name, "worker", 1))
    second = Members(Job(workers=2, policy="elastic"), 1.0, term=2)
    second.restore(1.0, first.snapshot())
    second.fail(1.0, "b", None, "its machine is gone")  # it has never sent a message to this scheduler
    assert second.view.at("worker", 1).why == "its machine is gone"
    assert second.join(1.0, JoinRequest("c", "worker", 2, rank=1)).rank == 1
