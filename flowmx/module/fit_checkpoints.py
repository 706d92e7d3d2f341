"""Checkpoints of ``fit``: the state of a module, its data and its metric, and how training resumes from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowmx import kvstore
from flowmx import ndarray as nd
from flowmx.checkpoint import Checkpoint, CheckpointError, Checkpoints, Place, attributes, generators, optimizers
from flowmx.checkpoint.ambient import ambient
from flowmx.checkpoint.content import Blob
from flowmx.kvstore import KVStoreBase
from flowmx.ndarray import NDArray

if TYPE_CHECKING:
    from flowmx.module.base_module import BaseModule
    from flowmx.module.module import Module

log = logging.getLogger("flowmx.checkpoint")


class FitCheckpoints:
    """Writes the checkpoints of one training, and finds the one to resume from.

    Args:
        module: the module.
        data: the batches.
        metric: the metric of the training.
        checkpoints: the folder.
        store: identifies the job's workers, if there are several.
    """

    def __init__(
        self, module: BaseModule, data: Any, metric: Any, checkpoints: Checkpoints, store: KVStoreBase | None
    ) -> None:
        if not hasattr(data, "state") or not hasattr(data, "set_state"):
            raise TypeError(
                f"fit: train_data is a {type(data).__name__} without a position: with checkpoint= it "
                "needs state() and set_state(), as the iterators of mx.io have"
            )
        self._module = module
        self._data = data
        self._metric = metric
        self._store = store
        self._workers = 1 if store is None else store.num_workers
        self._checkpoints = checkpoints.of_worker(0 if store is None else store.rank, self._workers)

    def is_due(self, batches: int) -> bool:
        """Return whether to write a checkpoint after this number of batches of an epoch."""
        return self._checkpoints.is_due(batches)

    # -- writing ---------------------------------------------------------------------------------------

    async def save(self, place: Place) -> None:
        """Write a checkpoint of the state after all enqueued operations; return once it is on disk."""
        generator_states = generators.push()
        streams = generators.state([(context, await handle) for context, handle in generator_states])
        arrays = {name: (await array).asnumpy() for name, array in self._arrays()}
        optimizer_states = [await _optimizer(module) for module in self._module._trained_modules()]
        content = {
            "data": await asyncio.to_thread(self._data.state),
            "metric": attributes.state(self._metric),
            "generators": streams,
            "optimizers": [config for config, _ in optimizer_states],
        }
        blobs = {
            f"states {number}": states for number, (_, states) in enumerate(optimizer_states) if states is not None
        }
        checkpoint = Checkpoint(place, arrays, blobs, content, self._workers)
        await asyncio.to_thread(self._checkpoints.write, checkpoint)

    def _arrays(self) -> Iterator[tuple[str, NDArray]]:
        """Iterate over a checkpoint's arrays, by name; only the leading worker saves parameters, which all share."""
        leads = self._store is None or self._store._leads
        for number, module in enumerate(self._module._trained_modules()):
            group = module._executors("fit")
            for name in module._param_names if leads else ():
                yield f"{number} arg {name}", group.on_devices(name)[0]
            for name in (*module._aux_names, *module._state_names):
                for device, array in enumerate(group.on_devices(name)):
                    yield f"{number} aux {name} {device}", array

    # -- resuming --------------------------------------------------------------------------------------

    async def find(self, resume: bool) -> Checkpoint | None:
        """Return the checkpoint to resume from: the newest; with several workers, the newest that all of them have.

        Raises:
            FileExistsError: the folder has checkpoints, and ``resume`` is False.
            CheckpointError: this worker has several checkpoints, but none that all workers have.
        """
        if not resume:
            self._check_empty()
            return None
        if self._store is None or self._workers == 1:
            return await asyncio.to_thread(self._checkpoints.newest)
        return await self._checkpoints.newest_common(self._store._agree)

    def _check_empty(self) -> None:
        if self._checkpoints.places():
            raise FileExistsError(
                f"fit: {self._checkpoints.folder} holds checkpoints of an earlier training: pass resume=True to "
                "continue it, or use another folder"
            )

    def set_arrays(self, checkpoint: Checkpoint) -> None:
        """Set parameters and auxiliary states, before the store reads them.

        Raises:
            CheckpointError: the checkpoint belongs to another module.
        """
        if checkpoint.workers != self._workers:
            raise CheckpointError(
                f"the checkpoint was written by a job of {checkpoint.workers} workers, this one has {self._workers}: "
                "launch the same number, or use another folder"
            )
        for number, module in enumerate(self._module._trained_modules()):
            module._stale = True
            targets = {
                f"{number} arg {name}": module._executors("fit").on_devices(name) for name in module._param_names
            }
            for name in (*module._aux_names, *module._state_names):
                arrays = module._executors("fit").on_devices(name)
                targets |= {f"{number} aux {name} {device}": [array] for device, array in enumerate(arrays)}
            _check_names([name for name in targets if name.split()[1] == "arg"], number, checkpoint.arrays)
            _set_arrays(targets, checkpoint.arrays)

    async def set_optimizers(self, checkpoint: Checkpoint) -> None:
        """Restore the optimizers' configuration and states."""
        modules = self._module._trained_modules()
        for number, (module, config) in enumerate(zip(modules, checkpoint.content["optimizers"], strict=True)):
            updater = module._require_updater("fit")
            optimizers.set_config(updater.optimizer, config)
            await updater.set_states(checkpoint.blobs.get(f"states {number}"))

    def set_data(self, checkpoint: Checkpoint, place: Place) -> int | None:
        """Restore the position of the data, the metric and the generators.

        Returns:
            The number of batches to skip in the data to reach a place; None if the data cannot reach it.
        """
        generators.set_state(checkpoint.content["generators"])
        if checkpoint.place.epoch != place.epoch or checkpoint.place.batch > place.batch:
            return None
        self._data.set_state(checkpoint.content["data"])
        attributes.set_state(self._metric, checkpoint.content["metric"])
        return place.batch - checkpoint.place.batch


async def open_checkpoints(
    module: BaseModule, data: object, metric: object, checkpoint: Any, store: object
) -> FitCheckpoints | None:  # fmt: skip
    """Return the writer of checkpoints for ``fit``'s ``checkpoint`` argument, or None.

    Args:
        module: the module.
        data: the batches.
        metric: the metric of the training.
        checkpoint: a folder, a :class:`Checkpoints`, or None.
        store: the ``kvstore`` of ``fit``.
    """
    if checkpoint is None:
        checkpoint = ambient()
        if checkpoint is None or not _can_save_position(data):
            return None
    checkpoints = checkpoint if isinstance(checkpoint, Checkpoints) else Checkpoints(checkpoint)
    return FitCheckpoints(module, data, metric, checkpoints, await _open_store(store))


def _can_save_position(data: object) -> bool:
    """Return whether a data iterator can save its position (``state`` and ``set_state``); warn if it cannot."""
    can_save = hasattr(data, "state") and hasattr(data, "set_state")
    if not can_save:
        log.warning("no checkpoints are written: %s cannot save its position", type(data).__name__)
    return can_save


async def _open_store(store: object) -> KVStoreBase | None:
    """Return the store that the workers of a job share; open it if it is a name."""
    if isinstance(store, str) and store.lower().startswith("dist"):
        store = await kvstore.create_async(store)  # one for each process
    return store if isinstance(store, KVStoreBase) else None


async def _optimizer(module: Module) -> tuple[Any, Blob | None]:
    """Return the configuration of a module's optimizer, and its states unless another worker saves them."""
    updater = module._require_updater("fit")
    return optimizers.config(updater.optimizer), await updater.states()


def _check_names(names: Sequence[str], number: int, values: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose parameters have other names; only the leading worker's has parameters."""
    saved = [name for name in values if name.startswith(f"{number} arg ")]
    differing = sorted({name.split(maxsplit=2)[2] for name in {*names} ^ {*saved}})
    if saved and differing:
        raise CheckpointError(
            f"the checkpoint belongs to another network: {', '.join(differing[:6])} are in only one of the two. "
            "Automatic names, such as fullyconnected0, differ between two symbols of one process: pass name= to layers"
        )


def _set_arrays(targets: Mapping[str, list[NDArray]], values: Mapping[str, Any]) -> None:
    for name, arrays in targets.items():
        if name not in values:
            continue  # saved by the leading worker only
        for array in arrays:
            if array.shape != values[name].shape:
                raise CheckpointError(
                    f"the checkpoint has {name.split()[2]!r} with shape {values[name].shape}, and the module with "
                    f"{array.shape}: it belongs to another network"
                )
            array[:] = values[name] if array.stype == "default" else nd.array(values[name], dtype=array.dtype)
