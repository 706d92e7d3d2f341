"""Checkpoints of ``fit``: what they hold of a module, its data and its metric, and how training resumes from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flowmx import kvstore
from flowmx import ndarray as nd
from flowmx.checkpoint import Checkpoint, CheckpointError, Checkpoints, Place, attributes, generators, optimizers
from flowmx.checkpoint.ambient import ambient
from flowmx.kvstore import KVStoreBase
from flowmx.ndarray import NDArray

if TYPE_CHECKING:
    from flowmx.module.base import BaseModule
    from flowmx.module.module import Module

log = logging.getLogger("flowmx.checkpoint")


class Saving:
    """Writes the checkpoints of one training, and finds the one to go on from.

    Args:
        module: what is trained.
        data: its batches.
        metric: of the training.
        checkpoints: the folder.
        store: what the job's workers are known by, if there are several.
    """

    def __init__(
        self, module: BaseModule, data: Any, metric: Any, checkpoints: Checkpoints, store: KVStoreBase | None
    ) -> None:
        if not hasattr(data, "state") or not hasattr(data, "set_state"):
            raise TypeError(
                f"fit: train_data is {type(data).__name__}, which can not say where it stands: with checkpoint= it "
                "needs state() and set_state(), as the iterators of mx.io have"
            )
        self._module = module
        self._data = data
        self._metric = metric
        self._store = store
        self._workers = 1 if store is None else store.num_workers
        self._checkpoints = checkpoints.of_worker(0 if store is None else store.rank, self._workers)

    def is_due(self, batches: int) -> bool:
        """Tell whether to write a checkpoint after so many batches of an epoch."""
        return self._checkpoints.is_due(batches)

    # -- writing ---------------------------------------------------------------------------------------

    async def save(self, place: Place) -> None:
        """Write a checkpoint of how things stand when everything enqueued is done; ends when it is on disk."""
        found = generators.push()
        streams = generators.state([(context, await handle) for context, handle in found])
        arrays = {name: (await array).asnumpy() for name, array in self._arrays()}
        trained = [await _optimizer(each) for each in self._module._trained()]
        content = {
            "data": await asyncio.to_thread(self._data.state),
            "metric": attributes.state(self._metric),
            "generators": streams,
            "optimizers": [config for config, _ in trained],
        }
        blobs = {f"states {number}": states for number, (_, states) in enumerate(trained) if states is not None}
        made = Checkpoint(place, arrays, blobs, content, self._workers)
        await asyncio.to_thread(self._checkpoints.write, made)

    def _arrays(self) -> Iterator[tuple[str, NDArray]]:
        """The arrays of a checkpoint, by name; parameters, equal everywhere, come once, from the leading worker."""
        leads = self._store is None or self._store._leads
        for number, each in enumerate(self._module._trained()):
            group = each._executors("fit")
            for name in each._param_names if leads else ():
                yield f"{number} arg {name}", group.on_devices(name)[0]
            for name in (*each._aux_names, *each._state_names):
                for device, array in enumerate(group.on_devices(name)):
                    yield f"{number} aux {name} {device}", array

    # -- going on --------------------------------------------------------------------------------------

    async def find(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to go on from: of several workers, the newest that all have.

        Raises:
            FileExistsError: there are some, and the training is to begin anew.
            CheckpointError: the workers have none in common, though some have several.
        """
        if not resume:
            self._check_empty()
            return None
        if self._store is None or self._workers == 1:
            return await asyncio.to_thread(self._checkpoints.newest)
        places = await asyncio.to_thread(self._checkpoints.whole)
        agreed = await self._store._agree(places)
        if agreed is None and len(places) > 1:
            raise CheckpointError(
                f"{self._checkpoints.folder} has checkpoints up to {places[0]}, but another worker has none of them: "
                "were its files lost? To begin anew, use another folder on all workers"
            )
        return None if agreed is None else self._checkpoints.read(Place(*agreed))

    def _check_empty(self) -> None:
        if self._checkpoints.places():
            raise FileExistsError(
                f"fit: {self._checkpoints.folder} holds checkpoints of an earlier training: pass resume=True to go on "
                "with it, or give another folder"
            )

    def set_arrays(self, found: Checkpoint) -> None:
        """Set parameters and auxiliary states, before the store gets them.

        Raises:
            CheckpointError: they are of another module.
        """
        if found.workers != self._workers:
            raise CheckpointError(
                f"the checkpoint is of a job of {found.workers} workers, and this one has {self._workers}: launch as "
                "many, or use another folder"
            )
        for number, each in enumerate(self._module._trained()):
            each._stale = True
            targets = {f"{number} arg {name}": each._executors("fit").on_devices(name) for name in each._param_names}
            for name in (*each._aux_names, *each._state_names):
                found_on = each._executors("fit").on_devices(name)
                targets |= {f"{number} aux {name} {device}": [array] for device, array in enumerate(found_on)}
            _set_arrays(targets, found.arrays)

    async def set_optimizers(self, found: Checkpoint) -> None:
        """Let the optimizers go on as they were."""
        trained = self._module._trained()
        for number, (each, config) in enumerate(zip(trained, found.content["optimizers"], strict=True)):
            updating = each._updating("fit")
            optimizers.set_config(updating.optimizer, config)
            await updating.set_states(found.blobs.get(f"states {number}"))

    def set_data(self, found: Checkpoint, place: Place) -> int | None:
        """Let data, metric and generators go on from where they stood.

        Returns:
            How many batches of the data are to be left out then to come to a place; None where that is not possible.
        """
        generators.set_state(found.content["generators"])
        if found.place.epoch != place.epoch or found.place.batch > place.batch:
            return None
        self._data.set_state(found.content["data"])
        attributes.set_state(self._metric, found.content["metric"])
        return place.batch - found.place.batch


async def saving(
    module: BaseModule, data: Any, metric: Any, checkpoint: Any, store: Any
) -> Saving | None:  # fmt: skip
    """The writer of the checkpoints that ``fit`` was asked for; None where there are none to write.

    Args:
        module: what is trained.
        data: its batches.
        metric: of the training.
        checkpoint: a folder, a :class:`Checkpoints`, or None.
        store: ``fit``'s ``kvstore``.
    """
    if checkpoint is None:
        checkpoint = ambient()
        if checkpoint is None or not _says_where(data):
            return None
    made = checkpoint if isinstance(checkpoint, Checkpoints) else Checkpoints(checkpoint)
    return Saving(module, data, metric, made, await _opened(store))


def _says_where(data: Any) -> bool:
    """Tell whether a data iterator can save its position (``state`` and ``set_state``); warn if it can not."""
    able = hasattr(data, "state") and hasattr(data, "set_state")
    if not able:
        log.warning("no checkpoints are written: %s can not say where it stands", type(data).__name__)
    return able


async def _opened(store: Any) -> KVStoreBase | None:
    """The store that the workers of a job share, opened now where it is given by name."""
    if isinstance(store, str) and store.lower().startswith("dist"):
        store = await kvstore.create_async(store)  # one for each process, whoever asks for it
    return store if isinstance(store, KVStoreBase) else None


async def _optimizer(module: Module) -> tuple[Any, bytes | None]:
    """The configuration of a module's optimizer, and its states unless others save them."""
    updating = module._updating("fit")
    return optimizers.config(updating.optimizer), await updating.states()


def _set_arrays(targets: Mapping[str, list[NDArray]], found: Mapping[str, Any]) -> None:
    for name, arrays in targets.items():
        if name not in found:
            continue  # what the leading worker has
        for array in arrays:
            if array.shape != found[name].shape:
                raise CheckpointError(
                    f"the checkpoint has {name.split()[2]!r} with shape {found[name].shape}, and the module with "
                    f"{array.shape}: it is of another network"
                )
            array[:] = found[name] if array.stype == "default" else nd.array(found[name], dtype=array.dtype)
