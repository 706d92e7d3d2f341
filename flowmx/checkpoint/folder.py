"""The checkpoint files of a run: atomic writing, retention, and finding the newest intact one."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from flowmx.checkpoint import files
from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place
from flowmx.serialization.atomic import remove_scratch_files, replace_file
from flowmx.serialization.write_monitor import WriteMonitor

T = TypeVar("T")
Agree: TypeAlias = Callable[[Sequence[tuple[int, int]]], Awaitable[tuple[int, int] | None]]

log = logging.getLogger("flowmx.checkpoint")

_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)\.checkpoint")
_STARTS = 2
"""The number of checkpoints at starts of epochs that are always kept: with uneven data, all workers have only these."""


class Checkpoints:
    """The checkpoints of a run, in a separate folder.

    A checkpoint is a file ``epoch-0003-batch-000200.checkpoint``, written atomically. In a distributed job every worker
    has a subfolder ``worker-<rank>``, in a shared folder or in one per machine.

    Args:
        folder: the folder; it is created if it does not exist.
        every: the number of batches between checkpoints. The end of an epoch always has one; None writes only those.
        keep: the number to keep, in addition to those at the beginning of this epoch and of the previous one.

    Raises:
        ValueError: ``every`` or ``keep`` is too small.

    Example:
        >>> await mod.fit(train, num_epoch=10, checkpoint=mx.checkpoint.Checkpoints("run", every=100))
    """

    def __init__(self, folder: str | os.PathLike[str], every: int | None = None, keep: int = 3) -> None:
        if every is not None and every < 1:
            raise ValueError(f"Checkpoints: every is {every}, expected a number of batches, or None")
        if keep < 2:
            raise ValueError(f"Checkpoints: keep is {keep}, expected at least 2: one may be lost while it is written")
        self.folder = Path(folder)
        self.every = every
        self.keep = keep
        self._monitor = WriteMonitor("checkpoint")

    def of_worker(self, rank: int, workers: int) -> Checkpoints:
        """Return the checkpoints of one worker of a job."""
        return self if workers == 1 else Checkpoints(self.folder / f"worker-{rank}", self.every, self.keep)

    def is_due(self, batches: int) -> bool:
        """Return whether a checkpoint is due after a number of batches of an epoch."""
        return self.every is not None and batches % self.every == 0

    def path(self, place: Place) -> Path:
        """Return the file of a position."""
        return self.folder / f"epoch-{place.epoch:04d}-batch-{place.batch:06d}.checkpoint"

    def places(self) -> list[Place]:
        """Return the positions of all files, in order."""
        matches = (_NAME.fullmatch(path.name) for path in self._files())
        return sorted(Place(int(match[1]), int(match[2])) for match in matches if match)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove old ones. Blocks until it is on disk.

        If the disk is full, an error is logged, and the earlier checkpoints remain.

        Raises:
            WriteTimeout: no checkpoint could be written for ``FLOWMX_UNSAVED_TIMEOUT`` seconds.
            OSError: the first checkpoint cannot be written, and the disk is neither full nor failing.
        """
        path = self.path(checkpoint.place)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, files.dumps(checkpoint))
        except OSError as error:
            self._monitor.failed(path, error)
        else:
            self._monitor.succeeded()
            self._remove_old()

    def _remove_old(self) -> None:
        """Remove the checkpoints beyond those to keep."""
        places = self.places()
        starts = [place for place in places if place.batch == 0][-_STARTS:]
        for place in places[: -self.keep]:
            if place not in starts:
                self.path(place).unlink(missing_ok=True)

    def read(self, place: Place) -> Checkpoint:
        """Read the checkpoint of a position.

        Raises:
            CheckpointError: its file is damaged.
            OSError: the file does not exist or cannot be read.
        """
        return files.load(self.path(place))

    def intact(self) -> list[Place]:
        """Return the positions of files with the correct length, the newest first; others are logged.

        Their data is not read; :meth:`read` detects damage.
        """
        remove_scratch_files(self.folder)
        newest_first = reversed(self.places())
        return [place for place in newest_first if self._try(place, self._is_complete)]

    async def newest_common(self, agree: Agree) -> Checkpoint | None:
        """Return the newest checkpoint that is intact on all workers of a job, or None. All workers must call this.

        Args:
            agree: returns the newest of these positions that all workers have.

        Raises:
            CheckpointError: this worker has several checkpoints, but none that all workers have.
        """
        places = await asyncio.to_thread(self.intact)
        while True:
            newest = await agree(places)
            if newest is None:
                break
            place = Place(*newest)
            checkpoint = await asyncio.to_thread(self._try, place, self.read)
            if await agree([] if checkpoint is None else [place]) == newest:
                return checkpoint
            places = [earlier for earlier in places if earlier < place]
        if len(places) > 1:
            raise CheckpointError(
                f"{self.folder} has checkpoints up to {places[0]}, but another worker has none of them; were its files "
                "lost? To start from scratch, use another folder on all workers"
            )
        return None

    def newest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None.

        Raises:
            CheckpointError: the folder belongs to a job of several workers.
        """
        self._check_single_worker()
        remove_scratch_files(self.folder)
        checkpoints = (self._try(place, self.read) for place in reversed(self.places()))
        return next((checkpoint for checkpoint in checkpoints if checkpoint is not None), None)

    def _try(self, place: Place, read: Callable[[Place], T]) -> T | None:
        """Call a function for a position; log a warning and return None if its file is damaged."""
        try:
            return read(place)
        except (CheckpointError, OSError) as error:
            log.warning("%s: an earlier checkpoint is used", error)
            return None

    def _is_complete(self, place: Place) -> bool:
        files.check_size(self.path(place))
        return True

    def _check_single_worker(self) -> None:
        """Reject a folder of a job of several workers, whose files are not the state of a single worker."""
        if not self.places() and (self.folder / "worker-0").is_dir():
            raise CheckpointError(
                f"{self.folder} has checkpoints of a job of several workers, but this job has one: launch the same "
                "number of workers, or use another folder"
            )

    def _files(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []
