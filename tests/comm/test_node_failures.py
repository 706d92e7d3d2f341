"""Every way a worker can end, under each policy: the nodes that are notified, the launcher's status, and the sums."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flowmx.comm.launch.job import Launcher, Plan
from flowmx.comm.launch.ssh import HostSpec, SshSite

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone")

TRAIN = """
import os, signal, sys
import flowmx as mx

def ends(how):
    match how:
        case "leaves": kv.close()
        case "sys.exit(0)": sys.exit(0)
        case "sys.exit(3)": sys.exit(3)
        case "sys.exit(text)": sys.exit("no data")
        case "raise SystemExit(3)": raise SystemExit(3)
        case "exception": raise ValueError("bad data")
        case "os._exit(0)": os._exit(0)
        case "os._exit(4)": os._exit(4)
        case "SIGTERM" | "SIGKILL" | "SIGINT": os.kill(os.getpid(), getattr(signal, how))

how, mark, awaited = sys.argv[1:]
kv = mx.kv.create("dist_sync")
kv.init(0, mx.nd.zeros(2))
out, others, step = mx.nd.zeros(2), 0, 0
while others < 3:
    kv.push(0, mx.nd.ones(2))
    kv.pull(0, out=out)
    total, step = out.asnumpy()[0], step + 1
    if kv.rank == 0 and step > 4:
        others += os.path.exists(mark) and (total == 2 or not int(awaited))
        print("sum", total, flush=True)
    if kv.rank == 1 and step == 4:
        if os.path.exists(mark):
            break
        open(mark, "w").close()
        ends(how)
    if kv.closed:
        break
print("finished", flush=True)
"""

ABSENT = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[0]).parent
first = os.environ["FLOWMX_RANK"] == sys.argv[1]
while not first and not (folder / "first").exists():  # the other has ended, or is about to join
    time.sleep(0.01)
if os.environ["FLOWMX_RANK"] == "0":
    (folder / "first").touch()
    import flowmx as mx
    mx.kv.create("dist_sync")
(folder / "first").touch()
"""

FINISHED = ["leaves", "sys.exit(0)"]
FAILED = {
    "sys.exit(3)": (3, "exit status 3"),
    "sys.exit(text)": (1, "exit status 1: no data"),
    "exception": (1, "ValueError: bad data"),
    "os._exit(0)": (1, "exit status 0 without leaving the job"),
    "os._exit(4)": (4, "exit status 4"),
    "SIGTERM": (143, "terminated by SIGTERM (exit status 143)"),
    "SIGKILL": (137, "killed by SIGKILL"),
    "SIGINT": (130, "killed by SIGINT"),
}


class Run:
    """A job of two workers, of which the second ends in some way after four steps."""

    def __init__(self, folder, how, site=None, **options):
        (folder / "train.py").write_text(TRAIN)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
        environ["FLOWMX_KVSTORE_HEARTBEAT"] = "0.1"
        # Wait for a restarted worker, because a job that ends earlier does not need it.
        awaited = str(int(options.get("policy") == "elastic" and how in FAILED))
        command = [sys.executable, str(folder / "train.py"), how, str(folder / "mark"), awaited]
        self.lines = []
        self.plan = Plan(command, environ=environ, grace=5.0, **{"workers": 2, "servers": 1, **options})
        self.launcher = Launcher(self.plan, lambda *line: self.lines.append(line), site and site(self.plan))

    def lines_of(self, name):
        return [line for who, line in self.lines if who == name]


@pytest.mark.parametrize("policy", ["stop", "elastic"])
@pytest.mark.parametrize("how", FINISHED)
async def test_a_worker_that_has_finished_is_not_reported_as_lost(how, policy, tmp_path):
    run = Run(tmp_path, how, policy=policy)
    assert await run.launcher.run() == 0, run.lines
    assert run.lines_of("launch") == []
    assert "finished" in run.lines_of("worker 0")


@pytest.mark.parametrize(("how", "status", "why"), [(how, *rest) for how, rest in FAILED.items()])
async def test_under_stop_a_worker_that_fails_ends_the_job_which_names_it(how, status, why, tmp_path):
    run = Run(tmp_path, how, policy="stop")
    assert await run.launcher.run() == status, run.lines
    assert run.launcher.failure.startswith("the job has failed because of worker 1: worker 1 on ")
    assert why in run.launcher.failure
    assert "finished" not in run.lines_of("worker 0")
    assert any("worker 1" in line and why in line for line in run.lines_of("worker 0")), run.lines


@pytest.mark.parametrize(("how", "status", "why"), [(how, *rest) for how, rest in FAILED.items()])
async def test_under_elastic_a_worker_that_fails_is_named_and_started_again(how, status, why, tmp_path):
    run = Run(tmp_path, how, policy="elastic")
    assert await run.launcher.run() == 0, run.lines
    assert "worker 1 is restarted (2 restarts left)" in run.lines_of("launch")
    assert any("worker 1" in line and "is gone" in line and why in line for line in run.lines_of("worker 0")), run.lines
    assert "finished" in run.lines_of("worker 0")


@pytest.mark.parametrize("policy", ["stop", "elastic"])
@pytest.mark.parametrize("first", ["0", "1"])
async def test_a_worker_that_ends_without_joining_is_named_to_waiting_nodes(first, policy, tmp_path):
    run = Run(tmp_path, "", policy=policy)
    (tmp_path / "train.py").write_text(ABSENT)
    run.launcher.plan = replace(run.plan, command=[sys.executable, str(tmp_path / "train.py"), first])
    run.launcher.site.plan = run.launcher.plan
    assert await run.launcher.run() == 1, run.lines
    assert run.launcher.failure == "worker 1 ended without joining the job, and the other nodes wait for it"


async def test_the_launcher_returns_an_exit_status_that_python_does_not_report(tmp_path):
    run = Run(tmp_path, "raise SystemExit(3)", policy="stop")
    assert await run.launcher.run() == 3, run.lines
    assert "worker 1 ended: exit status 3" in run.lines_of("launch")


@pytest.mark.parametrize("policy", ["stop", "elastic"])
async def test_a_lone_worker_that_is_evicted_is_no_success(policy, tmp_path):
    text = "import os, signal, flowmx as mx\nkv = mx.kv.create('dist_sync')\nos.kill(os.getpid(), signal.SIGTERM)"
    run = Run(tmp_path, "", workers=1, policy=policy, restarts=0)
    (tmp_path / "train.py").write_text(text)
    assert await run.launcher.run() == 143, run.lines


STEPS = """
import os, signal
import flowmx as mx
kv = mx.kv.create("dist_sync")
keys = ["a", "b", "c"]
kv.init(keys, [mx.nd.zeros(2)] * 3)
for step in range(9):
    for key in keys:
        kv.push(key, mx.nd.ones(2))
        print("pushed", step, key, flush=True)
        if (step, key) == (2, "b"):
            os.kill(os.getpid(), signal.SIGTERM)
"""


async def test_after_sigterm_the_current_step_is_finished(tmp_path):
    run = Run(tmp_path, "", workers=1, policy="stop")
    (tmp_path / "train.py").write_text(STEPS)
    assert await run.launcher.run() == 143, run.lines
    assert [line for line in run.lines_of("worker 0") if line.startswith("pushed")][-1] == "pushed 2 c"


FAKE = Path(__file__).parent.parent / "fixtures" / "fake_ssh"


def by_ssh(plan):
    return SshSite(plan, [HostSpec("alpha", 4, "127.0.0.1")], [str(FAKE)])


@pytest.fixture(scope="module")
def by_dask():
    distributed = pytest.importorskip("distributed", reason="Dask is an extra: pip install distributed")
    from flowmx.kvstore.launching.dask import Cluster

    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=4, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield lambda plan: Cluster(plan, cluster.scheduler_address)


async def ends_elsewhere(folder, site):
    """Each policy, with a way of ending that only the node knows of, and one that only its process's parent does."""
    run = Run(folder, "SIGTERM", site, policy="stop")
    assert await run.launcher.run() == 143, run.lines
    assert "terminated by SIGTERM" in run.launcher.failure and "worker 1" in run.launcher.failure
    (folder / "mark").unlink()
    run = Run(folder, "os._exit(4)", site, policy="elastic")
    assert await run.launcher.run() == 0, run.lines
    assert any("ended: exit status 4" in line for line in run.lines_of("launch")), run.lines
    assert any(line.startswith("worker 1 is restarted") for line in run.lines_of("launch")), run.lines


@pytest.mark.soak  # each process starts Python and imports flowmx
async def test_over_ssh_the_same_table_applies(tmp_path):
    await ends_elsewhere(tmp_path, by_ssh)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # Dask's own sockets
async def test_on_dask_the_same_table_applies(tmp_path, by_dask):
    await ends_elsewhere(tmp_path, by_dask)


LOST = """
import os, sys, time
from pathlib import Path
import flowmx as mx

def wait_for_a_snapshot():
    now = time.time()
    while [path.stat().st_mtime > now for path in Path(sys.argv[2]).glob("*.snapshot")] != [True, True]:
        time.sleep(0.01)

time.sleep(3 if os.path.exists(sys.argv[1]) else 0)
kv = mx.kv.create("dist_sync")
kv.init(0, mx.nd.zeros(2))
kv.set_optimizer(mx.optimizer.create("test"))
out = mx.nd.zeros(2)
while out.asnumpy()[0] < 16:
    kv.push(0, mx.nd.ones(2))
    kv.pull(0, out=out)
    print("value", int(out.asnumpy()[0]), flush=True)
    if out.asnumpy()[0] == 8 and not os.path.exists(sys.argv[1]):
        wait_for_a_snapshot()  # which may have begun before
        wait_for_a_snapshot()
        print("saved", flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "every", [0.1, pytest.param(3600.0, marks=pytest.mark.soak, id="a job too young for the interval")]
)
async def test_workers_resume_from_the_snapshot_after_all_servers_are_lost(every, tmp_path):
    mark, folder = tmp_path / "mark", tmp_path / "snapshots"
    options = {"policy": "elastic", "servers": 2, "snapshot": str(folder), "snapshot_every": every}
    run = Run(tmp_path, "", **options)
    (tmp_path / "train.py").write_text(LOST)
    run.plan = replace(run.plan, command=[sys.executable, str(tmp_path / "train.py"), str(mark), str(folder)])
    run.plan.environ["FLOWMX_KVSTORE_TIMEOUT"] = "1"
    launcher = run.launcher = Launcher(run.plan, lambda *line: (run.lines.append(line), lose()))

    def lose():
        if not mark.exists() and "saved" in run.lines_of("worker 0") and "saved" in run.lines_of("worker 1"):
            mark.touch()
            for name in ("server 0", "server 1"):
                launcher._children[name].signal(signal.SIGKILL)

    assert await launcher.run() == 0, run.lines
    values = [int(line.split()[1]) for _, line in run.lines if line.startswith("value")]
    assert set(values[:8]) == {2, 4, 6, 8}, run.lines
    assert min(values[8:]) > 8 and max(values) >= 16, run.lines


SCHEDULER_LOST = """
import os, signal, time
import flowmx as mx
kv = mx.kv.create("dist_sync")
kv.init(0, mx.nd.zeros(2))
print("runs", flush=True)
while os.path.exists(f"/proc/{os.environ['SCHEDULER_PROCESS']}"):
    time.sleep(0.01)
"""


def test_under_stop_no_node_ends_with_0_where_the_scheduler_is_lost(tmp_path):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    quick = {"FLOWMX_KVSTORE_HEARTBEAT": "0.1", "FLOWMX_KVSTORE_TIMEOUT": "0.5", "FLOWMX_KVSTORE_RECONNECT": "1"}
    environ = inherited | quick | {"FLOWMX_NUM_WORKERS": "2", "FLOWMX_NUM_SERVERS": "1"}
    flowmx, pipe = [sys.executable, "-m", "flowmx"], subprocess.PIPE
    with contextlib.ExitStack() as stack:

        def start(command, **more):
            process = subprocess.Popen(command, env=environ | more, stdout=pipe, stderr=subprocess.STDOUT, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        scheduler = start([*flowmx, "scheduler", "--insecure"])
        line = next(line for line in scheduler.stdout if line.startswith("flowmx scheduler at "))
        address = line.removeprefix("flowmx scheduler at ").strip()
        job = {"FLOWMX_SCHEDULER": address, "SCHEDULER_PROCESS": str(scheduler.pid)}
        nodes = [start([*flowmx, "server"], **job)]
        nodes += [start([sys.executable, "-c", SCHEDULER_LOST], **job) for _ in range(2)]
        for worker in nodes[1:]:
            assert "runs\n" in iter(worker.stdout.readline, "")
        scheduler.kill()
        scheduler.wait()
        for node in nodes:
            lines_of, _ = node.communicate(timeout=30)
            assert node.returncode == 1, lines_of
            assert "the scheduler" in lines_of
