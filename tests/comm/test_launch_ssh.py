"""Jobs over ssh hosts: their notation, and whole jobs by a stand-in for ssh that runs commands on this machine."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowmx import settings
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.comm.launch.plan import ProcessSpec, job_secret
from flowmx.comm.launch.ssh import HostSpec, SshSite, parse_hosts, read_hostfile, resolve

FAKE = Path(__file__).parent.parent / "fixtures" / "fake_ssh"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone")

NODE = """
import asyncio, os, sys
from flowmx.comm.node import Node

async def main():
    async with Node.from_settings() as node:
        await node.barrier("init")
        host = os.environ["ON_HOST"]
        secret = "FLOWMX_SECRET_FILE" in os.environ
        print("rank", node.rank, "on", host, "with secret" if secret else "", os.environ.get("WANTED"), flush=True)
        if "die" in sys.argv and node.rank == 1:
            os._exit(5)
        if "wait" in sys.argv:
            await node.unless_gone(asyncio.Event().wait())
        first = node.view.at("server", 0)
        while "server" in sys.argv and not is_new(node.view.at("server", 0), first):
            await node.wait_for_change()
        await node.barrier("end")

def is_new(member, first):
    return member.state == "alive" and member.incarnation > first.incarnation

asyncio.run(main())
"""


def program(folder, *arguments):
    path = folder / "train.py"
    path.write_text(NODE)
    return [sys.executable, str(path), *arguments]


def environ(**more):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    return inherited | {"FLOWMX_KVSTORE_HEARTBEAT": "0.1"} | more


class Run:
    """Run a job; `on_line` is called with the launcher at each line."""

    def __init__(self, command, hosts, on_line=None, **options):
        self.lines = []
        more = options.pop("environ", environ())
        plan = Plan(command, environ=more, **{"servers": 0, "grace": 5.0, **options})
        self.launcher = Launcher(
            plan, self.listen, SshSite(plan, hosts, [sys.executable, f"{FAKE}.py", "-o", "BatchMode=yes"])
        )
        self.on_line = on_line

    def listen(self, name, line):
        self.lines.append((name, line))
        if self.on_line:
            self.on_line(self.launcher, name, line)

    def said(self, name):
        return [line for who, line in self.lines if who == name]


def local(*names, slots=1):
    return [HostSpec(name, slots, "127.0.0.1") for name in names]


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "ssh.log"
    monkeypatch.setenv("FAKE_SSH_LOG", str(path))
    return path


async def test_a_job_over_two_hosts(tmp_path, log):
    more = environ(WANTED="forwarded", OTHER="stays here")
    run = Run(program(tmp_path), local("alpha", "user@beta"), workers=2, servers=1, environ=more, forward=["WANTED"])
    assert await run.launcher.run() == 0, run.lines
    places = {name: host.name for name, host in run.launcher.hosts.items()}
    assert places == {"scheduler": "alpha", "server 0": "alpha", "worker 0": "user@beta", "worker 1": "alpha"}
    assert "rank 0 on user@beta with secret forwarded" in run.said("worker 0")
    assert "rank 1 on alpha with secret forwarded" in run.said("worker 1")
    assert "INFO: the job is finished" in run.said("scheduler")


async def test_the_status_is_that_of_the_failed_node_which_is_named_with_its_host(tmp_path):
    run = Run(program(tmp_path, "die"), local("alpha", "beta"), workers=2)
    assert await run.launcher.run() == 5, run.lines
    assert "worker 1 on beta ended: exit status 5" in run.said("launch")
    assert "because of worker 1" in run.launcher.failure


@pytest.mark.soak
async def test_a_host_that_does_not_answer(tmp_path):
    run = Run(program(tmp_path), local("alpha", "silent"), workers=2)
    assert await run.launcher.run() == 255, run.lines
    assert "worker 1 on silent ended: the ssh connection failed or ended (exit status 255)" in run.said("launch")
    assert "ssh: connect to host silent port 22: Connection refused" in run.said("worker 1")


async def test_under_elastic_a_worker_moves_away_from_a_host_that_does_not_answer(tmp_path):
    run = Run(program(tmp_path), local("alpha", "silent"), workers=2, policy="elastic")
    assert await run.launcher.run() == 0, run.lines
    assert "worker 1 is restarted on alpha (2 restarts left)" in run.said("launch")


async def test_a_process_dies_with_its_connection(tmp_path):
    def on_line(launcher, name, line):
        if name == "worker 1" and line.startswith("process"):
            handle.append(os.pidfd_open(int(line.split()[1])))
            launcher._children["worker 1"]._process.kill()

    path = tmp_path / "train.py"
    path.write_text("import os, signal\nprint('process', os.getpid(), flush=True)\nsignal.pause()")
    handle = []
    run = Run([sys.executable, str(path)], local("alpha", "beta"), on_line, workers=2, grace=0.5)
    assert await run.launcher.run() == 137
    assert select.select(handle, [], [], 10.0)[0], "a process outlived its connection"
    os.close(handle[0])


@pytest.mark.soak
async def test_a_signal_reaches_the_workers(tmp_path):
    def on_line(launcher, name, line):
        if line == "ready":
            os.kill(os.getpid(), signal.SIGTERM)

    path = tmp_path / "train.py"
    path.write_text(
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('draining'), sys.exit(0)))\n"
        "print('ready', flush=True)\nsignal.pause()"
    )
    run = Run([sys.executable, str(path)], local("alpha"), on_line, workers=1)
    assert await run.launcher.run() == 0, run.lines
    assert "draining" in run.said("worker 0")


@pytest.mark.soak
async def test_a_killed_server_comes_back_on_its_host_and_its_snapshots_go_with_the_job(tmp_path):
    def on_line(launcher, name, line):
        if line.startswith("rank"):
            launcher._children["server 0"].signal(signal.SIGKILL)
        if line.startswith("going on") or "server 0 is restarted" in line:
            scratch.append(Path(launcher.hosts["server 0"].scratch))
            assert scratch[0].is_dir()

    scratch = []
    command = program(tmp_path, "server")
    run = Run(command, local("alpha", "beta"), on_line, workers=1, servers=1, policy="elastic")
    assert await run.launcher.run() == 0, run.lines
    assert "server 0 on alpha ended: killed by SIGKILL" in run.said("launch")
    assert "server 0 is restarted on alpha (2 restarts left)" in run.said("launch")
    assert not scratch[0].exists()


NETWORKS = os.geteuid() == 0 and shutil.which("ip") is not None


@pytest.fixture
def namespaces():
    """Provide two simulated machines: namespaces on a separate bridge, each with its own loopback device."""
    names = [f"ns-{os.getpid()}-{number}" for number in (1, 2)]
    bridge = f"fx{os.getpid()}"[:15]

    def ip(*words, check=True):
        return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)

    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", "10.213.77.254/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names, 1):
            link = f"{bridge[:12]}v{number}"
            ip("netns", "add", name)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", link, "master", bridge, "up")
            ip("-n", name, "addr", "add", f"10.213.77.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr}")
    finally:
        for name in names:
            ip("netns", "del", name, check=False)
        ip("link", "del", bridge, check=False)


@pytest.mark.skipif(not NETWORKS, reason="network namespaces take root")
async def test_other_machines_get_a_secret_that_no_list_of_processes_shows(tmp_path, log, namespaces):
    hosts = [HostSpec(name, 1, f"10.213.77.{number}") for number, name in enumerate(namespaces, 1)]
    run = Run(program(tmp_path), hosts, workers=2, servers=1)
    secret = run.launcher.site.secret.decode()
    assert await run.launcher.run() == 0, run.lines
    assert f"rank 0 on {namespaces[1]} with secret None" in run.said("worker 0")
    assert any(line.startswith("flowmx scheduler at http://10.213.77.1:") for line in run.said("scheduler"))
    assert len(log.read_text().splitlines()) == 4
    assert secret not in log.read_text()
    assert not any(secret in line for _, line in run.lines)


# Notation


def test_a_hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# machines\nalpha slots=4\n\nuser@beta address=10.0.0.2 # the other\n")
    assert read_hostfile(path) == [HostSpec("alpha", 4), HostSpec("user@beta", 1, "10.0.0.2")]
    assert parse_hosts("a, b,c") == [HostSpec("a"), HostSpec("b"), HostSpec("c")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("alpha slots=none", "line 1: invalid literal"),
        ("\nalpha slots=0", "line 2: host alpha has slots=0"),
        ("alpha cores=2", "line 1: cores: the options after a host's name"),
        ("-oProxyCommand=x", "line 1: '-oProxyCommand=x' is not a valid host name"),
        ("alpha\nalpha", "alpha more than once"),
        ("# nothing", "names no host"),
    ],
)
def test_an_invalid_hostfile_is_refused(tmp_path, text, why):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        read_hostfile(path)


def test_unreachable_addresses_are_refused():
    assert [host.address for host in resolve([HostSpec("localhost")])] == ["127.0.0.1"]
    with pytest.raises(ValueError, match="which the other hosts cannot reach"):
        resolve([HostSpec("a", address="127.0.1.1"), HostSpec("b", address="10.0.0.2")])
    with pytest.raises(ValueError, match=r"the address of nowhere\.invalid was not found"):
        resolve([HostSpec("me@nowhere.invalid")])


def test_every_job_has_a_secret(tmp_path):
    first, second = job_secret(), job_secret()
    assert first != second
    assert len(first) == 64
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("of the user's own\n")
    assert job_secret(str(path)) == b"of the user's own"
    path.chmod(0o604)
    with pytest.raises(
        settings.SettingError, match=r"every user of this machine may read or write it \(-rw----r--\): chmod 600"
    ):
        job_secret(str(path))
    with pytest.raises(settings.SettingError, match="No such file"):
        job_secret(str(tmp_path / "none"))


def test_a_command_is_sent_unchanged_and_shows_no_secret():
    spec = ProcessSpec("worker 0", "n1", ("python", "train.py"), False, {"A": "b"}, "/work", "/tmp/x", b"\xff secret")
    assert ProcessSpec.from_json(spec.to_json()) == spec
    assert "secret" not in repr(spec)
    with pytest.raises(ValueError, match="invalid specification"):
        ProcessSpec.from_json(json.dumps({"name": "worker 0"}))


def test_the_command_line_takes_hosts(tmp_path):
    command = [sys.executable, "-m", "flowmx", "launch", "--workers", "1", "--servers", "0", "--ssh", str(FAKE)]
    path = tmp_path / "hosts"
    path.write_text("alpha address=127.0.0.1\n")
    arguments = [*command, "--hostfile", str(path), "--", *program(tmp_path)]
    done = subprocess.run(arguments, env=environ(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "[worker 0] rank 0 on alpha with secret None" in done.stdout
    refused = subprocess.run(
        [*command, "--hosts", "a", "--hostfile", str(path), "--", "true"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "not allowed with" in refused.stderr


def test_settings_reach_the_nodes():
    plan = Plan(["train"], environ={"FLOWMX_KVSTORE_TIMEOUT": "7", "FLOWMX_SECRET_FILE": "/here", "HOME": "/root"})
    with settings.override(kvstore_heartbeat=0.25):
        variables = plan.environment("worker 3", "n", "10.0.0.1", "http://10.0.0.2:1")
    assert variables["FLOWMX_KVSTORE_HEARTBEAT"] == "0.25"
    assert variables["FLOWMX_KVSTORE_TIMEOUT"] == "7"
    assert variables["FLOWMX_RANK"] == "3"
    assert not {"FLOWMX_SECRET_FILE", "HOME"} & set(variables)


def test_python_is_the_interpreter_with_flowmx():
    spec = ProcessSpec("worker 0", "n1", ("python", "train.py"), False, {})
    assert spec.argv("/opt/python") == ("/opt/python", "train.py")
    assert ProcessSpec("worker 0", "n1", ("./train",), False, {}).argv("/opt/python") == ("./train",)
