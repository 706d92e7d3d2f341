"""Updates of a module's parameters, by its optimizer or by the store that sums the gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx import optimizer as opt
from flowmx.checkpoint.content import Blob
from flowmx.kvstore import KVStoreBase
from flowmx.kvstore.choice import is_distributed
from flowmx.module.executor_group import ExecutorGroup
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole
from flowmx.serialization.suffixes import check_states_suffix


class ParameterUpdater:
    """Updates parameters with an optimizer.

    Args:
        optimizer: the optimizer.
        store: sums gradients over devices and machines; None for one device.
        on_store: whether the store updates the parameters.
        names: the parameters' names, by number.
    """

    def __init__(
        self, optimizer: opt.Optimizer, store: KVStoreBase | None, on_store: bool, names: Sequence[str]
    ) -> None:
        self.optimizer = optimizer
        self.updater = opt.get_updater(optimizer)
        self.store = store
        self.on_store = on_store
        self._names = list(names)
        self._numbers = {name: index for index, name in enumerate(self._names)}
        self.in_store: set[str] = set()
        """The row_sparse parameters that the store updates: devices have only the rows that they pulled."""

    # -- starting --------------------------------------------------------------------------------------

    def start(self, group: ExecutorGroup, compression_params: object) -> None:
        """Initialize the parameters in the store."""
        store = self.store
        if store is None:
            return
        if compression_params:
            store.set_gradient_compression(compression_params)
        if self.on_store:
            store._install(self.updater)
            self.share(group)
            return
        for name in self._names:
            arrays = group.on_devices(name)
            if arrays[0].stype == "default":
                store.broadcast(name, arrays[0], out=arrays)
            else:
                store.init(name, arrays[0])

    def share(self, group: ExecutorGroup) -> None:
        """Make the store update the parameters in place."""
        if not self.on_store or self.store is None:
            return
        for name in self._names:
            arrays = group.on_devices(name)
            if arrays[0].stype == "default":
                self.store._share(name, arrays)
            elif name not in self.in_store:
                self.in_store.add(name)
                self.store.init(name, arrays[0])

    # -- one step --------------------------------------------------------------------------------------

    def update(self, group: ExecutorGroup) -> None:
        """Enqueue the update of every parameter of a graph by its gradient, summed over devices."""
        if self.on_store and self.store is not None:
            self._update_in_store(self.store, group)
            return
        names = self._trained_names(group)
        totals = self._sum_gradients(names, list(map(group.gradients, names)))
        arrays = list(map(group.on_devices, names))
        self.updater([self._numbers[name] for name in names], totals, [array[0] for array in arrays])
        for first, *others in arrays:
            for other in others:
                first.copyto(other)

    def _trained_names(self, group: ExecutorGroup) -> list[str]:
        return [name for name in self._names if group.has(name) and group.gradients(name)[0] is not None]

    def _sum_gradients(self, names: list[str], grads: list[list[Any]]) -> list[Any]:
        first_grads = [grad[0] for grad in grads]
        if self.store is None:
            return first_grads
        # The totals are separate arrays, because later passes may add to the gradients.
        totals = [nd.empty(first.shape, first.context, first.dtype, first.stype) for first in first_grads]
        self.store._exchange(names, grads, totals)
        return totals

    def _update_in_store(self, store: KVStoreBase, group: ExecutorGroup) -> None:
        store._refresh()
        with_gradient = self._trained_names(group)
        for position, name in enumerate(with_gradient):
            if name in self.in_store:
                store.push(name, group.gradients(name), priority=-position)
        names = [name for name in with_gradient if name not in self.in_store]
        store._exchange(names, list(map(group.gradients, names)), list(map(group.on_devices, names)))

    def pull_rows(self, group: ExecutorGroup, rows: Mapping[str, object]) -> None:
        """Pull rows of row_sparse parameters from the store to every device.

        Raises:
            ValueError: a name is not the name of a parameter.
        """
        for name, row_ids in rows.items():
            if name not in self._numbers:
                raise ValueError(f"prepare: sparse_row_id_fn names {name!r}, expected some of {', '.join(self._names)}")
            if name not in self.in_store:
                warnings.warn(f"prepare: {name!r} is not row_sparse, so its rows are not pulled", stacklevel=3)
                continue
            self._pull_rows(name, group.on_devices(name), row_ids)

    def _pull_rows(self, name: str, arrays: Sequence[object], row_ids: object) -> None:
        assert self.store is not None
        self.store.row_sparse_pull(name, out=list(arrays), priority=-self._numbers[name], row_ids=row_ids)

    def fetch_rows(self, targets: Mapping[str, Any]) -> set[str]:
        """Enqueue copies of the parameters in the store into arrays; return their names."""
        for name in self.in_store:
            target = targets[name]
            self._pull_rows(name, [target], nd.arange(target.shape[0], dtype="int64", ctx=target.context))
        return self.in_store

    def pull(self, group: ExecutorGroup) -> bool:
        """Pull the parameters that other workers have updated; return False if there can be none."""
        if self.store is None or not (self.store._is_remote and self.on_store):
            return False
        for index, name in enumerate(self._names):
            if group.has(name) and group.gradients(name)[0] is not None:
                self.store.pull(name, group.on_devices(name), priority=-index)
        return True

    # -- states ----------------------------------------------------------------------------------------

    @property
    def is_distributed(self) -> bool:
        """True if other processes hold the optimizer's states."""
        return self.on_store and is_distributed(self.store)

    async def states(self) -> Blob | None:
        """Return the optimizer's states, for a checkpoint; None if another worker saves them."""
        if self.is_distributed and self.store is not None:
            return await self.store._saved_states() if self.store._leads else None
        await self.updater.ready()
        return self.updater.states_in_pieces()

    async def set_states(self, states: bytes | memoryview | None) -> None:
        """Restore the states of a checkpoint; servers with newer states keep theirs."""
        if self.is_distributed and self.store is not None:
            await self.store._resume_states(states)
        elif states is not None:
            self.updater.set_states(states)

    def save_states(self, fname: str) -> None:
        """Save the states to a file; blocks until they are on disk."""
        check_states_suffix(fname)
        if self.is_distributed and self.store is not None:
            self.store.save_optimizer_states(fname)
        else:
            replace_file(fname, self.updater.states_in_pieces())

    def load_states(self, fname: str) -> None:
        """Restore the states from a file."""
        if self.is_distributed and self.store is not None:
            self.store.load_optimizer_states(fname)
            return
        self.updater.set_states(read_whole(fname))
        self.optimizer = self.updater.optimizer
        # A store knows parameters by name, an updater by number; the file may come from either.
        names: dict[int | str, int | str] = dict(enumerate(self._names))
        self.updater.rename(names if self.on_store else {name: index for index, name in names.items()})


def create_optimizer(
    optimizer: object, arguments: Mapping[str, object], rescale_grad: float, names: Sequence[str], symbol: object
) -> opt.Optimizer:
    """Return the optimizer for the arguments of ``init_optimizer``.

    Args:
        optimizer: a name, or an optimizer.
        arguments: the optimizer's arguments, if ``optimizer`` is a name.
        rescale_grad: one over the batch size of all workers.
        names: the parameters' names, by number.
        symbol: the symbol; its attributes hold multipliers.

    Raises:
        TypeError: the optimizer has the wrong type.
        ValueError: the optimizer's name is unknown.
    """
    names_by_number: dict[int | str, str] = dict(enumerate(names))
    if isinstance(optimizer, str):
        arguments = {"rescale_grad": rescale_grad, **arguments}
        return opt.create(optimizer, sym=symbol, param_idx2name=names_by_number, **arguments)
    if not isinstance(optimizer, opt.Optimizer):
        raise TypeError(f"init_optimizer: optimizer is {optimizer!r}, expected a name or an mx.optimizer.Optimizer")
    if optimizer.rescale_grad != rescale_grad:
        warnings.warn(
            f"init_optimizer: the optimizer's rescale_grad is {optimizer.rescale_grad}, and one over the batch size of "
            f"all workers is {rescale_grad}: is this intended?",
            stacklevel=3,
        )
    optimizer.idx2name = optimizer.idx2name or dict(names_by_number)
    return optimizer


def summed_workers(store: KVStoreBase | None) -> int:
    """Return the number of workers whose gradients a store sums; 1 without a synchronous store."""
    return store.num_workers if store is not None and store._is_synchronous else 1
