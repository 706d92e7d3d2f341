"""Windows: rows that workers read from a server's memory. Each read is consistent and current."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm import shared_memory
from flowmx.comm.errors import Refused
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.comm.shared_memory import PeerMemory, PeerProcess
from flowmx.kvstore.server import shared_windows as serving
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.store import Store, Value
from flowmx.kvstore.worker.shared_windows import _Window
from tests.jobs import job

pytestmark = pytest.mark.skipif(not serving.SUPPORTED, reason="needs memory that processes share, and its order")

ROWS, WIDTH = 80_000, 16  # enough for both servers to have a part
PART = Part("w", 0, 0)


def pulled(kv, rows, out=None):
    out = mx.nd.zeros((ROWS, WIDTH), stype="row_sparse") if out is None else out
    kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array(rows, dtype="int64"))
    assert out.indices.asnumpy().tolist() == sorted(set(rows))
    return out.data.asnumpy()


def until_read(kv, rows, check=lambda result: None, parts=2):
    """Pull until the memory of `parts` servers is read."""
    end, before = time.monotonic() + 20, 0
    while kv._session.windows.reads < before + parts:
        assert time.monotonic() < end, "no window was opened"
        before = kv._session.windows.reads
        check(pulled(kv, rows))


def test_rows_are_read_from_the_memory_of_both_servers():
    value = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    rows = [0, 7, 39_999, 40_000, 79_999, 7]

    def work(kv):
        kv.init("w", mx.nd.array(value))
        kv.init("small", mx.nd.ones((100, 2)))
        until_read(kv, rows, lambda result: np.testing.assert_array_equal(result, value[sorted(set(rows))]))
        before = kv._session.windows.reads
        pulled(kv, rows)
        assert kv._session.windows.reads == before + 2
        assert pulled(kv, []).shape == (0, WIDTH)
        dense = mx.nd.zeros((ROWS, WIDTH))
        kv.row_sparse_pull("w", out=dense, row_ids=mx.nd.array([3, 5]))
        assert (dense.asnumpy()[[3, 5, 6]] == [value[3], value[5], np.zeros(WIDTH)]).all()
        with pytest.raises(IndexError, match="row 80000 of key 'w' is out of range: it has 80000 rows"):
            pulled(kv, [3, 80_000])
        out = mx.nd.zeros((100, 2), stype="row_sparse")
        for _ in range(5):
            kv.row_sparse_pull("small", out=out, row_ids=mx.nd.array([1, 2]))
        out.wait_to_read()
        assert len(kv._session.windows._windows) == 2

    with job(workers=1, servers=2) as cluster:
        cluster.each(work)


@pytest.mark.parametrize("stored", ["dense", "rows"])
@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
def test_a_read_has_all_pushes_of_the_worker_and_no_later_rounds(name, stored):
    rows = list(range(0, ROWS, 101))
    gradient = mx.nd.ones((ROWS, WIDTH)) if stored == "dense" else None
    if stored == "rows":
        gradient = mx.nd.sparse.row_sparse_array((np.ones((len(rows), WIDTH), np.float32), rows), shape=(ROWS, WIDTH))

    def work(kv):
        kv.init("w", mx.nd.zeros((ROWS, WIDTH)))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        until_read(kv, rows)
        for push in range(1, 30):
            kv.push("w", gradient)
            for _ in range(1 + push % 3):
                results = pulled(kv, rows)
                if name == "dist_sync":
                    assert (results == -2 * push).all()
                else:
                    assert (results <= -push).all()
            if name == "dist_sync" and push % 10 == 0:
                kv._session.ask(lambda: kv._session.barrier([])).result(20)

        def check(results):
            assert (results == -58).all() if name == "dist_sync" else (results <= -29).all()

        until_read(kv, rows, check)

    with job(workers=2, servers=2) as cluster:
        cluster.each(work, name)


def test_every_read_is_consistent(monkeypatch):
    """Return values whose rows are all equal at any time; an update writes them in halves, with a pause in between."""
    rows = list(range(0, ROWS, 7))

    def update(store, key, value, merged):
        value.weight = mx.nd.from_numpy(np.array(value.array)) if value.weight is None else value.weight
        memory = value.weight.storage.array

        async def halves():
            memory[: len(memory) // 2] -= 1
            await asyncio.sleep(0.002)
            memory[len(memory) // 2 :] -= 1
            return Value(value.weight._host(), None, 0, value.weight)

        return halves()

    monkeypatch.setattr(Store, "update", update)

    has_read, is_enough = threading.Event(), threading.Event()

    def work(kv):
        kv.init("w", mx.nd.zeros((ROWS, WIDTH)))
        kv.set_optimizer(mx.optimizer.SGD())
        if kv.rank == 0:
            for _ in range(1000):
                kv.push("w", mx.nd.ones((ROWS, WIDTH)))
                mx.nd.waitall()
                if is_enough.is_set():
                    break
                has_read.wait(10)  # if no read is valid, the other worker requests the rows, and waits for the update
                has_read.clear()
            is_enough.set()
            return 0
        out, last = mx.nd.zeros((ROWS, WIDTH), stype="row_sparse"), np.zeros(2)
        until_read(kv, rows)
        while not is_enough.is_set():
            result = pulled(kv, rows, out)
            has_read.set()
            if kv._session.windows.reads > 100 and last.min() < -30:
                is_enough.set()
            cut = np.searchsorted(rows, ROWS // 2)
            halves = result[:cut], result[cut:]
            now = np.array([half[0, 0] for half in halves])
            assert all((half == half[0, 0]).all() for half in halves)
            assert (now <= last).all()
            last = now
        return kv._session.windows.reads

    with job(workers=2, servers=2) as cluster:
        assert cluster.each(work, "dist_async")[1] > 100


def test_a_value_replaced_by_sums_is_not_read():
    def work(kv):
        kv.init("w", mx.nd.zeros((ROWS, WIDTH)))
        until_read(kv, [1, 60_000])
        for push in range(1, 8):
            kv.push("w", mx.nd.ones((ROWS, WIDTH)) * push)
            for _ in range(5):
                assert (pulled(kv, [1, 60_000]) == push).all()

    with job(workers=1, servers=2) as cluster:
        cluster.each(work)


def test_a_view_of_the_job_closes_all_windows():
    def work(kv):
        kv.init("w", mx.nd.ones((ROWS, WIDTH)))
        epoch = kv._session.node.view.epoch
        kv.barrier()
        until_read(kv, [1, 60_000], parts=1)
        if kv.rank:
            return  # and leaves
        while kv._session.node.view.epoch == epoch:
            time.sleep(0.01)
        until_read(kv, [1, 60_000], lambda result: np.testing.assert_array_equal(result, 1), parts=1)

    with job(workers=2, servers=1) as cluster:
        cluster.each(work)


# A window


@pytest.fixture
async def windows():
    array = np.arange(serving.MIN_BYTES // 4, dtype=np.float32).reshape(-1, 64)
    slot = Slot(PART, number=1, value=Value(array))
    readable = [True]
    result = serving.Windows({PART: slot}, lambda _: readable[0])
    yield result, slot, readable
    result.close()


def reader(segment, generation, shape=(-1, 64)):
    me = PeerProcess(os.getpid(), os.getuid())
    return _Window(PeerMemory(me, segment.descriptor, segment.inode, segment.size), generation, shape, np.float32)


async def test_a_window_is_read_only_while_its_value_may_be(windows):
    windows_, slot, readable = windows
    window, into = reader(*await windows_.find(PART)), np.zeros((2, 64), np.float32)
    assert window.read(np.array([1, 3]), into)
    assert (into == slot.value.array[[1, 3]]).all()
    with pytest.raises(ValueError, match="read-only"):
        window._value[0] = 1
    readable[0] = False
    windows_.refresh()
    assert not window.read(np.array([1]), into[:1])
    readable[0] = True
    windows_.refresh()
    assert window.read(np.array([1]), into[:1])
    slot.value.weight[:] = 5.0  # an update is made in place
    await slot.value.weight
    assert window.read(np.array([1, 3]), into) and (into == 5).all()
    windows_.invalidate()
    assert not window.read(np.array([1]), into[:1])
    window = reader(*await windows_.find(PART))
    assert window.read(np.array([1]), into[:1])
    windows_._windows[PART].head[2] = time.monotonic_ns()  # as if the server was stopped for a long time
    assert not window.read(np.array([1]), into[:1])
    windows_._renew()
    assert window.read(np.array([1]), into[:1])
    slot.value = Value(np.array(slot.value.array))
    windows_.refresh()
    assert not window.read(np.array([1]), into[:1])
    again = reader(*await windows_.find(PART))
    assert again.read(np.array([1]), into[:1])
    windows_.close()
    assert not again.read(np.array([1]), into[:1])


@pytest.mark.parametrize("event", ["an update", "an update and its end", "a view", "nothing"])
async def test_a_change_during_a_read_makes_it_invalid(event, windows, monkeypatch):
    windows_, _, readable = windows
    window, into, take = reader(*await windows_.find(PART)), np.zeros((1, 64), np.float32), np.take

    def interrupted(*arguments, **options):
        take(*arguments, **options)
        if event == "a view":
            windows_.invalidate()
        if "update" in event:
            readable[0] = False
            windows_.refresh()
        if "end" in event:
            readable[0] = True
            windows_.refresh()

    monkeypatch.setattr(np, "take", interrupted)
    assert window.read(np.array([1]), into) is (event == "nothing")


async def test_a_value_changing_while_its_window_is_made_gets_none(windows, monkeypatch):
    windows_, slot, _ = windows
    copy = np.copyto

    def changed(target, source):
        copy(target, source)
        slot.number += 1

    monkeypatch.setattr(np, "copyto", changed)
    with pytest.raises(Refused, match="changed while its window was made"):
        await windows_.find(PART)
    monkeypatch.setattr(np, "copyto", copy)
    before = slot.value.array
    await windows_.find(PART)
    assert slot.value.array is not before


async def test_small_or_too_many_values_get_no_window(windows, monkeypatch):
    windows_, slot, _ = windows
    slot.value = Value(np.zeros((3, 64), np.float32))
    with pytest.raises(Refused, match="too small"):
        await windows_.find(PART)
    monkeypatch.setattr(serving, "SUPPORTED", False)
    slot.value = Value(np.zeros(serving.MIN_BYTES, np.float32))
    with pytest.raises(Refused):
        await windows_.find(PART)


CHILD = """
import sys, time
import numpy as np
from flowmx.kvstore.server.store import Store, Value
from flowmx.kvstore.server.shared_windows import Window
window = Window(Value(np.full((20_000, 64), 7, np.float32)))
window.head[1:3] = 1, time.monotonic_ns() + 10**12
window.set_open(True)
print(window.segment.descriptor, window.segment.inode, window.segment.size, flush=True)
sys.stdin.read()
"""


def test_the_memory_of_a_killed_process_is_not_trusted():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        shared = [int(item) for item in child.stdout.readline().split()]
        window = _Window(PeerMemory(PeerProcess(child.pid, os.getuid()), *shared), 1, (-1, 64), np.float32)
        into = np.zeros((2, 64), np.float32)
        assert window.read(np.array([0, 19_999]), into) and (into == 7).all()
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not window.read(np.array([0, 19_999]), into)
        with pytest.raises(shared_memory.NotLocal):
            PeerMemory(PeerProcess(child.pid, os.getuid()), *shared)
    finally:
        child.kill()
        child.communicate()


PROGRAM = """
import flowmx as mx

kv = mx.kv.create("dist_sync")
shape, rows = (80_000, 16), mx.nd.array([1, 39_999, 40_000, 79_999], dtype="int64")
kv.init("w", mx.nd.zeros(shape))
kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
out, small = mx.nd.zeros(shape, stype="row_sparse"), mx.nd.sparse.row_sparse_array
gradient = small((mx.nd.ones((4, 16)), [1, 39_999, 40_000, 79_999]), shape=shape)
windows = kv._session.windows

def check(pushed):
    kv.row_sparse_pull("w", out=out, row_ids=rows)
    assert (out.data.asnumpy() == -pushed).all(), out.data.asnumpy()

def go_on(until):
    while windows.reads < until:
        state["pushed"] += 1
        kv.push("w", gradient)
        for _ in range(20):
            check(state["pushed"])

state = {"pushed": 0}
go_on(50)
epoch = kv._session.node.view.epoch
print("reading", flush=True)
while kv._session.node.view.epoch == epoch:
    go_on(windows.reads + 1)
go_on(windows.reads + 50)  # from the server that answers now
print("exact", state["pushed"], flush=True)
"""


async def test_a_server_that_is_killed_while_its_memory_is_read_loses_nothing(tmp_path):
    def on_line(name, line):
        lines.append(line)
        if line == "reading":
            launcher._children["server 0"].signal(signal.SIGKILL)

    lines = []
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = inherited | {"FLOWMX_KVSTORE_TIMEOUT": "3"}
    plan = Plan([sys.executable, str(path)], environ=environ, workers=1, servers=2, policy="elastic", grace=5.0)
    launcher = Launcher(plan, on_line)
    assert await launcher.run() == 0, lines
    assert any(line.startswith("exact") for line in lines), lines
    assert "server 0 ended: killed by SIGKILL" in lines
