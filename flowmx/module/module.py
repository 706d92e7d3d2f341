"""``mx.mod.Module``: a symbol with its parameters and optimizer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

from flowmx import model
from flowmx import optimizer as opt
from flowmx.devices import Context, cpu, have_numerics
from flowmx.errors import StateError
from flowmx.initializer import InitDesc
from flowmx.io import DataDesc
from flowmx.kvstore import KVStoreBase, compression
from flowmx.kvstore.choice import chosen, updates
from flowmx.module import updating
from flowmx.module.arguments import MissingParameterError, check_names, device_groups
from flowmx.module.base import BaseModule, Binding, GivenParams, OptimizerParams
from flowmx.module.group import ExecutorGroup, merged
from flowmx.module.updating import Updating
from flowmx.ndarray import NDArray
from flowmx.ndarray.array import untouched, zeros_of
from flowmx.observability.safety import next_step


class Module(BaseModule):
    """A symbol with its parameters and optimizer.

    Args:
        symbol: the symbol; its outputs are usually losses such as ``SoftmaxOutput``.
        data_names: which of its arguments are inputs.
        label_names: which are labels.
        logger: where training is logged to.
        context: a device, or several: each batch is split among them, and a KVStore sums the gradients.
        work_load_list: the part of a batch for each device, in any unit.
        fixed_param_names: parameters that are not trained.
        state_names: arguments that are neither inputs nor parameters; see :meth:`set_states`.
        group2ctxs: the device of each ``ctx_group`` of the symbol, for model parallelism: a dict from group to device
            (or to a list of them, one for each of ``context``), or a list of such dicts.
        compression_params: what the KVStore's ``set_gradient_compression`` takes.

    Raises:
        ValueError: a name is no argument of the symbol, or there is no such compression.

    Example:
        >>> mod = mx.mod.Module(net, context=mx.cpu())
        >>> await mod.fit(train, eval_data=val, optimizer_params={"learning_rate": 0.1}, num_epoch=5)
        >>> await mod.score(val, "acc")
        [('accuracy', 0.98)]
    """

    def __init__(
        self,
        symbol: Any,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Any = None,
    ) -> None:
        super().__init__(logger)
        if compression_params:
            compression.create(compression_params)  # says what is wrong
        context = cpu() if context is None else context
        self._contexts = [context] if isinstance(context, Context) else list(context)
        self._group2ctxs = device_groups(group2ctxs, len(self._contexts))
        self._workloads = list(work_load_list or [1] * len(self._contexts))
        if len(self._workloads) != len(self._contexts):
            raise ValueError(
                f"Module: work_load_list has {len(self._workloads)} entries, expected {len(self._contexts)}, one for "
                "each device"
            )
        self._symbol = symbol
        self._data_names = list(data_names or ())
        self._label_names = list(label_names or ())
        self._state_names = list(state_names or ())
        self._fixed = list(fixed_param_names or ())
        arguments = symbol.list_arguments()
        check_names(arguments, self._data_names, "data_names", throw=True)
        check_names(arguments, self._label_names, "label_names", throw=False)
        check_names(arguments, self._state_names, "state_names", throw=True)
        check_names(arguments, self._fixed, "fixed_param_names", throw=True)
        inputs = {*self._data_names, *self._label_names, *self._state_names}
        self._param_names = [name for name in arguments if name not in inputs]
        self._aux_names: list[str] = symbol.list_auxiliary_states()
        self._output_names: list[str] = symbol.list_outputs()
        self._arg_params: dict[str, NDArray] = {}
        self._aux_params: dict[str, NDArray] = {}
        self._stale = False
        """True while the parameters on the devices are newer than those here."""
        self._padding = 0
        """Samples of the last batch that only fill it up."""
        self._group: ExecutorGroup | None = None
        self._updates: Updating | None = None
        self._compression_params = compression_params
        self._states_to_load: str | None = None

    # -- checkpoints -----------------------------------------------------------------------------------

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """A module with the symbol and parameters of a checkpoint; :meth:`fit` with ``begin_epoch=epoch`` resumes it.

        Args:
            prefix: of the files' names.
            epoch: the number of epochs done.
            load_optimizer_states: load these too, once an optimizer is installed.
            **kwargs: as for :class:`Module`.
        """
        symbol, arg_params, aux_params = model.load_checkpoint(prefix, epoch)
        made = Module(symbol, **kwargs)
        made._arg_params, made._aux_params = arg_params, aux_params
        made.params_initialized = True
        if load_optimizer_states:
            made._states_to_load = f"{prefix}-{epoch:04d}.states"
        return made

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Save symbol, parameters and, where asked to, the optimizer's states; blocks until they are on disk.

        Args:
            prefix: of the files' names.
            epoch: the number of epochs done.
            save_optimizer_states: save these to ``<prefix>-<epoch, four digits>.states``.
            remove_amp_cast: leave casts of mixed precision out of the symbol.
        """
        model.save_checkpoint(prefix, epoch, self._symbol, *self.get_params(), remove_amp_cast=remove_amp_cast)
        if save_optimizer_states:
            path = f"{prefix}-{epoch:04d}.states"
            self.save_optimizer_states(path)
            logging.info('Saved optimizer state to "%s"', path)

    def save_optimizer_states(self, fname: str) -> None:
        """Save the optimizer's states and update counts; blocks until they are on disk."""
        self._updating("save_optimizer_states").save_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Load the optimizer's states that :meth:`save_optimizer_states` saved, here or in MXNet.

        Raises:
            StatesFormatError: the file is something else, or damaged.
            OSError: it can not be read.
        """
        self._updating("load_optimizer_states").load_states(fname)

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def data_names(self) -> list[str]:
        return self._data_names

    @property
    def label_names(self) -> list[str]:
        """Names of the labels."""
        return self._label_names

    @property
    def output_names(self) -> list[str]:
        return self._output_names

    @property
    def data_shapes(self) -> list[DataDesc]:
        return self._executors("data_shapes").data_shapes

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        return self._executors("label_shapes").label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        group = self._executors("output_shapes")
        shapes = {each.name: each.shape for each in (*group.data_shapes, *(group.label_shapes or ()))}
        known = {name: shape for name, shape in shapes.items() if name in self._symbol.list_arguments()}
        return list(zip(self._output_names, self._symbol.infer_shape(**known)[1], strict=True))

    # -- binding ---------------------------------------------------------------------------------------

    def _bind(self, given: Binding) -> None:
        given.check_training()
        shared_module = given.shared_module
        if self.binded and self.params_initialized:
            self.get_params()  # they would be lost with the arrays that hold them
        data, label = self._described(given.data_shapes, given.label_shapes, 4)
        if shared_module is not None and not (shared_module.binded and shared_module.params_initialized):
            raise ValueError("bind: shared_module must be bound, with its parameters initialized")
        shared = None if shared_module is None else shared_module._group
        self._group = group = ExecutorGroup(
            self._symbol, self._contexts, self._workloads, data, label, self._param_names, self._fixed,
            given.for_training, given.inputs_need_grad, given.grad_req, shared, self._group2ctxs,
        )  # fmt: skip
        self._grad_req = given.grad_req
        if shared_module is not None:
            self._arg_params, self._aux_params = shared_module._arg_params, shared_module._aux_params
            self.params_initialized = True
            if shared_module.optimizer_initialized:
                self.borrow_optimizer(shared_module)
        elif self.params_initialized:
            group.set_params(self._arg_params, self._aux_params, allow_extra=True)
            self._arg_params = _chosen(self._arg_params, self._param_names)
            self._aux_params = _chosen(self._aux_params, self._aux_names)
            if self._updates is not None:
                self._updates.share(group)
        else:
            like = _like if have_numerics(self._contexts) else _untouched_like
            self._arg_params = {name: like(group.on_devices(name)[0]) for name in self._param_names}
            self._aux_params = {name: like(group.on_devices(name)[0]) for name in self._aux_names}

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Change to batches of other shapes; :meth:`forward` does so by itself.

        Args:
            data_shapes: as for :meth:`bind`.
            label_shapes: as for :meth:`bind`.
        """
        self._executors("reshape").reshape(*self._described(data_shapes, label_shapes, 3))

    def _described(
        self, data_shapes: Any, label_shapes: Any, stacklevel: int
    ) -> tuple[list[DataDesc], list[DataDesc] | None]:
        data = [each if isinstance(each, DataDesc) else DataDesc(*each) for each in data_shapes]
        if sorted(each.name for each in data) != sorted(self._data_names):
            raise ValueError(
                f"bind: data_shapes names {[each.name for each in data]}, expected the module's data_names "
                f"{self._data_names}"
            )
        if not label_shapes:
            return data, None
        label = [each if isinstance(each, DataDesc) else DataDesc(*each) for each in label_shapes]
        if sorted(each.name for each in label) != sorted(self._label_names):
            warnings.warn(
                f"bind: label_shapes names {[each.name for each in label]}, expected the module's label_names "
                f"{self._label_names}",
                stacklevel=stacklevel,
            )
        return data, label

    # -- parameters ------------------------------------------------------------------------------------

    def _init_params(self, initializer: Callable[..., Any] | None, given: GivenParams) -> None:
        if self.params_initialized and not given.force_init:
            warnings.warn(
                "init_params: the parameters are initialized already, so nothing was done: pass force_init=True to "
                "initialize them anew",
                stacklevel=3,
            )
            return
        group = self._executors("init_params")
        if self._stale:
            self.get_params()
        attributes = self._symbol.attr_dict()
        for kind, targets, values in (
            ("parameter", self._arg_params, given.arg_params),
            ("auxiliary state", self._aux_params, given.aux_params),
        ):
            for name in sorted(targets):
                if values is not None and name in values:
                    _copy(kind, name, values[name], targets[name])
                elif values is not None and not given.allow_missing:
                    raise MissingParameterError(
                        f"init_params: the {kind} {name!r} is not among those given; pass allow_missing=True to "
                        "leave it to the initializer"
                    )
                elif initializer is not None and have_numerics(self._contexts):
                    initializer(InitDesc(name, attributes.get(name)), targets[name])
        self.params_initialized = True
        self._stale = False
        group.set_params(self._arg_params, self._aux_params)

    def _set_params(self, given: GivenParams) -> None:
        arg_params, aux_params = given.arg_params or {}, given.aux_params or {}
        known = {*self._param_names, *self._aux_names}
        extra = [name for name in (*arg_params, *aux_params) if name not in known]
        if extra and not given.allow_extra:
            message = f"set_params: the module has no parameter {extra[0]!r}; pass allow_extra=True to leave such out"
            if given.allow_missing:
                raise ValueError(message)
            warnings.warn(message, stacklevel=3)  # MXNet looks at superfluous names with allow_missing alone
        super()._set_params(given._replace(arg_params=arg_params, aux_params=aux_params))

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """The parameters and auxiliary states, on the CPU (enqueued copies of those on the devices)."""
        if not self.params_initialized:
            raise StateError("get_params: the parameters are not initialized: call init_params() or set_params() first")
        if self._stale:
            group = self._executors("get_params")
            in_store = {} if self._updates is None else self._updates.fetch_rows(self._arg_params)
            group.fetch({k: v for k, v in self._arg_params.items() if k not in in_store}, averaged=False)
            group.fetch(self._aux_params, averaged=True)
            self._stale = False
        return self._arg_params, self._aux_params

    async def _synchronized(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        params = await super()._synchronized()
        updates = self._updates
        in_store = {name: params[0][name] for name in updates.in_store} if updates is not None else {}
        if len(self._contexts) > 1 or in_store:
            self._executors("fit").set_params(in_store, params[1])
        return params

    def _trained(self) -> list[Module]:
        return [self]

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        store = self._kvstore
        return (epoch, batch) if store is None else await store._begin_fit(epoch, batch)

    async def _end_epoch(self, epoch: int) -> int:
        store = self._kvstore
        if store is None:
            return epoch
        epoch = await store._end_epoch(epoch)
        self._pull()
        return epoch

    def _pull(self) -> None:
        """Pull the parameters as other workers have updated them."""
        self._stale |= self._updating("fit").pull(self._executors("fit"))

    # -- the optimizer ---------------------------------------------------------------------------------

    def _init_optimizer(
        self, kvstore: Any, optimizer: Any, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        group = self._executors("init_optimizer")
        store = chosen(kvstore, len(self._contexts))
        rescale_grad = 1.0 / (group.batch_size * updating.adding(store))
        created = updating.made(optimizer, dict(optimizer_params), rescale_grad, self._param_names, self._symbol)
        self._updates = Updating(created, store, self._updates_on(store, kvstore), self._param_names)
        self._updates.start(group, self._compression_params)
        if self._states_to_load is not None:
            self.load_optimizer_states(self._states_to_load)
            self._states_to_load = None

    def _updates_on(self, store: KVStoreBase | None, given: Any) -> bool:
        """Decide whether a store, chosen by the argument that was given, updates the weights."""
        return updates(store, given, [each.shape for each in self._arg_params.values()])

    def borrow_optimizer(self, shared_module: Module) -> None:
        """Use another module's optimizer, with its states.

        Raises:
            ValueError: it has none.
        """
        if not shared_module.optimizer_initialized:
            raise ValueError("borrow_optimizer: the other module has no optimizer: call its init_optimizer() first")
        self._updates = shared_module._updates
        self.optimizer_initialized = True

    def _updating(self, name: str) -> Updating:
        if self._updates is None:
            raise StateError(f"{name}: the module has no optimizer: call init_optimizer() first")
        return self._updates

    # MXNet's names of what scripts look at.

    @property
    def _optimizer(self) -> opt.Optimizer | None:
        return None if self._updates is None else self._updates.optimizer

    @property
    def _updater(self) -> opt.Updater | None:
        return None if self._updates is None else self._updates.updater

    @property
    def _kvstore(self) -> KVStoreBase | None:
        return None if self._updates is None else self._updates.store

    @property
    def _update_on_kvstore(self) -> bool:
        return self._updates is not None and self._updates.on_store

    # -- one batch -------------------------------------------------------------------------------------

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Enqueue the copies of those rows of row_sparse parameters that a batch needs from the store to the devices.

        Where a store updates such parameters, :meth:`update` does so in the store alone.

        Args:
            data_batch: the batch.
            sparse_row_id_fn: called with it, gives a dict from the names of parameters to the numbers of their rows,
                arrays of any shape.

        Raises:
            TypeError: what it gives is no dict.
            ValueError: a name is no parameter's.
        """
        group = self._executors("prepare")
        if sparse_row_id_fn is None:
            return
        updates = self._updates
        if updates is None or updates.store is None or not updates.on_store:
            warnings.warn(
                "prepare: the parameters are not updated in a store, so that sparse_row_id_fn need not be called",
                stacklevel=2,
            )
            return
        rows = sparse_row_id_fn(data_batch)
        if not isinstance(rows, dict):
            raise TypeError(
                f"prepare: sparse_row_id_fn gave a {type(rows).__name__}, expected a dict from names to rows"
            )
        updates.pull_rows(group, rows)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch, which may have other shapes than the last one.

        Args:
            data_batch: anything with ``data`` and ``label``, lists of arrays.
            is_train: training mode (default: as it is bound).
        """
        self._take("forward", data_batch).forward(data_batch, self.for_training if is_train is None else is_train)

    def forward_backward(self, data_batch: Any) -> None:
        if type(self).forward is not Module.forward or type(self).backward is not Module.backward:
            super().forward_backward(data_batch)  # somebody's own
            return
        self._check_trains("forward_backward")
        self._take("forward_backward", data_batch).forward_backward(data_batch)

    def _take(self, name: str, data_batch: Any) -> ExecutorGroup:
        """The executors, prepared for the shapes of a batch."""
        self._check_ready(name)
        group = self._executors(name)
        shapes = [tuple(array.shape) for array in data_batch.data]
        if shapes != [each.shape for each in group.data_shapes]:
            self.reshape(
                getattr(data_batch, "provide_data", None) or _reshaped(group.data_shapes, data_batch.data),
                getattr(data_batch, "provide_label", None)
                or _reshaped(group.label_shapes or [], getattr(data_batch, "label", None) or []),
            )
        self._padding = getattr(data_batch, "pad", 0) or 0
        return group

    def _check_trains(self, name: str) -> None:
        if not self.for_training:
            raise StateError(f"{name}: the module is bound for predictions: bind it with for_training=True")

    def backward(self, out_grads: Any = None) -> None:
        """Enqueue the backward pass of the last forward pass.

        Args:
            out_grads: gradients of the outputs, one or a list; only where an output is no loss.
        """
        self._check_ready("backward")
        self._check_trains("backward")
        self._executors("backward").backward(out_grads)

    def update(self) -> None:
        """Enqueue the update of every parameter by its gradient, summed over the devices."""
        updates = self._updating("update")
        self._stale = True
        group = self._executors("update")
        updates.update(group)
        next_step(self, max(group.batch_size - self._padding, 0))

    def _arrays_by_role(self) -> dict[str, list[NDArray]]:
        """The arrays that training keeps, as ``weights``, ``gradients`` and ``optimizer`` (its states)."""
        group = self._executors("update")
        names = [*self._param_names, *self._aux_names]
        gradients = [each for name in self._param_names for each in group.gradients(name) if each is not None]
        updates = self._updates
        return {
            "weights": [each for name in names for each in group.on_devices(name)],
            "gradients": gradients,
            "optimizer": [] if updates is None else updates.updater.arrays(),
            "kvstore": [] if updates is None or updates.store is None else updates.store._arrays(),
        }

    def _arrays_by_name(self) -> dict[str, list[NDArray]]:
        """The weights and auxiliary states by their names."""
        group = self._executors("update")
        return {name: group.on_devices(name) for name in [*self._param_names, *self._aux_names]}

    def _planned_bytes(self) -> int:
        """Bytes of activations by the plans of the bound executors."""
        return sum(each.internal_bytes() for each in self._executors("update").execs)

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        """The outputs of the last forward pass; the next one writes them anew.

        Args:
            merge_multi_context: put the devices' parts together; otherwise a list for each output.
        """
        outputs = self._executors("get_outputs").outputs()
        if not merge_multi_context:
            return outputs
        axes = [DataDesc.get_batch_axis(each.attr("__layout__")) for each in self._symbol]
        return merged(outputs, axes)

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        """The gradients of the inputs, of the last backward pass.

        Args:
            merge_multi_context: put the devices' parts together; otherwise a list for each input.

        Raises:
            RuntimeError: it is not bound for them.
        """
        group = self._executors("get_input_grads")
        if not self.inputs_need_grad:
            raise StateError("get_input_grads: the module is bound without them: bind it with inputs_need_grad=True")
        grads = group.input_grads()
        axes = [DataDesc.get_batch_axis(each.layout) for each in group.data_shapes]
        return merged(grads, axes) if merge_multi_context else grads

    def get_states(self, merge_multi_context: bool = True) -> Any:
        """The arrays of ``state_names``.

        Args:
            merge_multi_context: put the devices' parts together; otherwise a list for each state.
        """
        states = [self._executors("get_states").on_devices(name) for name in self._state_names]
        return merged(states, [0] * len(states)) if merge_multi_context else states

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the arrays of ``state_names``.

        Args:
            states: for each state, an array for each device.
            value: one number for all.
        """
        group = self._executors("set_states")
        for position, name in enumerate(self._state_names):
            for device, target in enumerate(group.on_devices(name)):
                target[:] = value if states is None else states[position][device]

    def install_monitor(self, mon: Any) -> None:
        for executor in self._executors("install_monitor").execs:
            mon.install(executor)

    def _measured(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        return self._executors("update_metric").measured(labels)

    def _executors(self, name: str) -> ExecutorGroup:
        if self._group is None:
            raise StateError(f"{name}: the module is not bound: call bind() first")
        return self._group


def _chosen(params: dict[str, NDArray], names: Sequence[str]) -> dict[str, NDArray]:
    missing = [name for name in names if name not in params]
    if missing:
        raise ValueError(
            f"bind: the parameters that were loaded lack {missing[0]!r}: make the module from the symbol, and give "
            "them to init_params with allow_missing=True"
        )
    return {name: params[name] for name in names}


def _like(array: NDArray) -> NDArray:
    return zeros_of(array.stype, array.shape, cpu(), array.dtype)


def _untouched_like(array: NDArray) -> NDArray:
    return untouched(array.shape, array.dtype)


def _copy(kind: str, name: str, source: Any, target: NDArray) -> None:
    if source is target:
        return
    if tuple(source.shape) != target.shape:
        raise ValueError(
            f"init_params: the {kind} {name!r} was given with shape {source.shape}, expected {target.shape}"
        )
    target[:] = source.as_in_context(cpu()) if isinstance(source, NDArray) else source


def _reshaped(described: Sequence[DataDesc], arrays: Sequence[Any]) -> list[DataDesc]:
    return [
        DataDesc(each.name, cast("tuple[int, ...]", tuple(array.shape)), each.dtype, each.layout)
        for each, array in zip(described, arrays, strict=False)
    ]
