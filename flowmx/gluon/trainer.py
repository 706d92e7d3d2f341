"""Updates of a model's parameters by an optimizer, with gradients summed over devices."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx import optimizer as opt
from flowmx.devices import Context
from flowmx.errors import ArgumentKindError, StateError
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.kvstore import KVStoreBase, compression
from flowmx.kvstore.choice import check_updates, chosen, is_elsewhere, updates
from flowmx.ndarray import NDArray, core
from flowmx.observability.safety import next_step
from flowmx.serialization.atomic import replace_file

__all__ = ["Trainer"]


class Trainer:
    """Updates parameters by their gradients.

    Args:
        params: the parameters, as ``block.collect_params()`` returns them, or a list.
        optimizer: the name of an optimizer, or one.
        optimizer_params: its arguments, where it is given by name.
        kvstore: ``"device"``, ``"local"``, another name that ``mx.kv.create`` takes, or a store: it sums gradients over
            devices and, as ``"dist_sync"``, over machines. One device of one process needs none.
        compression_params: the argument of the store's ``set_gradient_compression``.
        update_on_kvstore: update each weight once, in the store, or on every device by itself. By default the store
            updates if it can, unless :meth:`allreduce_grads` or :meth:`update` is called before :meth:`step`.

    A device that no backward pass has reached since the last step, since the batch was too small for it, is left out of
    the sums; it gets the updated parameters all the same.

    Raises:
        TypeError: something that is no parameter, no optimizer or no store.
        ValueError: the parameters are on different devices; arguments are given along with an optimizer; the store can
            not update weights, and is to; or a name is unknown.
        NotImplementedError: a kvstore that is not here.

    Example:
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> with mx.autograd.record():
        ...     loss = loss_fn(net(data), label)
        >>> loss.backward()
        >>> trainer.step(batch_size=32)
    """

    _amp_guard: Any = None
    """Says which steps are left out, in mixed precision (:func:`flowmx.amp.init_trainer`)."""
    _amp_loss_scaler: Any = None
    _amp_original_scale: float = 1.0
    _is_warned = False

    def __init__(
        self, params: ParameterDict | Mapping[str, Parameter] | Sequence[Parameter], optimizer: str | opt.Optimizer,
        optimizer_params: Mapping[str, Any] | None = None, kvstore: Any = "device", compression_params: Any = None,
        update_on_kvstore: bool | None = None,
    ) -> None:  # fmt: skip
        if compression_params:
            compression.create(compression_params)  # says what is wrong
        self._params = _listed(params)
        self._contexts = self._check_contexts()
        self._optimizer = self._made(optimizer, dict(optimizer_params or {}))
        self._scale = self._optimizer.rescale_grad
        self._updaters = [opt.get_updater(self._optimizer) for _ in self._contexts]
        self._kvstore = chosen(kvstore, len(self._contexts))
        self._wanted = kvstore
        self._update_on_kvstore = self._checked(update_on_kvstore)
        self._reached = self._contexts
        for param in self._params:
            if param._stype != "default":
                param._set_trainer(self)
        self._taken: list[tuple[int, Parameter]] | None = None
        """The parameters of the step at hand, with their positions."""
        self._started: dict[int, NDArray] = {}
        """The first of a parameter's arrays when the store was initialized with it."""
        if self._kvstore is not None and compression_params:
            self._kvstore.set_gradient_compression(compression_params)  # type: ignore[attr-defined]

    def _check_contexts(self) -> list[Context]:
        contexts: list[Context] = self._params[0].list_ctx() if self._params else []
        for param in self._params:
            if param.list_ctx() != contexts:
                raise ValueError(
                    f"Trainer: parameter {param.name!r} is on {param.list_ctx()}, and {self._params[0].name!r} on "
                    f"{contexts}, expected the same devices for all"
                )
        return contexts

    def _checked(self, update_on_kvstore: bool | None) -> bool | None:
        """Validate ``update_on_kvstore`` against the store; None where it is decided at the first step."""
        store = self._kvstore
        if store is None:
            return None
        check_updates("Trainer", store, update_on_kvstore)
        return update_on_kvstore

    def _made(self, optimizer: str | opt.Optimizer, arguments: dict[str, Any]) -> opt.Optimizer:
        if isinstance(optimizer, opt.Optimizer):
            if arguments:
                raise ValueError(f"Trainer: the optimizer is complete, but optimizer_params came with it: {arguments}")
            made = optimizer
        else:
            made = opt.create(optimizer, **arguments)
        made.param_dict = dict(enumerate(self._params))
        return made

    @property
    def optimizer(self) -> opt.Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """The current learning rate."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate.

        Raises:
            UserWarning: a schedule decides it (what MXNet raises).
        """
        self._optimizer.set_learning_rate(lr)

    # -- one step --------------------------------------------------------------------------------------

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Enqueue the update of all parameters, by their gradients summed over the devices.

        Args:
            batch_size: gradients are divided by it.
            ignore_stale_grad: leave parameters as they are that no backward pass has reached since the last update.

        Raises:
            UserWarning: there is such a parameter (what MXNet raises).

        In mixed precision it waits for the gradients, to leave the step out where they overflow; in a coroutine, await
        :meth:`step_async`.
        """
        with self._taking(ignore_stale_grad):
            self._begin_step(batch_size)
            self._finish_step(ignore_stale_grad, batch_size, self._amp_guard is not None and self._amp_guard.skips())

    async def step_async(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """As :meth:`step`, awaiting the gradients where mixed precision checks them."""
        with self._taking(ignore_stale_grad):
            self._begin_step(batch_size)
            is_skipped = self._amp_guard is not None and await self._amp_guard.skips_async()
            self._finish_step(ignore_stale_grad, batch_size, is_skipped)

    @contextmanager
    def _taking(self, ignore_stale_grad: bool) -> Iterator[None]:
        """Take the parameters of a step, until it has ended, failed or been cancelled."""
        self._taken = self._fresh(ignore_stale_grad)
        try:
            yield
        finally:
            self._taken = None

    def _begin_step(self, batch_size: int) -> None:
        self._optimizer.rescale_grad = self._scale / batch_size
        self._allreduce_grads()
        if self._amp_guard is None:
            self._warn_unscaled()

    def _finish_step(self, ignore_stale_grad: bool, batch_size: int, is_skipped: bool) -> None:
        if is_skipped:
            for _, param in self._taken or ():
                for ctx in self._contexts:
                    param._mark_used(ctx)
        else:
            self._update(ignore_stale_grad)
        # step(1) is what follows on a mean loss: it does not say how many samples there were.
        next_step(self, batch_size if batch_size > 1 else 0)

    def _warn_unscaled(self) -> None:
        """Warn where operators compute in float16 and the loss is not scaled."""
        if core.casting is not None and core.casting.needs_scaling and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                "Trainer.step: operators compute in float16 (amp.init()), but the loss is not scaled, so that small "
                "gradients vanish: call backward() on what `with amp.scale_loss(loss, trainer) as scaled_loss` gives",
                stacklevel=4,
            )

    def allreduce_grads(self) -> None:
        """Enqueue the sums of the gradients over the devices, to change them before :meth:`update`.

        Raises:
            RuntimeError: the store updates the weights, so that sums can not be had alone.
        """
        self._refuse_on_kvstore("allreduce_grads")
        self._allreduce_grads()

    # Subclasses of MXNet's Trainer, which sum in ways of their own, replace these two, of these names.

    def _allreduce_grads(self) -> None:
        """Enqueue the sums of the gradients of a step, or its updates where the store does them."""
        params = self._fresh(ignore_stale_grad=True) if self._taken is None else self._taken
        if self._on_kvstore(otherwise=None):
            self._update_in_store(params)
        else:
            self._sum(params)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Enqueue the updates of a step, but where the store does them."""
        if self._on_kvstore(otherwise=None):
            return
        params = self._fresh(ignore_stale_grad) if self._taken is None else self._taken
        indices = [index for index, _ in params]
        for ctx, updater in zip(self._contexts, self._updaters, strict=True):
            updater(
                indices,
                [param._array_on(param._grads, ctx) for _, param in params],
                [param._array_on(param._arrays, ctx) for _, param in params],
            )
            for _, param in params:
                param._mark_used(ctx)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Enqueue the update of all parameters by their gradients as they are; as :meth:`step`, without the sums.

        Raises:
            RuntimeError: the store updates the weights.
        """
        self._refuse_on_kvstore("update")
        self._optimizer.rescale_grad = self._scale / batch_size
        with self._taking(ignore_stale_grad):
            self._finish_step(ignore_stale_grad, batch_size, self._amp_guard is not None and self._amp_guard.skips())

    def _on_kvstore(self, otherwise: bool | None) -> bool:
        """True where the store updates weights; decided at the first call: as given, or as the store is able to."""
        if self._kvstore is None:
            return False
        if self._update_on_kvstore is None:
            if otherwise is None:
                otherwise = self._prefers_store(self._kvstore)
            self._update_on_kvstore = otherwise
        if not self._update_on_kvstore:
            self._check_rows(self._kvstore)
        if self._update_on_kvstore and not self._started:
            assert self._kvstore is not None
            self._kvstore._install(self._updaters[0])
        return self._update_on_kvstore

    def _prefers_store(self, store: KVStoreBase) -> bool:
        """Tell whether the store updates weights where the user does not say."""
        if any(param._stype != "default" for param in self._params):
            return True
        if any(param._grad_stype != "default" for param in self._params) and not is_elsewhere(store):
            return False  # sums of rows are brought to dense weights, and not whole weights
        return updates(store, self._wanted, [param.shape or () for param in self._params])

    def _check_rows(self, store: KVStoreBase) -> None:
        """Check that the store may leave updates by rows to the devices.

        Raises:
            ValueError: it may not.
        """
        for param in self._params:
            if param._stype != "default" or (param._grad_stype != "default" and is_elsewhere(store)):
                raise ValueError(
                    f"Trainer: update_on_kvstore is False, but parameter {param.name!r} is {param._stype} with a "
                    f"{param._grad_stype} gradient, which the kvstore {store.type!r} is to update: leave it out"
                )

    def _refuse_on_kvstore(self, call: str) -> None:
        if self._on_kvstore(otherwise=False):
            raise StateError(
                f"{call}: the kvstore updates the parameters as part of step(): make the Trainer with "
                "update_on_kvstore=False to sum and update by yourself"
            )

    def _fresh(self, ignore_stale_grad: bool) -> list[tuple[int, Parameter]]:
        """The parameters to update, with their positions."""
        trained = [(index, param) for index, param in enumerate(self._params) if param.grad_req != "null"]
        for _, param in trained:
            if param._grads is None:
                param.list_grad()  # says what is wrong
        self._reached = self._taking_part([param for _, param in trained])
        found = []
        for index, param in trained:
            for ctx in self._reached:
                if not param._is_fresh(ctx):
                    break
            else:
                found.append((index, param))
                continue
            if not ignore_stale_grad:
                raise UserWarning(
                    f"step: no backward pass has reached parameter {param.name!r} on {ctx} since the last update: "
                    "perhaps the model does not use it; if that is intended, pass ignore_stale_grad=True to leave "
                    "such parameters as they are"
                )
        return found

    def _taking_part(self, trained: list[Parameter]) -> list[Context]:
        """The devices that had a part of the batch; all of them if none had."""
        if len(self._contexts) == 1:
            return self._contexts
        reached = [ctx for ctx in self._contexts if any(param._is_fresh(ctx) for param in trained)]
        return reached or self._contexts

    def _sum(self, params: list[tuple[int, Parameter]]) -> None:
        store = self._kvstore
        if store is None:
            return
        with autograd.pause():
            for index, param in params:
                if index not in self._started:
                    self._started[index] = param._copies()[0]
                    store.broadcast(index, param._copies()[0], out=param._copies())
            grads = [[param.grad(ctx) for ctx in self._reached] for _, param in params]
            store._exchange([index for index, _ in params], grads, [param.list_grad() for _, param in params])

    def _update_in_store(self, params: list[tuple[int, Parameter]]) -> None:
        store = self._kvstore
        assert store is not None
        store._refresh()
        self._share(params)
        whole = []
        for index, param in params:
            if self._is_kept_elsewhere(param):
                grads = [param.grad(ctx) for ctx in self._reached]
                store.push(index, grads, priority=-index)  # type: ignore[attr-defined]
            else:
                whole.append((index, param))
        sums = [[param.grad(ctx) for ctx in self._reached] for _, param in whole]
        store._exchange([index for index, _ in whole], sums, [param._copies() for _, param in whole])
        for _, param in params:
            for ctx in self._contexts:
                param._mark_used(ctx)

    def _share(self, params: list[tuple[int, Parameter]]) -> None:
        """Let the store know of parameters that it does not have, or that have new arrays."""
        for index, param in params:
            arrays = param._copies()
            before = self._started.get(index)
            if before is arrays[0]:
                continue
            self._started[index] = arrays[0]
            if not self._is_kept_elsewhere(param):
                self._store()._share(index, arrays)
            elif before is None:
                self._store().init(index, arrays[0])  # type: ignore[attr-defined]

    def _is_kept_elsewhere(self, param: Parameter) -> bool:
        """Tell whether a parameter is row_sparse and servers keep it: its own arrays do not count then."""
        store = self._kvstore
        return param._stype != "default" and store is not None and store._is_remote

    def _has_given(self, param: Parameter) -> bool:
        """Tell whether servers keep a row_sparse parameter by now."""
        given = any(self._params[index] is param for index in self._started)
        return given and self._is_kept_elsewhere(param)

    def _rows_of(self, param: Parameter, row_id: NDArray) -> NDArray | None:
        """Rows of a parameter that servers keep, which are pulled; None where its own arrays are what counts."""
        if not self._is_kept_elsewhere(param) or not self._on_kvstore(otherwise=None):
            return None
        index = next(index for index, each in enumerate(self._params) if each is param)
        self._share([(index, param)])
        made: NDArray = nd.sparse.zeros("row_sparse", param.shape, row_id.context, param.dtype)
        self._store().row_sparse_pull(index, out=made, row_ids=row_id)  # type: ignore[attr-defined]
        return made

    def _store(self) -> KVStoreBase:
        assert self._kvstore is not None
        return self._kvstore

    def _arrays_by_role(self) -> dict[str, list[NDArray]]:
        """The arrays that training keeps, as ``weights``, ``gradients`` and ``optimizer`` (its states)."""
        made = [param for param in self._params if param._arrays is not None]
        trained = [param for param in made if param._grads is not None]
        store = self._kvstore
        return {
            "weights": [array for param in made for array in param._copies()],
            "gradients": [array for param in trained for array in param.list_grad()],
            "optimizer": [array for each in self._updaters for array in each.arrays()],
            "kvstore": [] if store is None else store._arrays(),
        }

    def _arrays_by_name(self) -> dict[str, list[NDArray]]:
        """The weights by the names of parameters."""
        return {param.name: param._copies() for param in self._params if param._arrays is not None}

    def _planned_bytes(self) -> int:
        """The bytes of activations that plans reserve; 0 here, since hybridized blocks keep plans of their own."""
        return 0

    # -- several machines ------------------------------------------------------------------------------

    async def barrier(self) -> None:
        """Await that every worker of the job has come here, such as to the end of an epoch.

        A worker that waits here does not delay those that have batches left; afterwards all have the same parameters.
        Without a store of several machines it returns at once.
        """
        store = self._kvstore
        if store is None or not store._is_remote:
            return
        await store.barrier()  # type: ignore[attr-defined]
        if self._update_on_kvstore:
            for index in self._started:
                param = self._params[index]
                if not self._is_kept_elsewhere(param):
                    store.pull(index, out=param._copies(), priority=-index)  # type: ignore[attr-defined]

    # -- states ----------------------------------------------------------------------------------------

    def _is_updated_elsewhere(self) -> bool:
        """True where other processes keep the optimizer states."""
        return is_elsewhere(self._kvstore) and self._on_kvstore(otherwise=None)

    async def ready(self) -> None:
        """Await the optimizer's states, so that saving them does not block."""
        for updater in self._updaters:
            await updater.ready()

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Save the optimizer with its states; blocks until they are on disk (await :meth:`ready` in a coroutine).

        Args:
            fname: the file.
        """
        if self._is_updated_elsewhere():
            self._store().save_optimizer_states(fname, dump_optimizer=True)
        else:
            replace_file(fname, [self._updaters[0].get_states(dump_optimizer=True)])

    async def _saved_states(self) -> bytes | None:
        """The optimizer's states, for a checkpoint; None where another worker saves them."""
        if self._is_updated_elsewhere():
            return await self._store()._saved_states() if self._store()._leads else None
        await self.ready()
        return self._updaters[0].get_states()

    async def _resume_states(self, states: bytes | None) -> None:
        """Go on with the states of a checkpoint; servers that have come further keep their own."""
        if self._is_updated_elsewhere():
            self._share([each for each in enumerate(self._params) if each[1].grad_req != "null"])
            await self._store()._resume_states(states)
        elif states is not None:
            for updater in self._updaters:
                updater.set_states(states)

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Go on from what :meth:`save_states` saved.

        Raises:
            StatesFormatError: the file is something else, or damaged.
            OSError: it can not be read.
        """
        if self._is_updated_elsewhere():
            self._share([each for each in enumerate(self._params) if each[1].grad_req != "null"])
            self._store().load_optimizer_states(fname)
            return
        states = Path(fname).read_bytes()
        for updater in self._updaters:
            updater.set_states(states)
            self._optimizer = updater.optimizer
        for updater in self._updaters:
            updater.optimizer = self._optimizer
        self._optimizer.param_dict = dict(enumerate(self._params))


def _listed(params: Any) -> list[Parameter]:
    if isinstance(params, (ParameterDict, Mapping)):
        params = [params[key] for key in sorted(params.keys())]
    if not isinstance(params, (list, tuple)):
        raise ArgumentKindError(f"Trainer: params is {type(params).__name__}, expected a dict or list of Parameters")
    for each in params:
        if not isinstance(each, Parameter):
            raise TypeError(f"Trainer: params holds {each!r}, expected Parameters")
    return list(params)
