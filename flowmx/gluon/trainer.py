"""Updates of a model's parameters by an optimizer, with gradients summed over devices."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowmx import autograd, forks
from flowmx import ndarray as nd
from flowmx import optimizer as opt
from flowmx.checkpoint.content import Blob
from flowmx.devices import Context
from flowmx.errors import ArgumentTypeError, StateError
from flowmx.foreign_names import TRAINERS, raise_missing
from flowmx.gluon import gradients
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.parameter_lists import as_list, have_builtin_lists
from flowmx.keywords import ChecksKeywords
from flowmx.kvstore import KVStoreBase, compression
from flowmx.kvstore.choice import check_updates, is_distributed, is_updated_by_store, select_store
from flowmx.ndarray import NDArray, core
from flowmx.observability.safety import next_step
from flowmx.overrides import is_replaced
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole
from flowmx.serialization.suffixes import check_states_suffix

__all__ = ["Trainer"]


class Trainer(ChecksKeywords):
    """Updates parameters by their gradients.

    Devices without a backward pass since the last step, because the batch was too small, are excluded from the sums;
    they get the updated parameters too.

    Args:
        params: the parameters, a list or the result of ``block.collect_params()``.
        optimizer: an optimizer, or the name of one.
        optimizer_params: the optimizer's arguments, if ``optimizer`` is a name.
        kvstore: ``"device"``, ``"local"``, another name that ``mx.kv.create`` takes, or a store. It sums gradients over
            devices and, with ``"dist_sync"``, over machines. A single device in a single process needs no store.
        compression_params: the argument of the store's ``set_gradient_compression``.
        update_on_kvstore: update each weight once, in the store, or on every device. By default the store
            updates if it can, unless :meth:`allreduce_grads` or :meth:`update` is called before :meth:`step`.
        max_grad_norm: scale the gradients, summed over devices and divided by the batch size, so that their joint
            2-norm is at most this. The workers then update the weights.
        accumulate: the number of calls of :meth:`step` for one update. Backward passes add to the gradients meanwhile
            (``grad_req`` becomes ``"add"``), and the sums are divided by all samples. Devices and workers exchange
            gradients only for an update.

    Attributes:
        grad_norm: the norm of the gradients in the last update before ``max_grad_norm`` limited it, an array of shape
            (1,) that need not be computed yet; None before the first update.

    Raises:
        TypeError: a parameter, the optimizer or the store has the wrong type.
        ValueError: the parameters are on different devices; there are arguments for an optimizer instance; the store
            cannot update weights but should; a name is unknown; or a number is out of its range.
        NotImplementedError: the kvstore is not implemented.

    Example:
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> with mx.autograd.record():
        ...     loss = loss_fn(net(data), label)
        >>> loss.backward()
        >>> trainer.step(batch_size=32)
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError, which names the equivalent of another library's attribute."""
            raise_missing(self, name, TRAINERS)

    _amp_guard: Any = None
    """Decides which steps are skipped, in mixed precision (:func:`flowmx.amp.init_trainer`)."""
    _amp_loss_scaler: Any = None
    _amp_original_scale: float = 1.0
    _is_warned = False
    _kv_initialized = False
    _is_installed = False
    """Whether the store has the updater."""

    def __init__(
        self, params: ParameterDict | Mapping[str, Parameter] | Sequence[Parameter], optimizer: str | opt.Optimizer,
        optimizer_params: Mapping[str, object] | None = None, kvstore: object = "device",
        compression_params: Mapping[str, object] | None = None, update_on_kvstore: bool | None = None, *,
        max_grad_norm: float | None = None,
        accumulate: int = 1,
    ) -> None:  # fmt: skip
        if compression_params:
            compression.create(compression_params)  # raises if they are invalid
        self._params = as_list(params)
        for param in self._params:
            param._set_trainer(self)
        self._contexts = self._check_contexts()
        gradients.check_max_norm(max_grad_norm, update_on_kvstore, self._params)
        self._max_grad_norm = max_grad_norm
        self.grad_norm: NDArray | None = None
        update_on_kvstore = update_on_kvstore if max_grad_norm is None else False
        self._init_optimizer(optimizer, _as_options(optimizer_params))
        self._scale = self._optimizer.rescale_grad
        self._kvstore_argument, self._compression_params = kvstore, compression_params
        self._kvstore = self._create_store()
        self._update_on_kvstore = self._check_update_on_kvstore(update_on_kvstore)
        self._active_contexts = self._contexts
        self._step_lock = forks.lock()
        self._step_params: list[tuple[int, Parameter]] | None = None
        """The parameters of the current step, with their positions."""
        self._initial_arrays: dict[int, NDArray] = {}
        """By position, the first array of a parameter when the store was initialized with it."""
        self._accumulation = gradients.Accumulation(accumulate, self._params)
        self._reset_kvstore()

    def _create_store(self) -> KVStoreBase | None:
        store = select_store(self._kvstore_argument, len(self._contexts), [param.name for param in self._params])
        if store is not None and self._compression_params:
            store.set_gradient_compression(self._compression_params)
        return store

    def _check_contexts(self) -> list[Context]:
        contexts: list[Context] = self._params[0].list_ctx() if self._params else []
        for param in self._params:
            if param.list_ctx() != contexts:
                raise ValueError(
                    f"Trainer: parameter {param.name!r} is on {param.list_ctx()}, and {self._params[0].name!r} on "
                    f"{contexts}, expected the same devices for all"
                )
        return contexts

    def attach_loss_scaler(self, loss_scaler: object, guard: object) -> None:
        """Train with scaled losses; the workers update the weights. For :func:`mx.amp.init_trainer`.

        Args:
            loss_scaler: holds the current scale.
            guard: decides which steps are skipped; it replaces an earlier one.
        """
        if self._amp_guard is not None:
            self._amp_guard.disarm()
        if self._update_on_kvstore is None:
            self._update_on_kvstore = False
        self._amp_loss_scaler, self._amp_original_scale, self._amp_guard = loss_scaler, self._scale, guard

    def divide_gradients_by(self, loss_scale: float) -> None:
        """Divide gradients by a loss scale in later steps."""
        self._scale = self._amp_original_scale / loss_scale

    def _check_update_on_kvstore(self, update_on_kvstore: bool | None) -> bool | None:
        """Check ``update_on_kvstore`` against the store; if it is None, the first step decides."""
        store = self._kvstore
        if store is None:
            return None
        check_updates("Trainer", store, update_on_kvstore)
        return update_on_kvstore

    def _init_optimizer(self, optimizer: str | opt.Optimizer, optimizer_params: Mapping[str, object]) -> None:
        """Create the optimizer, and an updater for each device."""
        if isinstance(optimizer, opt.Optimizer):
            if optimizer_params:
                raise ValueError(
                    f"Trainer: optimizer_params are not allowed with an optimizer instance: {optimizer_params}"
                )
            self._optimizer = optimizer
        else:
            self._optimizer = opt.create(optimizer, **optimizer_params)
        self._optimizer.param_dict = dict(enumerate(self._params))
        self._updaters = [opt.get_updater(self._optimizer) for _ in self._contexts]

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
            UserWarning: the optimizer has a schedule (as in MXNet).
        """
        self._optimizer.set_learning_rate(lr)

    # -- one step --------------------------------------------------------------------------------------

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Enqueue the update of all parameters by their gradients, summed over the devices.

        In mixed precision, wait for the gradients and skip the step if they overflow; in a coroutine, await
        :meth:`step_async`. If the trainer accumulates gradients, only every ``accumulate``-th call updates.

        Args:
            batch_size: gradients are divided by it.
            ignore_stale_grad: skip parameters that no backward pass has reached since the last update.

        Raises:
            UserWarning: no backward pass has reached a parameter, and ``ignore_stale_grad`` is False (as in MXNet).
        """
        _check_batch_size(batch_size)
        with self._hold_params(ignore_stale_grad):
            self._step_now(ignore_stale_grad, self._accumulation.add(batch_size))

    def _step_now(self, ignore_stale_grad: bool, batch_size: int | None) -> None:
        """Update by the gradients of all batches since the last update, unless ``batch_size`` is None."""
        if batch_size is None:
            return
        try:
            self._begin_step(batch_size)
            is_skipped = self._amp_guard is not None and self._amp_guard.must_skip()
            self._finish_step(ignore_stale_grad, batch_size, is_skipped)
        finally:
            self._accumulation.clear()

    async def step_async(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Run :meth:`step`, awaiting the gradients if mixed precision checks them."""
        _check_batch_size(batch_size)
        with self._hold_params(ignore_stale_grad) as params:
            total = self._accumulation.add(batch_size)
        await self._step_now_async(ignore_stale_grad, total, params)

    async def _step_now_async(
        self, ignore_stale_grad: bool, batch_size: int | None, params: list[tuple[int, Parameter]]
    ) -> None:
        if batch_size is None:
            return
        try:
            with self._hold_params(ignore_stale_grad, params):
                self._begin_step(batch_size)
            is_skipped = self._amp_guard is not None and await self._amp_guard.must_skip_async()
            with self._hold_params(ignore_stale_grad, params):
                self._finish_step(ignore_stale_grad, batch_size, is_skipped)
        finally:
            self._accumulation.clear()

    def flush(self, ignore_stale_grad: bool = False) -> None:
        """Update by the gradients accumulated since the last update, if any, for example at the end of training."""
        with self._hold_params(ignore_stale_grad=True):
            self._step_now(ignore_stale_grad, self._accumulation.take())

    async def flush_async(self, ignore_stale_grad: bool = False) -> None:
        """Run :meth:`flush`, awaiting the gradients if mixed precision checks them."""
        with self._hold_params(ignore_stale_grad=True) as params:
            total = self._accumulation.take()
        await self._step_now_async(ignore_stale_grad, total, params)

    @contextmanager
    def _hold_params(
        self, ignore_stale_grad: bool, params: list[tuple[int, Parameter]] | None = None
    ) -> Iterator[list[tuple[int, Parameter]]]:  # fmt: skip
        """Hold the parameters of a step until it has ended, failed or been cancelled; other threads' steps wait."""
        with self._step_lock:
            self._step_params = params = self._params_to_update(ignore_stale_grad) if params is None else params
            try:
                yield params
            finally:
                self._step_params = None

    def _begin_step(self, batch_size: int) -> None:
        self._check_and_rescale_grad(self._scale / batch_size)
        self._prepare()
        self._allreduce_grads()
        if self._amp_guard is None:
            self._warn_unscaled()

    def _finish_step(self, ignore_stale_grad: bool, batch_size: int, is_skipped: bool) -> None:
        if is_skipped:
            for _, param in self._step_params or ():
                for ctx in self._contexts:
                    param._mark_used(ctx)
        else:
            if self._max_grad_norm is not None:
                self._clip(self._max_grad_norm)
            self._update(ignore_stale_grad)
        # step(1) follows a mean loss: the number of samples is unknown.
        next_step(self, batch_size if batch_size > 1 else 0)

    def _clip(self, max_norm: float) -> None:
        """Enqueue the clipping of the step's gradients; each device computes their norm."""
        params = [param for _, param in self._step_params or ()]
        for ctx in reversed(self._contexts if params else []):
            grads = [param._array_on(param._grads, ctx) for param in params]
            self.grad_norm = gradients.clip(grads, max_norm, self._optimizer.rescale_grad)

    def _warn_unscaled(self) -> None:
        """Warn if operators compute in float16 and the loss is not scaled."""
        if core.casting is not None and core.casting.needs_scaling and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                "Trainer.step: operators compute in float16 (amp.init()), but the loss is not scaled, so small "
                "gradients vanish: call backward() on the loss of `with amp.scale_loss(loss, trainer) as scaled_loss`",
                stacklevel=4,
            )

    def allreduce_grads(self) -> None:
        """Enqueue the sums of the gradients over the devices, to change them before :meth:`update`.

        Raises:
            RuntimeError: the store updates the weights, so there are no separate sums.
        """
        self._refuse_on_kvstore("allreduce_grads")
        self._refuse_accumulated("allreduce_grads")
        self._prepare()
        self._allreduce_grads()

    # Subclasses of MXNet's Trainer override these methods, which are called as in MXNet.

    def _reset_kvstore(self) -> None:
        """Make the next step initialize the store again, with all parameters.

        Raises:
            StateError: servers store the parameters.
        """
        if self._kv_initialized and is_distributed(self._kvstore):
            raise StateError("Trainer: the kvstore of a distributed job cannot be reset: create another Trainer")
        if self._kv_initialized and not isinstance(self._kvstore_argument, KVStoreBase):
            self._kvstore = self._create_store()
        self._kv_initialized = self._is_installed = False
        self._initial_arrays = {}
        self._params_to_init: list[Parameter] = list(self._params)

    def _init_kvstore(self) -> None:
        """Decide whether the store updates the weights."""
        self._on_kvstore(default=None)
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Initialize the store with the parameters in ``_params_to_init`` that have values; the others stay there."""
        store, deferred = self._kvstore, [param for param in self._params_to_init if param._deferred is not None]
        if store is not None:
            with_gradient = {id(param) for param in self._params_to_init if param._grads is not None}
            params = [(index, param) for index, param in enumerate(self._params) if id(param) in with_gradient]
            if self._on_kvstore(default=None):
                self._share(params)
            else:
                self._broadcast(params)
        self._params_to_init = deferred if store is not None else []

    def _check_and_rescale_grad(self, scale: float) -> None:
        """Set the factor of gradients in the optimizer."""
        self._optimizer.rescale_grad = scale

    def _prepare(self) -> None:
        """Initialize the store, and the parameters in it, if this has not been done."""
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _allreduce_grads(self) -> None:
        """Enqueue the sums of a step's gradients, or its updates if the store does them."""
        params = self._params_to_update(ignore_stale_grad=True) if self._step_params is None else self._step_params
        if self._on_kvstore(default=None):
            self._update_in_store(params)
        else:
            self._sum(params)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Enqueue the updates of a step, unless the store does them."""
        if self._on_kvstore(default=None):
            return
        params = self._params_to_update(ignore_stale_grad) if self._step_params is None else self._step_params
        indices = [index for index, _ in params]
        is_builtin = have_builtin_lists(params)
        for position, (ctx, updater) in enumerate(zip(self._contexts, self._updaters, strict=True)):
            if is_builtin:
                grads = [param._array_on(param._grads, ctx) for _, param in params]
                weights = [param._array_on(param._arrays, ctx) for _, param in params]
            else:
                grads = [param.list_grad()[position] for _, param in params]
                weights = [param.list_data()[position] for _, param in params]
            updater(indices, grads, weights)
            for _, param in params:
                param._mark_used(ctx)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Enqueue the update of all parameters by their gradients, without summing them; see :meth:`step`.

        Raises:
            RuntimeError: the store updates the weights.
        """
        self._refuse_on_kvstore("update")
        self._refuse_accumulated("update")
        self._prepare()
        self._check_and_rescale_grad(self._scale / batch_size)
        with self._hold_params(ignore_stale_grad):
            is_skipped = self._amp_guard is not None and self._amp_guard.must_skip()
            self._finish_step(ignore_stale_grad, batch_size, is_skipped)

    def _on_kvstore(self, default: bool | None) -> bool:
        """Return whether the store updates weights. The first call decides: ``default``, or the store's preference."""
        if self._kvstore is None:
            return False
        if self._update_on_kvstore is None:
            if default is None:
                default = self._prefers_store(self._kvstore)
            self._update_on_kvstore = default
        if not self._update_on_kvstore:
            self._check_rows(self._kvstore)
        if self._update_on_kvstore and not self._is_installed:
            assert self._kvstore is not None
            self._kvstore._install(self._updaters[0])
            self._is_installed = True
        return self._update_on_kvstore

    def _prefers_store(self, store: KVStoreBase) -> bool:
        """Return whether the store updates weights by default."""
        if any(param._stype != "default" for param in self._params):
            return True
        if any(param._grad_stype != "default" for param in self._params) and not is_distributed(store):
            return False  # summed rows are cheaper to copy than whole weights
        return is_updated_by_store(store, self._kvstore_argument, [param.shape or () for param in self._params])

    def _check_rows(self, store: KVStoreBase) -> None:
        """Check that devices may update all parameters.

        Raises:
            ValueError: only the store can update a sparse parameter.
        """
        for param in self._params:
            if param._stype != "default" or (param._grad_stype != "default" and is_distributed(store)):
                raise ValueError(
                    f"Trainer: update_on_kvstore is False, but parameter {param.name!r} is {param._stype} with a "
                    f"{param._grad_stype} gradient, which the kvstore {store.type!r} must update: drop the argument"
                )

    def _refuse_on_kvstore(self, call: str) -> None:
        if self._on_kvstore(default=False):
            raise StateError(
                f"{call}: the kvstore updates the parameters as part of step(): create the Trainer with "
                "update_on_kvstore=False to sum and update separately"
            )

    def _refuse_accumulated(self, call: str) -> None:
        if self._accumulation.is_active:
            raise StateError(
                f"{call}: the trainer accumulates the gradients of {self._accumulation.batches} batches, which step() "
                "sums over devices: call step(), and pass max_grad_norm to the Trainer to clip"
            )

    def _params_to_update(self, ignore_stale_grad: bool) -> list[tuple[int, Parameter]]:
        """Return the parameters to update, with their positions."""
        with_gradient = [(index, param) for index, param in enumerate(self._params) if param.grad_req != "null"]
        for _, param in with_gradient:
            if param._grads is None:
                param.list_grad()  # raises the parameter's own error
        self._active_contexts = self._contexts_with_gradients([param for _, param in with_gradient])
        params = []
        for index, param in with_gradient:
            for ctx in self._active_contexts:
                if not param._is_fresh(ctx):
                    break
            else:
                params.append((index, param))
                continue
            if not ignore_stale_grad:
                raise UserWarning(
                    f"step: no backward pass has reached parameter {param.name!r} on {ctx} since the last update: "
                    "perhaps the model does not use it; if that is intended, pass ignore_stale_grad=True to skip "
                    "such parameters"
                )
        return params

    def _contexts_with_gradients(self, params: list[Parameter]) -> list[Context]:
        """Return the devices that computed a part of the batch; all of them if none did."""
        if len(self._contexts) == 1:
            return self._contexts
        contexts = [ctx for ctx in self._contexts if any(param._is_fresh(ctx) for param in params)]
        return contexts or self._contexts

    def _sum(self, params: list[tuple[int, Parameter]]) -> None:
        store = self._kvstore
        if store is None:
            return
        self._broadcast(params)
        with autograd.pause():
            grads = [[param.grad(ctx) for ctx in self._active_contexts] for _, param in params]
            store._exchange([index for index, _ in params], grads, [param.list_grad() for _, param in params])

    def _broadcast(self, params: list[tuple[int, Parameter]]) -> None:
        """Copy the same initial values to all devices and workers."""
        with autograd.pause():
            for index, param in params:
                if index not in self._initial_arrays:
                    self._initial_arrays[index] = param._copies()[0]
                    self._store().broadcast(index, param._copies()[0], out=param._copies())

    def _update_in_store(self, params: list[tuple[int, Parameter]]) -> None:
        store = self._kvstore
        assert store is not None
        store._refresh()
        self._share(params)
        local_params = []
        for index, param in params:
            if self._is_stored_remotely(param):
                grads = [param.grad(ctx) for ctx in self._active_contexts]
                store.push(index, grads, priority=-index)
            else:
                local_params.append((index, param))
        sums = [[param.grad(ctx) for ctx in self._active_contexts] for _, param in local_params]
        store._exchange([index for index, _ in local_params], sums, [param._copies() for _, param in local_params])
        for _, param in params:
            for ctx in self._contexts:
                param._mark_used(ctx)

    def _share(self, params: list[tuple[int, Parameter]]) -> None:
        """Share with the store the parameters that it lacks, and those with new arrays."""
        for index, param in params:
            arrays = param._copies()
            previous = self._initial_arrays.get(index)
            if previous is arrays[0]:
                continue
            self._initial_arrays[index] = arrays[0]
            if not self._is_stored_remotely(param):
                self._store()._share(index, arrays)
            elif previous is None:
                self._store().init(index, arrays[0])

    def _is_stored_remotely(self, param: Parameter) -> bool:
        """Return whether a parameter is row_sparse and stored on servers, so that its local arrays are unused."""
        store = self._kvstore
        return param._stype != "default" and store is not None and store._is_remote

    def _is_on_servers(self, param: Parameter) -> bool:
        """Return whether servers already store a row_sparse parameter."""
        if not self._is_stored_remotely(param):
            return False
        return any(self._params[index] is param for index in self._initial_arrays)

    def _pull_rows(self, param: Parameter, row_id: NDArray) -> NDArray | None:
        """Pull rows of a parameter that is stored on servers; None if its local arrays are valid."""
        is_builtin = not is_replaced(self, "_row_sparse_pull", _row_sparse_pull)
        if is_builtin and not (self._is_stored_remotely(param) and self._on_kvstore(default=None)):
            return None
        rows: NDArray = nd.sparse.zeros("row_sparse", param.shape, row_id.context, param.dtype)
        self._row_sparse_pull(param, rows, row_id)
        return rows

    def _row_sparse_pull(self, parameter: Parameter, out: NDArray, row_id: NDArray, full_idx: bool = False) -> None:
        """Copy rows of a row_sparse parameter into an array; all rows if ``full_idx`` is True."""
        self._prepare()
        if self._is_stored_remotely(parameter) and self._on_kvstore(default=None):
            index = next(index for index, param in enumerate(self._params) if param is parameter)
            self._share([(index, parameter)])
            self._store().row_sparse_pull(index, out=out, row_ids=row_id)
            return
        array = parameter._array_on(parameter._arrays, out.context)
        rows = array if full_idx else nd.sparse.distinct_rows(array, row_id)
        rows.copyto(out)

    def _store(self) -> KVStoreBase:
        assert self._kvstore is not None
        return self._kvstore

    def _arrays_by_role(self) -> dict[str, list[NDArray]]:
        """Return the arrays of training by role: ``weights``, ``gradients``, ``optimizer`` (states), ``kvstore``."""
        params = [param for param in self._params if param._arrays is not None]
        with_gradient = [param for param in params if param._grads is not None]
        store = self._kvstore
        return {
            "weights": [array for param in params for array in param._copies()],
            "gradients": [array for param in with_gradient for array in param.list_grad()],
            "optimizer": [array for updater in self._updaters for array in updater.arrays()],
            "kvstore": [] if store is None else store._arrays(),
        }

    def _arrays_by_name(self) -> dict[str, list[NDArray]]:
        """Return the weights by the names of parameters."""
        return {param.name: param._copies() for param in self._params if param._arrays is not None}

    def _planned_bytes(self) -> int:
        """Return 0, the bytes of planned activations: hybridized blocks plan their memory themselves."""
        return 0

    # -- distributed -----------------------------------------------------------------------------------

    async def barrier(self) -> None:
        """Wait until every worker of the job has called this, for example at the end of an epoch.

        A waiting worker does not delay workers with remaining batches; afterwards all have the same parameters.
        Without a distributed store, return immediately.
        """
        store = self._kvstore
        if store is None or not store._is_remote:
            return
        await store.barrier()
        if self._update_on_kvstore:
            for index in self._initial_arrays:
                param = self._params[index]
                if not self._is_stored_remotely(param):
                    store.pull(index, out=param._copies(), priority=-index)

    # -- states ----------------------------------------------------------------------------------------

    def _is_updated_elsewhere(self) -> bool:
        """Return whether other processes hold the optimizer states."""
        return is_distributed(self._kvstore) and self._on_kvstore(default=None)

    async def ready(self) -> None:
        """Await the optimizer's states, so that saving them does not block."""
        for updater in self._updaters:
            await updater.ready()

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Save the optimizer with its states; blocks until they are on disk (await :meth:`ready` in a coroutine).

        Accumulated gradients are not saved, except by ``mx.checkpoint``: the states are those of the last update.

        Args:
            fname: the file.

        Raises:
            ValueError: the file's name has the suffix of a different format.
        """
        check_states_suffix(fname)
        self._prepare()
        if self._is_updated_elsewhere():
            self._store().save_optimizer_states(fname, dump_optimizer=True)
        else:
            replace_file(fname, [self._updaters[0].get_states(dump_optimizer=True)])

    async def _saved_states(self) -> Blob | None:
        """Return the optimizer's states, for a checkpoint; None if another worker saves them."""
        if self._is_updated_elsewhere():
            return await self._store()._saved_states() if self._store()._leads else None
        await self.ready()
        return self._updaters[0].states_in_pieces()

    def _share_trained(self) -> None:
        """Share initialized parameters with servers that update them; a late worker gets the servers' values."""
        if self._is_updated_elsewhere():
            numbered = [item for item in enumerate(self._params) if item[1]._deferred is None]
            self._share([item for item in numbered if item[1].grad_req != "null" and item[1]._arrays is not None])

    def _pull_trained(self) -> None:
        """Enqueue pulls of the parameters that other workers have updated."""
        if self._is_updated_elsewhere():
            for index, param in enumerate(self._params):
                if index in self._initial_arrays and not self._is_stored_remotely(param):
                    self._store().pull(index, out=param._copies(), priority=-index)

    async def _resume_states(self, states: bytes | memoryview | None) -> None:
        """Restore the states of a checkpoint; servers with newer states keep theirs."""
        self._prepare()
        if self._is_updated_elsewhere():
            self._share([item for item in enumerate(self._params) if item[1].grad_req != "null"])
            await self._store()._resume_states(states)
        elif states is not None:
            for updater in self._updaters:
                updater.set_states(states)

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Restore the states that :meth:`save_states` saved.

        Raises:
            StatesFormatError: the file has a different format, or is damaged.
            OSError: the file cannot be read.
        """
        self._prepare()
        if self._is_updated_elsewhere():
            self._share([item for item in enumerate(self._params) if item[1].grad_req != "null"])
            self._store().load_optimizer_states(fname)
            return
        states = read_whole(fname)
        self._accumulation.take()
        self._accumulation.clear()
        for updater in self._updaters:
            updater.set_states(states)
            self._optimizer = updater.optimizer
        for updater in self._updaters:
            updater.optimizer = self._optimizer
        self._optimizer.param_dict = dict(enumerate(self._params))


_row_sparse_pull = Trainer._row_sparse_pull


def _as_options(optimizer_params: object) -> dict[str, Any]:
    try:
        options: dict[str, Any] = dict(optimizer_params or {})  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"Trainer: optimizer_params is {optimizer_params!r}, expected a dict such as {{'learning_rate': 0.1}}"
        ) from None
    return options


def _check_batch_size(batch_size: float) -> None:
    if not batch_size:
        raise ValueError(f"step: batch_size is {batch_size!r}, expected the number of samples of the batch")
