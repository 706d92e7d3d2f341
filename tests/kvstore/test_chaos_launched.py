"""Chaos in launched jobs: however a process ends, no job succeeds with wrong sums, hangs or leaves processes behind."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowmx.comm.launch.job import Launcher, Plan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone")

TRAIN = """
import ctypes, os, signal, socket, sys, time
import flowmx as mx

def cut():
    for fd in os.listdir("/proc/self/fd"):
        try:
            at = socket.socket(fileno=os.dup(int(fd)))
        except OSError:
            continue
        with at:
            if at.family == socket.AF_INET and at.type == socket.SOCK_STREAM:
                at.shutdown(socket.SHUT_RDWR)

ENDS = {
    "exit": lambda: sys.exit(3),
    "raise": lambda: (_ for _ in ()).throw(SystemExit(3)),
    "error": lambda: 1 / 0,
    "vanish": lambda: os._exit(0),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "lock": lambda: ctypes.PyDLL(None).sleep(4),  # PyDLL holds the interpreter lock in its calls
    "cut": cut,
    "": lambda: None,
}
way, victim, step, mark, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
kv = mx.kv.create("dist_sync")
size = 20_000  # more than the small disk holds
kv.init(0, mx.nd.zeros((2, size)))
kv.set_optimizer(mx.optimizer.create("test"))  # adds gradients up
mine = mx.nd.zeros((2, size))
mine[kv.rank] = 1
out = mx.nd.zeros((2, size))
kv.pull(0, out=out)
done = int(out[kv.rank, 0].asscalar())  # those of the process before this one in its place
while out[:, 0].asnumpy().min() < rounds:  # whoever is done waits for the one that was started again
    if done >= step and not os.path.exists(mark):
        print("step", done, flush=True)
        if kv.rank == victim:
            open(mark, "w").close()
            print("fault", flush=True)
            ENDS[way]()
    kv.push(0, mine if done < rounds else mine * 0)
    kv.pull(0, out=out)
    done = min(done + 1, rounds)
    if int(out[kv.rank, 0].asscalar()) != done:
        print("WRONG", done, out[:, 0].asnumpy(), flush=True)
    time.sleep(0.02)
kv.barrier()
kv.pull(0, out=out)
print("sums", *sorted(set(out.asnumpy().ravel().tolist())), flush=True)
"""

ROUNDS = 40
FAILS = ("exit", "raise", "error", "vanish", "term", "kill", "stop")
HARMLESS = ("lock", "cut", "disk", "")
SIGNALS = {"term": signal.SIGTERM, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}
NAMED = 15.0
"""Seconds in which survivors name who was lost."""


@dataclass(frozen=True)
class Case:
    """A job and its faults."""

    policy: str
    way: str
    victim: str
    step: int
    servers: int

    @property
    def succeeds(self):
        """Return whether the job succeeds: the end is harmless, or lost nodes are replaced."""
        return self.way in HARMLESS or self.policy == "elastic"


def case(seed):
    """Return the case of a seed: ways in turn, everything else random."""
    draw = random.Random(seed)
    ways = [*FAILS, *HARMLESS[:-1]]
    way, policy = ways[seed % len(ways)], draw.choice(["stop", "elastic"])
    victim = draw.choice(["worker 0", "worker 1"])
    if way in SIGNALS:
        victim = draw.choice([victim, "server 0", "server 1", "scheduler"])
    if way == "stop" and victim == "scheduler":
        victim = "server 0"  # a worker may wait for a restarted scheduler
    return Case(policy, way, victim, draw.randint(3, 25), 2)


def test_the_cases_mix_everything():
    cases = [case(seed) for seed in range(100)]
    assert {(each.policy, each.way) for each in cases} >= {(p, w) for p in ("stop", "elastic") for w in FAILS}
    assert {each.way for each in cases} == {*FAILS, *HARMLESS} - {""}
    assert {each.victim for each in cases} == {"worker 0", "worker 1", "server 0", "server 1", "scheduler"}


class Run:
    """A launched job of two workers and two servers."""

    def __init__(self, case, folder, snapshot=""):
        (folder / "train.py").write_text(TRAIN)
        self.case, self.mark, self.lines, self.fault = case, folder / "mark", [], 0.0
        self.id = uuid.uuid4().hex
        is_worker = case.victim.startswith("worker")
        way = case.way if is_worker and case.way in {*FAILS, "lock", "cut"} else ""
        command = [sys.executable, str(folder / "train.py"), way, case.victim[-1] if is_worker else "-1"]
        command += [str(case.step), str(self.mark), str(ROUNDS)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
        environ |= {
            "FLOWMX_KVSTORE_HEARTBEAT": "0.2", "FLOWMX_KVSTORE_TIMEOUT": "2", "CHAOS_JOB": self.id,
            "FLOWMX_KVSTORE_LOCAL": "0" if case.way == "cut" else "1", "TMPDIR": tempfile.gettempdir(),
            "FLOWMX_RUNTIME_FOLDER": str(folder / "run"),
        }  # fmt: skip
        plan = Plan(
            command, 2, case.servers, case.policy, restarts=6, grace=6.0, snapshot=snapshot, snapshot_every=0.5,
            environ=environ,
        )  # fmt: skip
        self.launcher = Launcher(plan, self.record_line)

    def record_line(self, name, line):
        self.lines.append((time.monotonic(), name, line))
        if line == "fault":
            self.fault = time.monotonic()
        elif line.startswith("step ") and not self.mark.exists() and not self.case.victim.startswith("worker"):
            self.mark.touch()
            self.fault = time.monotonic()
            if self.case.way in SIGNALS:
                self.launcher._children[self.case.victim].signal(SIGNALS[self.case.way])

    def lines_of(self, name, since=0.0):
        return [(at - self.fault, line) for at, who, line in self.lines if who == name and at >= since]

    def running_processes(self):
        """Return the commands of the job's processes that still run."""
        commands = []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if f"CHAOS_JOB={self.id}".encode() in (each / "environ").read_bytes():
                    commands.append((each / "cmdline").read_bytes())
            except OSError:
                continue
        return [each for each in commands if each]

    def problems(self, status):
        """Return everything that is wrong after the job has ended with this status."""
        case, problems = self.case, []
        sums = [line for _, _, line in self.lines if line.startswith("sums ")]
        if status == 0 and sums != [f"sums {ROUNDS}.0"] * 2:
            problems.append(f"success, and sums {sums}")
        if any(line.startswith("WRONG") for _, _, line in self.lines):
            problems.append("a worker saw a wrong sum")
        if (status == 0) != case.succeeds:
            problems.append(f"the status is {status}: {self.launcher.failure}")
        if not self.fault and case.way != "disk":
            problems.append("the fault did not happen")
        if case.way in FAILS:
            problems += self._find_missing_reports()
        if case.way == "disk" and not any(
            "could not be written" in line or "No space" in line for _, _, line in self.lines
        ):
            problems.append("the full disk was not reported")
        return problems + [f"left behind: {each!r}" for each in self.running_processes()]

    def _find_missing_reports(self):
        """Return the problems of surviving workers that did not report the lost node in time."""
        victim = "the scheduler" if self.case.victim == "scheduler" else self.case.victim
        survivors = [name for name in ("worker 0", "worker 1") if name != self.case.victim]
        if self.case.policy == "elastic" and victim == "the scheduler":
            return []  # it is restarted before it is missed
        return [
            f"{name} did not name {victim} in {NAMED} s"
            for name in survivors
            if not any(victim in line and at < NAMED for at, line in self.lines_of(name, self.fault))
        ]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
async def test_a_hundred_launched_jobs(seed, tmp_path, monkeypatch):
    plan = case(seed)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with ExitStack() as stack:
        snapshot = small_disk(tmp_path, stack) if plan.way == "disk" else ""
        run = Run(plan, tmp_path, snapshot)
        async with asyncio.timeout(100):
            status = await run.launcher.run(signals=False)
        problems = run.problems(status)
    problems += [f"left behind: {each}" for each in scratch.iterdir() if "kernels" not in each.name]
    shown = "\n".join(f"{at - run.fault:+7.2f} [{name}] {line}" for at, name, line in run.lines if "  File" not in line)
    assert not problems, f"{plan}: {problems}\n{shown[-12_000:]}"


def small_disk(folder, stack):
    """Mount a file system of 16 KiB; return its folder."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root mounts a small disk")
    stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
    return str(disk)
