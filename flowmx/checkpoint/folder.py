"""The files of checkpoints: written as a whole, the last few kept, the newest one that is whole read."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place, dumps, loads
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.keeping import Keeping
from flowmx.serialization.reading import read_whole

log = logging.getLogger("flowmx.checkpoint")

_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)\.checkpoint")
_STARTS = 2
"""Beginnings of epochs that are kept whatever else is: workers with uneven data have these in common."""


class Checkpoints:
    """The checkpoints of a run, in a folder of its own.

    Each is a file ``epoch-0003-batch-000200.checkpoint``, which is there as a whole or not at all. In a job of several
    workers each has a folder ``worker-<rank>`` below it, whether they share it or have one on each machine.

    Args:
        folder: the folder; it is made where there is none.
        every: write one after so many batches; None at the ends of epochs alone, at which one is written in any case.
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
        self._keeping = Keeping("checkpoint")

    def of_worker(self, rank: int, workers: int) -> Checkpoints:
        """Those of one worker of a job."""
        return self if workers == 1 else Checkpoints(self.folder / f"worker-{rank}", self.every, self.keep)

    def is_due(self, batches: int) -> bool:
        """True where a checkpoint is due after so many batches of an epoch."""
        return self.every is not None and batches % self.every == 0

    def path(self, place: Place) -> Path:
        """The file of a place."""
        return self.folder / f"epoch-{place.epoch:04d}-batch-{place.batch:06d}.checkpoint"

    def places(self) -> list[Place]:
        """The places that there are files of, in order."""
        found = (_NAME.fullmatch(path.name) for path in self._files())
        return sorted(Place(int(match[1]), int(match[2])) for match in found if match)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove those that are not kept; blocks until it is on disk.

        Where the disk is full, an error in the log says so, and those before it are still there.

        Raises:
            NothingKept: none could be written for ``FLOWMX_UNSAVED_TIMEOUT`` seconds.
            OSError: the first can not be written, for another reason than a full or failing disk.
        """
        path = self.path(checkpoint.place)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, dumps(checkpoint))
        except OSError as error:
            self._keeping.failed(path, error)
        else:
            self._keeping.written()
            self._forget()

    def _forget(self) -> None:
        """Remove the checkpoints that are not kept."""
        places = self.places()
        starts = [place for place in places if place.batch == 0][-_STARTS:]
        for place in places[: -self.keep]:
            if place not in starts:
                self.path(place).unlink(missing_ok=True)

    def read(self, place: Place) -> Checkpoint:
        """The checkpoint of a place.

        Raises:
            CheckpointError: its file is damaged.
            OSError: there is none, or it can not be read.
        """
        path = self.path(place)
        return loads(read_whole(path), str(path))

    def whole(self) -> list[Place]:
        """The places whose files are whole, the newest first; says which are not."""
        return [checkpoint.place for checkpoint in self._whole()]

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, if there is one.

        Raises:
            CheckpointError: the folder is that of a job of several workers.
        """
        self._check_alone()
        return next(self._whole(), None)

    def _whole(self) -> Iterator[Checkpoint]:
        self._clean()
        for place in reversed(self.places()):
            try:
                yield self.read(place)
            except (CheckpointError, OSError) as error:
                log.warning("%s: an earlier checkpoint is used", error)

    def _clean(self) -> None:
        """Remove what a kill in the middle of writing left."""
        for path in self._files():
            if path.name.startswith(".flowmx-"):
                path.unlink(missing_ok=True)

    def _check_alone(self) -> None:
        """Refuse what a job of several workers wrote: a part of it is no state of one worker."""
        if not self.places() and (self.folder / "worker-0").is_dir():
            raise CheckpointError(
                f"{self.folder} holds checkpoints of a job of several workers, and this is one alone: launch as many, "
                "or use another folder"
            )

    def _files(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []
