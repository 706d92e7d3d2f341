"""Full disks: training continues, logs the file's name, and fails after too long without a saved file."""

import asyncio
import errno
import logging
import os

import pytest

from flowmx import settings
from flowmx.checkpoint import Checkpoint, Checkpoints, Place, folder
from flowmx.comm.members import Job
from flowmx.comm.node import Node
from flowmx.comm.node_errors import NodeGone
from flowmx.comm.scheduler import Scheduler
from flowmx.kvstore.server import main, snapshot
from flowmx.serialization.write_monitor import WriteMonitor, WriteTimeout

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """A disk that may be full; otherwise the original function writes the files."""

    def __init__(self, monkeypatch, module):
        self.full, self.tries, write = False, 0, module.replace_file

        def replace_file(path, chunks):
            self.tries += 1
            if self.full:
                raise FULL
            write(path, chunks)

        monkeypatch.setattr(module, "replace_file", replace_file)


def test_a_full_disk_is_logged_and_earlier_checkpoints_stay(tmp_path, monkeypatch, caplog):
    disk = Disk(monkeypatch, folder)
    checkpoints = Checkpoints(tmp_path / "run", every=1)
    disk.full = True
    checkpoints.write(Checkpoint(Place(0, 1), {}))  # an error is logged for the first one too
    disk.full = False
    checkpoints.write(Checkpoint(Place(0, 2), {}))
    disk.full = True
    checkpoints.write(Checkpoint(Place(0, 3), {}))
    assert checkpoints.intact() == [Place(0, 2)]
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "epoch-0000-batch-000003.checkpoint could not be written: No space left on device" in errors[1]
    assert "could be written again" in caplog.text
    with settings.override(unsaved_timeout=0), pytest.raises(WriteTimeout, match=r"batch-000004\.checkpoint: No space"):
        checkpoints.write(Checkpoint(Place(0, 4), {}))


def test_training_fails_after_too_long_without_a_checkpoint():
    times = [0.0, 50.0, 99.0, 99.5, 120.0, 219.0, 220.0]
    monitor = WriteMonitor("checkpoint", lambda: times.pop(0))
    with settings.override(unsaved_timeout=100.0):
        for _ in range(3):
            monitor.failed("a", FULL)
        monitor.succeeded()
        for _ in range(2):
            monitor.failed("a", FULL)
        with pytest.raises(WriteTimeout, match=r"no checkpoint could be written for 100 s.*FLOWMX_UNSAVED_TIMEOUT"):
            monitor.failed("a", FULL)


def test_an_impossible_path_is_refused_immediately(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Checkpoints(tmp_path / "file" / "run").write(Checkpoint(Place(0, 1), {}))


async def test_a_server_continues_without_snapshots_until_the_limit(tmp_path, monkeypatch, caplog):
    disk = Disk(monkeypatch, snapshot)
    scheduler = Scheduler(Job(workers=1, servers=1))
    address = await scheduler.start()
    disk.full = True
    with settings.override(scheduler=address, num_servers=1, unsaved_timeout=0.3):
        server = asyncio.create_task(main.serve("127.0.0.1", 0, 1, tmp_path, every=0.05))
        async with Node.from_settings("worker") as node:
            with pytest.raises(NodeGone, match=r"server 0 .*no snapshot could be written .*server-0\.snapshot"):
                await asyncio.wait_for(node.unless_gone(asyncio.Event().wait()), 20)
        with pytest.raises(WriteTimeout):
            await server
    assert disk.tries > 2
    assert "server-0.snapshot could not be written: No space left on device" in caplog.text
    await scheduler.stop()
