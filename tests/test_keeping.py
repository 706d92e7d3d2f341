"""Disks that are full: training goes on, says so with the file's name, and fails where nothing can be kept for long."""

import asyncio
import errno
import logging
import os

import pytest

from flowmx import settings
from flowmx.checkpoint import Checkpoint, Checkpoints, Place, folder
from flowmx.comm.endings import NodeGone
from flowmx.comm.members import Job
from flowmx.comm.node import Node
from flowmx.comm.scheduler import Scheduler
from flowmx.kvstore.server import main, snapshot
from flowmx.serialization.keeping import Keeping, NothingKept

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """A disk that is full, or not; files are written by the real function."""

    def __init__(self, monkeypatch, module):
        self.full, self.tries, write = False, 0, module.replace_file

        def replace_file(path, chunks):
            self.tries += 1
            if self.full:
                raise FULL
            write(path, chunks)

        monkeypatch.setattr(module, "replace_file", replace_file)


def test_a_checkpoint_on_a_full_disk_is_said_loudly_and_those_before_it_stay(tmp_path, monkeypatch, caplog):
    disk = Disk(monkeypatch, folder)
    checkpoints = Checkpoints(tmp_path / "run", every=1)
    disk.full = True
    checkpoints.write(Checkpoint(Place(0, 1), {}))  # the first one too
    disk.full = False
    checkpoints.write(Checkpoint(Place(0, 2), {}))
    disk.full = True
    checkpoints.write(Checkpoint(Place(0, 3), {}))
    assert checkpoints.whole() == [Place(0, 2)]
    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 2
    assert "epoch-0000-batch-000003.checkpoint could not be written: No space left on device" in said[1]
    assert "could be written again" in caplog.text
    with settings.override(unsaved_timeout=0), pytest.raises(NothingKept, match=r"batch-000004\.checkpoint: No space"):
        checkpoints.write(Checkpoint(Place(0, 4), {}))


def test_it_fails_only_after_so_long_without_any():
    times = [0.0, 50.0, 99.0, 99.5, 120.0, 219.0, 220.0]
    keeping = Keeping("checkpoint", lambda: times.pop(0))
    with settings.override(unsaved_timeout=100.0):
        for _ in range(3):
            keeping.failed("a", FULL)
        keeping.written()
        for _ in range(2):
            keeping.failed("a", FULL)
        with pytest.raises(NothingKept, match=r"no checkpoint could be written for 100 s.*FLOWMX_UNSAVED_TIMEOUT"):
            keeping.failed("a", FULL)


def test_a_path_that_can_not_be_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Checkpoints(tmp_path / "file" / "run").write(Checkpoint(Place(0, 1), {}))


async def test_a_server_goes_on_without_snapshots_until_it_may_not(tmp_path, monkeypatch, caplog):
    disk = Disk(monkeypatch, snapshot)
    scheduler = Scheduler(Job(workers=1, servers=1))
    address = await scheduler.start()
    disk.full = True
    with settings.override(scheduler=address, num_servers=1, unsaved_timeout=0.3):
        server = asyncio.create_task(main.serve("127.0.0.1", 0, 1, tmp_path, every=0.05))
        async with Node.from_settings("worker") as node:
            with pytest.raises(NodeGone, match=r"server 0 .*no snapshot could be written .*server-0\.snapshot"):
                await asyncio.wait_for(node.unless_gone(asyncio.Event().wait()), 20)
        with pytest.raises(NothingKept):
            await server
    assert disk.tries > 2
    assert "server-0.snapshot could not be written: No space left on device" in caplog.text
    await scheduler.stop()
