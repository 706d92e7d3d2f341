"""Updates of a module's parameters: by its optimizer, or by the store that sums the gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowmx import ndarray as nd
from flowmx import optimizer as opt
from flowmx.kvstore import KVStoreBase
from flowmx.kvstore.choice import is_elsewhere
from flowmx.module.group import ExecutorGroup
from flowmx.serialization.atomic import replace_file


class Updating:
    """Updates parameters by an optimizer.

    Args:
        optimizer: the optimizer.
        store: what sums gradients over devices and machines; None where there is one device.
        on_store: let the store update.
        names: of the parameters, by number.
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
        """The row_sparse parameters that the store updates: devices have but the rows that were pulled."""

    # -- starting --------------------------------------------------------------------------------------

    def start(self, group: ExecutorGroup, compression_params: Any) -> None:
        """Tell the store of the parameters."""
        store = self.store
        if store is None:
            return
        if compression_params:
            store.set_gradient_compression(compression_params)  # type: ignore[attr-defined]
        if self.on_store:
            store._install(self.updater)
            self.share(group)
            return
        for name in self._names:
            arrays = group.on_devices(name)
            if arrays[0].stype == "default":
                store.broadcast(name, arrays[0], out=arrays)
            else:
                store.init(name, arrays[0])  # type: ignore[attr-defined]

    def share(self, group: ExecutorGroup) -> None:
        """Let the store update the parameters where they are."""
        if not self.on_store or self.store is None:
            return
        for name in self._names:
            arrays = group.on_devices(name)
            if arrays[0].stype == "default":
                self.store._share(name, arrays)
            elif name not in self.in_store:
                self.in_store.add(name)
                self.store.init(name, arrays[0])  # type: ignore[attr-defined]

    # -- one step --------------------------------------------------------------------------------------

    def update(self, group: ExecutorGroup) -> None:
        """Enqueue the update of every parameter of a graph by its gradient, summed over devices."""
        if self.on_store and self.store is not None:
            self._update_in_store(self.store, group)
            return
        names = self._trained(group)
        totals = self._summed(names, list(map(group.gradients, names)))
        arrays = list(map(group.on_devices, names))
        self.updater([self._numbers[name] for name in names], totals, [each[0] for each in arrays])
        for first, *others in arrays:
            for other in others:
                first.copyto(other)

    def _trained(self, group: ExecutorGroup) -> list[str]:
        return [name for name in self._names if group.has(name) and group.gradients(name)[0] is not None]

    def _summed(self, names: list[str], grads: list[list[Any]]) -> list[Any]:
        firsts = [each[0] for each in grads]
        if self.store is None:
            return firsts
        # In arrays of their own: later passes may add to the gradients.
        totals = [nd.empty(each.shape, each.context, each.dtype, each.stype) for each in firsts]
        self.store._exchange(names, grads, totals)
        return totals

    def _update_in_store(self, store: KVStoreBase, group: ExecutorGroup) -> None:
        store._refresh()
        trained = self._trained(group)
        for place, name in enumerate(trained):
            if name in self.in_store:
                store.push(name, group.gradients(name), priority=-place)  # type: ignore[attr-defined]
        names = [name for name in trained if name not in self.in_store]
        store._exchange(names, list(map(group.gradients, names)), list(map(group.on_devices, names)))

    def pull_rows(self, group: ExecutorGroup, rows: Mapping[str, Any]) -> None:
        """Pull rows of row_sparse parameters from the store to every device.

        Raises:
            ValueError: a name is no parameter's.
        """
        for name, row_ids in rows.items():
            if name not in self._numbers:
                raise ValueError(f"prepare: sparse_row_id_fn names {name!r}, which is none of {', '.join(self._names)}")
            if name not in self.in_store:
                warnings.warn(f"prepare: {name!r} is not row_sparse, so that no rows of it are pulled", stacklevel=3)
                continue
            self._pull_rows(name, group.on_devices(name), row_ids)

    def _pull_rows(self, name: str, arrays: Sequence[Any], row_ids: Any) -> None:
        self.store.row_sparse_pull(  # type: ignore[union-attr]
            name, out=list(arrays), priority=-self._numbers[name], row_ids=row_ids
        )

    def fetch_rows(self, targets: Mapping[str, Any]) -> set[str]:
        """Enqueue that arrays become the values of those parameters that are in the store; returns their names."""
        for name in self.in_store:
            target = targets[name]
            self._pull_rows(name, [target], nd.arange(target.shape[0], dtype="int64", ctx=target.context))
        return self.in_store

    def pull(self, group: ExecutorGroup) -> bool:
        """Take what other workers have made of the parameters meanwhile; whether there can be anything."""
        if self.store is None or not (self.store._is_remote and self.on_store):
            return False
        for index, name in enumerate(self._names):
            if group.has(name) and group.gradients(name)[0] is not None:
                self.store.pull(name, group.on_devices(name), priority=-index)  # type: ignore[attr-defined]
        return True

    # -- states ----------------------------------------------------------------------------------------

    @property
    def is_elsewhere(self) -> bool:
        """True if other processes keep the optimizer's states."""
        return self.on_store and is_elsewhere(self.store)

    async def states(self) -> bytes | None:
        """The optimizer's states, for a checkpoint; None where another worker saves them."""
        if self.is_elsewhere and self.store is not None:
            return await self.store._saved_states() if self.store._leads else None
        await self.updater.ready()
        return self.updater.get_states()

    async def set_states(self, states: bytes | None) -> None:
        """Go on with the states of a checkpoint; servers that have come further keep their own."""
        if self.is_elsewhere and self.store is not None:
            await self.store._resume_states(states)
        elif states is not None:
            self.updater.set_states(states)

    def save_states(self, fname: str) -> None:
        """Save the states to a file; blocks until they are on disk."""
        if self.is_elsewhere and self.store is not None:
            self.store.save_optimizer_states(fname)
        else:
            replace_file(fname, [self.updater.get_states()])

    def load_states(self, fname: str) -> None:
        """Go on with the states of a file."""
        if self.is_elsewhere and self.store is not None:
            self.store.load_optimizer_states(fname)
            return
        self.updater.set_states(Path(fname).read_bytes())
        self.optimizer = self.updater.optimizer
        # A store knows parameters by name, an updater by number, and the file may come from either.
        names: dict[int | str, int | str] = dict(enumerate(self._names))
        self.updater.rename(names if self.on_store else {name: index for index, name in names.items()})


def made(
    given: Any, arguments: Mapping[str, Any], rescale_grad: float, names: Sequence[str], symbol: Any
) -> opt.Optimizer:
    """The optimizer that ``init_optimizer`` was asked for.

    Args:
        given: a name, or an optimizer.
        arguments: of one by name.
        rescale_grad: one over the batch size of all workers.
        names: of the parameters, by number.
        symbol: the symbol, whose attributes hold multipliers.

    Raises:
        TypeError: it is something else.
        ValueError: there is no optimizer of this name.
    """
    numbered: dict[int | str, str] = dict(enumerate(names))
    if isinstance(given, str):
        arguments = {"rescale_grad": rescale_grad, **arguments}
        return opt.create(given, sym=symbol, param_idx2name=numbered, **arguments)
    if not isinstance(given, opt.Optimizer):
        raise TypeError(f"init_optimizer: optimizer is {given!r}, expected a name or an mx.optimizer.Optimizer")
    if given.rescale_grad != rescale_grad:
        warnings.warn(
            f"init_optimizer: the optimizer's rescale_grad is {given.rescale_grad}, and one over the batch size of all "
            f"workers is {rescale_grad}: is this intended?",
            stacklevel=3,
        )
    given.idx2name = given.idx2name or dict(numbered)
    return given


def adding(store: KVStoreBase | None) -> int:
    """Number of workers whose gradients a store adds up; 1 without a synchronous store."""
    return store.num_workers if store is not None and store._is_synchronous else 1
