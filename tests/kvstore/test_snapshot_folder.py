"""The folder of snapshots: a job resumes with any number of servers, and two jobs cannot use it at once."""

import asyncio
import itertools
import logging
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.comm.frames import Message, encode
from flowmx.comm.server import Service
from flowmx.errors import KVStoreError
from flowmx.kvstore.server import snapshot, snapshot_folder
from flowmx.kvstore.server import snapshot_folder as folders
from flowmx.kvstore.server.inheritance import covers
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.service import KVServer
from flowmx.kvstore.server.snapshot import SnapshotError
from flowmx.kvstore.server.snapshot_folder import Folder
from flowmx.kvstore.shards import Range
from tests.jobs import job

SHAPES = {"a": (3,), "b": (50, 4), "c": (101,), "d": (2, 3), "e": ()}
"""Shapes by key. With 30 elements a key is split: ``b`` between rows, ``c`` anywhere."""


@pytest.fixture(autouse=True)
def small_arrays_are_split():
    with settings.override(kvstore_bigarray_bound=30):
        yield


def trained(kv, steps=3, shapes=SHAPES, optimizer=None):
    """Train some steps; return the first step, and the values at the end."""
    generator = np.random.default_rng(5)
    first = {key: mx.nd.array(generator.normal(size=shape), dtype="float32") for key, shape in shapes.items()}
    kv.init(list(first), list(first.values()))
    kv.set_optimizer(optimizer or mx.optimizer.Adam(learning_rate=0.1))
    out = {key: mx.nd.zeros(shape) for key, shape in shapes.items()}
    for key, array in out.items():
        kv.pull(key, out=array)
    begun = kv.step
    for step in range(begun, begun + steps):
        for key, shape in shapes.items():
            kv.push(key, mx.nd.full(shape, step % 3 + kv.rank + 1))
            kv.pull(key, out=out[key])
    return begun, {key: array.asnumpy() for key, array in out.items()}


def run(folder, servers, *arguments, workers=2, **named):
    with job(workers, servers, snapshot=folder) as cluster:
        return cluster.each(lambda kv: trained(kv, *arguments, **named))[0]


def equal(result, expected):
    assert result.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(result[key], array, err_msg=key)


@pytest.mark.parametrize("numbers", [(2, 1, 3), (1, 2, 2), (3, 2, 4)], ids=str)
def test_a_job_resumes_with_another_number_of_servers(numbers, tmp_path):
    expected = run(None, 1, 9)[1]
    for time, servers in enumerate(numbers):
        begun, result = run(tmp_path, servers)
        assert begun == 3 * time
    equal(result, expected)  # values and the optimizer's states, to the bit
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"server-{rank}.snapshot" for rank in range(servers)]


def test_keys_may_come_in_another_order(tmp_path):
    expected = run(None, 1, 6)[1]
    run(tmp_path, 3)
    begun, result = run(tmp_path, 3, shapes=dict(reversed(SHAPES.items())))
    assert begun == 3
    equal(result, expected)


def test_files_of_the_first_format_are_resumed_from(tmp_path):
    expected = run(None, 1, 6)[1]
    run(tmp_path, 2)
    for path in tmp_path.iterdir():
        content = snapshot.load(path)
        captured = [snapshot.capture(record.record) for record in content.records]
        header = {"format": 1, "records": [packed for packed, _ in captured], "common": list(content.common)}
        path.write_bytes(b"".join(encode(Message(header, [tensor for _, tensors in captured for tensor in tensors]))))
    begun, content = run(tmp_path, 3)
    assert begun == 3
    equal(content, expected)


def test_keys_that_a_job_does_not_use_are_kept_for_the_next(tmp_path):
    first = run(tmp_path, 2)[1]
    copies = {key: first[key] for key in ("b", "c")}
    other = {key: SHAPES[key] for key in ("a", "d", "e")}
    begun, second = run(tmp_path, 3, shapes=other)
    assert begun == 3
    for servers in (1, 2):  # the first one uses no key
        with job(1, servers, snapshot=tmp_path) as cluster:
            cluster.each(lambda kv: None)
    _, result = run(tmp_path, 2, 0)
    equal(result, second | copies)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_a_job_killed_at_any_time_loses_nothing(order, tmp_path, monkeypatch):
    used, moments, save = tmp_path / "used", [], Folder.save

    async def save_and_record(self):
        while len(moments) < order.index(self._rank):
            await asyncio.sleep(0)
        await save(self)
        moments.append({path.name: path.read_bytes() for path in used.iterdir() if path.suffix == ".snapshot"})

    first = run(used, 2)[1]
    monkeypatch.setattr(snapshot_folder, "_FIRST_SNAPSHOT", 60.0)  # so that each server writes once, at its end
    monkeypatch.setattr(Folder, "save", save_and_record)
    second = run(used, 3)[1]
    monkeypatch.setattr(Folder, "save", save)
    assert len(moments) == 3
    for number, files in enumerate(moments):  # at first the others have not written yet
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        result = run(folder, 1, 0)[1]
        for key, array in result.items():
            assert any(np.array_equal(array, item[key]) for item in (first, second)), (number, key)
    equal(result, second)


def test_the_file_of_a_server_may_be_lost_where_another_has_copies(tmp_path):
    first = run(tmp_path, 2)[1]
    (tmp_path / "server-1.snapshot").unlink()
    equal(run(tmp_path, 3, 0)[1], first)


def test_missing_files_are_refused(tmp_path):
    run(tmp_path, 3)
    (tmp_path / "server-1.snapshot").unlink()
    with pytest.raises(SnapshotError, match="snapshots of a job of 3 servers, and the file of server 1 is missing"):
        Folder(tmp_path, SimpleNamespace(servers=2, replicas=0), 0, "next").restore()


def test_servers_may_have_their_files_on_separate_disks(tmp_path):
    first = run(tmp_path, 2)[1]
    results = {}
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        (tmp_path / f"server-{rank}.snapshot").rename(folder / f"server-{rank}.snapshot")
        server = KVServer("s", 1, 2, Service("kvserver"), None)
        server.replicas = 0
        Folder(folder, server, rank, "next").restore()
        half = Range(100 * rank, 100 * rank + 100, SHAPES["b"])
        results[rank] = server.inheritance.claim(Part("b", rank, rank), half).value.array
    np.testing.assert_array_equal(np.concatenate([results[0], results[1]]), first["b"])


def test_another_model_is_refused(tmp_path):
    run(tmp_path, 2)

    def work(kv):
        with pytest.raises(KVStoreError, match=r"key 'b' has the shape \[50, 4\] in the snapshots, expected \[4, 50\]"):
            trained(kv, shapes={"b": (4, 50)})

    with job(1, 1, snapshot=tmp_path) as cluster:
        cluster.each(work)
    assert run(tmp_path, 1, 0)[0] == 3  # and unchanged


def test_another_optimizer_starts_without_the_states_of_the_first(tmp_path, caplog):
    run(tmp_path, 2, optimizer=mx.optimizer.SGD(momentum=0.9))
    with caplog.at_level(logging.WARNING, "flowmx.kvstore"):
        run(tmp_path, 1, optimizer=mx.optimizer.AdaGrad())
    assert "the snapshots have states of the optimizer 'sgd'; 'adagrad' starts without them" in caplog.text


def test_the_optimizer_of_the_next_job_is_used_after_several_in_the_first(tmp_path):
    def several(kv):
        kv.init("w", mx.nd.zeros((40,)))
        for rate in (0.1, 0.2, 0.3):
            kv.set_optimizer(mx.optimizer.SGD(learning_rate=rate, momentum=0.5))
        kv.push("w", mx.nd.ones((40,)))

    def next_one(kv):
        out = mx.nd.zeros((40,))
        kv.init("w", out)
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
        kv.push("w", mx.nd.zeros((40,)))
        kv.pull("w", out=out)
        return out.asnumpy()[0]

    with job(1, 2, snapshot=tmp_path) as cluster:
        cluster.each(several)
    with job(1, 1, snapshot=tmp_path) as cluster:
        (result,) = cluster.each(next_one)
    assert result == pytest.approx(-0.3 - 0.15)  # the momentum continues


def test_a_damaged_file_is_refused(tmp_path):
    run(tmp_path, 1)
    path = tmp_path / "server-0.snapshot"
    path.write_bytes(path.read_bytes()[:-1])
    for borrow in (False, True):
        with pytest.raises(SnapshotError, match="is not a snapshot of a server, or is damaged"):
            snapshot.load(path, borrow)
    path.write_bytes(b"")
    with pytest.raises(SnapshotError, match="is not a snapshot of a server, or is damaged"):
        snapshot.load(path, borrow=True)


def test_ranges_that_cover_a_key():
    shape = (4, 5)
    assert covers([Range(10, 20, shape), Range(0, 10, shape)])
    assert covers([Range(0, 20, shape), Range(5, 7, shape)])
    assert covers([Range(0, 0, (0, 3))])
    assert not covers([])
    assert not covers([Range(0, 10, shape)])
    assert not covers([Range(0, 9, shape), Range(10, 20, shape)])


async def test_two_jobs_do_not_use_one_folder_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_EXIT_TIMEOUT", 0.0)
    first, second = (Folder(tmp_path, None, 0, name) for name in ("first", "second"))
    async with first.lock(), Folder(tmp_path, None, 1, "first").lock():  # its other servers may
        with pytest.raises(SnapshotError, match="another job, first, uses the snapshots in"):
            async with second.lock():
                pass
    async with second.lock():
        pass
    assert list(tmp_path.iterdir()) == []


HOLDER = """
import asyncio, sys
from pathlib import Path
from flowmx.kvstore.server.snapshot_folder import Folder

async def hold():
    async with Folder(Path(sys.argv[1]), None, 0, "first").lock():
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


async def test_the_lock_of_a_job_ends_with_its_servers(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE)

    async def use():
        async with Folder(tmp_path, None, 0, "second").lock():
            return not list(tmp_path.glob(".first*"))

    try:
        assert holder.stdout.readline() == b"held\n"
        using = asyncio.create_task(use())
        while not list(tmp_path.glob(".second.*")):
            await asyncio.sleep(0)
        holder.kill()
        assert await using  # processes of a killed job may take a moment to end
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
