"""The folder of a job's snapshots: locking, restoring, and saving without losing the values of earlier jobs.

Each server writes ``server-<rank>.snapshot``. A job that resumes from the files of an earlier one replaces them.
Therefore a server's file also contains the records of the file that it replaces, until this job has all elements of a
key: whenever the job is killed, the folder is complete. The records in files of ranks that this job
does not have are distributed over its servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from flowmx.kvstore.server.inheritance import Inheritance, covers
from flowmx.kvstore.server.optimizers import configs_of
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.service import KVServer
from flowmx.kvstore.server.snapshot import SavedRecord, Snapshot, SnapshotError, capture, load, save
from flowmx.kvstore.shards import Key, Range
from flowmx.serialization.locks import hold, is_held
from flowmx.serialization.write_monitor import WriteMonitor

__all__ = ["Folder", "snapshots"]

log = logging.getLogger("flowmx.kvstore")

_NAME = re.compile(r"server-(\d{1,9})\.snapshot")
_MAX_READS = 100
_EXIT_TIMEOUT = 5.0
"""Seconds to wait for the servers of an ended job to exit."""
_FIRST_SNAPSHOT = 1.0
"""Seconds until the first snapshot."""


class Folder:
    """The folder, as one server uses it.

    Args:
        path: the folder; it is created if it does not exist.
        server: the server.
        rank: the rank of the server.
        job: the unique name of the job.
    """

    def __init__(self, path: Path, server: KVServer, rank: int, job: str) -> None:
        self.path = path
        self.file = path / f"server-{rank}.snapshot"
        self._server, self._rank, self._job = server, rank, job
        self._generation = 1
        self._old_records: list[SavedRecord] = []
        self._surplus: list[Path] = []

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Lock the folder against other jobs; the lock ends with this process.

        Raises:
            SnapshotError: another job uses the folder.
            OSError: the folder cannot be created.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with hold(self.path / f".{_file_name_part(self._job)}.{secrets.token_hex(4)}.job"):
            deadline = time.monotonic() + _EXIT_TIMEOUT
            while (job := self._holder()) != _file_name_part(self._job):
                if time.monotonic() > deadline:
                    raise SnapshotError(
                        f"another job, {job}, uses the snapshots in {self.path}: use a separate folder for each job"
                    )
                await asyncio.sleep(0.05)
            yield

    def _holder(self) -> str:
        """Return the job that locked the folder first, among jobs with live servers."""
        lock_times: dict[str, float] = {}
        for lock in self.path.glob(".*.job"):
            job = lock.name.split(".")[1]
            with contextlib.suppress(FileNotFoundError):
                lock_time = lock.stat().st_mtime
                if job == _file_name_part(self._job) or is_held(lock):
                    lock_times[job] = min(lock_time, lock_times.get(job, lock_time))
        return min(lock_times, key=lambda job: (lock_times[job], job), default=_file_name_part(self._job))

    def restore(self) -> None:
        """Restore the server from the folder.

        Raises:
            SnapshotError: a file is damaged, or files of an earlier job are missing.
            OSError: a file cannot be read.
        """
        files = self._read()
        if not files:
            return
        job_snapshots = [snapshot for snapshot in files.values() if snapshot.job == self._job]
        self._generation = (
            job_snapshots[0].generation
            if job_snapshots
            else 1 + max(snapshot.generation for snapshot in files.values())
        )
        records_by_rank = {rank: [saved for saved in snapshot.records if saved.generation < self._generation]
                     for rank, snapshot in files.items()}  # fmt: skip
        complete = self._check_files(files)
        servers = self._server.servers
        self._old_records = [
            saved for rank in records_by_rank if rank % servers == self._rank for saved in records_by_rank[rank]
        ]
        self._surplus = [self._path(rank) for rank in files if rank >= servers and rank % servers == self._rank]
        newest = max(files.values(), key=lambda snapshot: (snapshot.generation, snapshot.common[0]))
        self._server.inheritance = Inheritance(
            (saved for snapshot in records_by_rank.values() for saved in snapshot),
            configs_of(newest.common[1]),
            complete,
        )
        own_file = files.get(self._rank)
        records = (
            [] if own_file is None else [saved for saved in own_file.records if saved.generation == self._generation]
        )
        version, config = newest.common
        self._server.restore_records(records, (version, config if job_snapshots else _drop_order(config)))
        log.info("resuming from the snapshots in %s", self.path)

    def _path(self, rank: int) -> Path:
        return self.path / f"server-{rank}.snapshot"

    def _read(self) -> dict[int, Snapshot]:
        """Return a consistent set of files, by rank."""
        for _ in range(_MAX_READS):
            signature = self._signature()
            try:
                files = {rank: load(self._path(rank), borrow=True) for rank in signature}
            except FileNotFoundError:
                continue
            if self._signature() == signature:
                return files
        raise SnapshotError(f"the files in {self.path} keep changing: does another program write there?")

    def _signature(self) -> dict[int, tuple[int, int]]:
        signature = {}
        for path in self.path.iterdir():
            if match := _NAME.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    signature[int(match[1])] = (status.st_ino, status.st_mtime_ns)
        return signature

    def _check_files(self, files: dict[int, Snapshot]) -> bool:
        """Return whether the folder has the files of all servers of an earlier job, or of their backups.

        Raises:
            SnapshotError: files are missing, and this server needs them.
        """
        oldest = min(files.values(), key=lambda snapshot: snapshot.generation)
        count = oldest.servers
        if oldest.generation == self._generation or not count:
            return True
        has_backups = self._server.replicas and count > 1
        missing = [
            rank for rank in range(count) if rank not in files and not (has_backups and (rank + 1) % count in files)
        ]
        if missing and not (count == self._server.servers and self._rank in files):
            raise SnapshotError(
                f"{self.path} has snapshots of a job of {count} servers, and the file of server {missing[0]} is "
                f"missing: this job of {self._server.servers} servers needs one folder with all files, shared by all "
                "its servers. To start over, use another folder"
            )
        return not missing

    async def save(self) -> None:
        """Write this server's file.

        Raises:
            OSError: the file cannot be written.
        """
        rows = [(record, self._generation, spans) for record, spans in await self._server.capture_all()]
        ranges = [(Part(*record["part"]).key, spans) for (record, _), _, spans in rows if spans is not None]
        self._old_records = await asyncio.to_thread(self._required_records, ranges)
        rows += [(capture(saved.record), saved.generation, saved.range) for saved in self._old_records]
        header = Snapshot([], self._server.core.recovery.common, self._job, self._server.servers, self._generation)
        await asyncio.to_thread(save, self.file, rows, header)
        while self._surplus:
            self._surplus.pop().unlink(missing_ok=True)

    def _required_records(self, ranges: list[tuple[Key, Range]]) -> list[SavedRecord]:
        """Return the old records of keys whose elements this job does not have completely yet.

        Args:
            ranges: the keys that this server has, with the range of each.
        """
        exact = set(ranges)
        remaining = [saved for saved in self._old_records if (saved.record.part.key, saved.range) not in exact]
        if not remaining:
            return remaining
        ranges = [*ranges, *self._ranges_of_others()]
        return [
            saved for saved in remaining if not covers(span for key, span in ranges if key == saved.record.part.key)
        ]

    def _ranges_of_others(self) -> list[tuple[Key, Range]]:
        return [
            (saved.record.part.key, saved.range)
            for snapshot in self._read().values() if snapshot.job == self._job
            for saved in snapshot.records if saved.generation == self._generation and saved.range is not None
        ]  # fmt: skip


def _drop_order(config: Any) -> Any:
    """Return a job's configuration for the next job, whose count of ``set_optimizer`` calls starts over."""
    if not config:
        return config
    result = {name: value for name, value in config.items() if name != "order"}
    if "spaces" in config:
        result["spaces"] = {space: _drop_order(space_config) for space, space_config in config["spaces"].items()}
    return result


def _file_name_part(job: str) -> str:
    return re.sub(r"[^\w-]", "-", job)


@contextlib.asynccontextmanager
async def snapshots(folder: Folder | None, every: float) -> AsyncIterator[None]:
    """Restore a folder's snapshots, and write new ones periodically and at the end; without a folder, do nothing."""
    if folder is None:
        yield
        return
    async with folder.lock():
        folder.restore()
        async with _saving(folder, every):
            yield


@contextlib.asynccontextmanager
async def _saving(folder: Folder, every: float) -> AsyncIterator[None]:
    monitor = WriteMonitor("snapshot")
    saving = asyncio.create_task(_save_every(folder, every, monitor))
    server_task = asyncio.current_task()
    saving.add_done_callback(lambda task: None if task.cancelled() else server_task and server_task.cancel())
    try:
        yield
    finally:
        saving.cancel()
        results = await asyncio.gather(saving, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]
        await _save(folder, monitor)


async def _save_every(folder: Folder, every: float, monitor: WriteMonitor) -> None:
    """Write snapshots periodically; intervals of a young job start at a second and double."""
    pause = min(every, _FIRST_SNAPSHOT)
    while True:
        await asyncio.sleep(pause)
        await _save(folder, monitor)
        pause = min(every, 2 * pause)


async def _save(folder: Folder, monitor: WriteMonitor) -> None:
    try:
        await folder.save()
    except OSError as error:
        monitor.failed(folder.file, error)
    else:
        monitor.succeeded()
