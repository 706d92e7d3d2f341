"""``mx.mod.Module``: a symbol with its parameters and optimizer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

from flowmx import model
from flowmx import optimizer as opt
from flowmx.devices import Context, cpu, have_numerics
from flowmx.errors import ArgumentTypeError, StateError
from flowmx.initializer import InitDesc
from flowmx.io import DataDesc
from flowmx.kvstore import KVStoreBase, compression
from flowmx.kvstore.choice import is_updated_by_store, select_store
from flowmx.module.argument_checks import MissingParameterError, check_names, descriptions, device_groups
from flowmx.module.base_module import BaseModule, Binding, InitialParams, OptimizerParams
from flowmx.module.evaluation import merges_devices
from flowmx.module.executor_group import ExecutorGroup, merge_parts
from flowmx.module.parameter_updater import ParameterUpdater, create_optimizer, summed_workers
from flowmx.ndarray import NDArray
from flowmx.ndarray.creation import untouched, zeros_of
from flowmx.observability.safety import next_step
from flowmx.overrides import is_replaced


class Module(BaseModule):
    """A symbol with its parameters and optimizer.

    Args:
        symbol: the symbol; its outputs are usually losses such as ``SoftmaxOutput``.
        data_names: the arguments that are inputs.
        label_names: the arguments that are labels.
        logger: the logger of training.
        context: a device, or several: each batch is split among them, and a KVStore sums the gradients.
        work_load_list: the relative share of a batch for each device.
        fixed_param_names: parameters that are not trained.
        state_names: arguments that are neither inputs nor parameters; see :meth:`set_states`.
        group2ctxs: the device of each ``ctx_group`` of the symbol, for model parallelism: a dict from group to device
            (or to a list of devices, one for each of ``context``), or a list of such dicts.
        compression_params: the argument of the KVStore's ``set_gradient_compression``.

    Raises:
        ValueError: a name is not an argument of the symbol, or the compression is unknown.

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
        logger: object = logging,
        context: Context | Sequence[Context] | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: object = None,
        compression_params: Any = None,
    ) -> None:
        super().__init__(logger)
        if compression_params:
            compression.create(compression_params)  # raises if they are invalid
        context = cpu() if context is None else context
        self._contexts = [context] if isinstance(context, Context) else list(context)
        self._group2ctxs = device_groups(group2ctxs, len(self._contexts))
        self._workloads = list(work_load_list or [1] * len(self._contexts))
        if len(self._workloads) != len(self._contexts):
            raise ValueError(
                f"Module: work_load_list has {len(self._workloads)} entries, expected {len(self._contexts)}, one for "
                "each device"
            )
        if not hasattr(symbol, "list_arguments"):
            raise ArgumentTypeError(
                f"Module: symbol is a {type(symbol).__name__}, expected a Symbol; a Gluon block is trained with "
                "mx.gluon.Trainer, or is block(mx.sym.var('data')) as a symbol"
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
        """True while the parameters on the devices are newer than the copies here."""
        self._padding = 0
        """Number of samples that pad the last batch."""
        self._group: ExecutorGroup | None = None
        self._parameter_updater: ParameterUpdater | None = None
        self._compression_params = compression_params
        self._states_to_load: str | None = None

    # -- checkpoints -----------------------------------------------------------------------------------

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """Return a module with the symbol and parameters of a checkpoint.

        :meth:`fit` with ``begin_epoch=epoch`` resumes its training.

        Args:
            prefix: the prefix of the files' names.
            epoch: the number of completed epochs.
            load_optimizer_states: also load the optimizer's states, when the optimizer is installed.
            **kwargs: arguments of :class:`Module`.
        """
        symbol, arg_params, aux_params = model.load_checkpoint(prefix, epoch)
        module = Module(symbol, **kwargs)
        module._arg_params, module._aux_params = arg_params, aux_params
        module.params_initialized = True
        if load_optimizer_states:
            module._states_to_load = f"{prefix}-{epoch:04d}.states"
        return module

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Save symbol, parameters and optionally the optimizer's states; blocks until they are on disk.

        Args:
            prefix: the prefix of the files' names.
            epoch: the number of completed epochs.
            save_optimizer_states: also save the optimizer's states, to ``<prefix>-<epoch, four digits>.states``.
            remove_amp_cast: remove casts of mixed precision from the symbol.
        """
        model.save_checkpoint(prefix, epoch, self._symbol, *self.get_params(), remove_amp_cast=remove_amp_cast)
        if save_optimizer_states:
            path = f"{prefix}-{epoch:04d}.states"
            self.save_optimizer_states(path)
            logging.info('Saved optimizer state to "%s"', path)

    def save_optimizer_states(self, fname: str) -> None:
        """Save the optimizer's states and update counts; blocks until they are on disk."""
        self._require_updater("save_optimizer_states").save_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Load the optimizer's states that :meth:`save_optimizer_states` saved, here or in MXNet.

        Raises:
            StatesFormatError: the file has a different format, or is damaged.
            OSError: the file cannot be read.
        """
        self._require_updater("load_optimizer_states").load_states(fname)

    # -- names and shapes ------------------------------------------------------------------------------

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
        shapes = {desc.name: desc.shape for desc in (*group.data_shapes, *(group.label_shapes or ()))}
        inputs = {name: shape for name, shape in shapes.items() if name in self._symbol.list_arguments()}
        return list(zip(self._output_names, self._symbol.infer_shape(**inputs)[1], strict=True))

    # -- binding ---------------------------------------------------------------------------------------

    def _bind(self, binding: Binding) -> None:
        binding.check_training()
        shared_module = binding.shared_module
        if self.binded and self.params_initialized:
            self.get_params()  # fetch them before their arrays are replaced
        data, label = self._describe(binding.data_shapes, binding.label_shapes, 4)
        if shared_module is not None and not (shared_module.binded and shared_module.params_initialized):
            raise ValueError("bind: shared_module must be bound, with its parameters initialized")
        shared = None if shared_module is None else shared_module._group
        self._group = group = ExecutorGroup(
            self._symbol, self._contexts, self._workloads, data, label, self._param_names, self._fixed,
            binding.for_training, binding.inputs_need_grad, binding.grad_req, shared, self._group2ctxs,
        )  # fmt: skip
        self._grad_req = binding.grad_req
        if shared_module is not None:
            self._arg_params, self._aux_params = shared_module._arg_params, shared_module._aux_params
            self.params_initialized = True
            if shared_module.optimizer_initialized:
                self.borrow_optimizer(shared_module)
        elif self.params_initialized:
            group.set_params(self._arg_params, self._aux_params, allow_extra=True)
            self._arg_params = _select(self._arg_params, self._param_names)
            self._aux_params = _select(self._aux_params, self._aux_names)
            if self._parameter_updater is not None:
                self._parameter_updater.share(group)
        else:
            make_array = _zeros_like if have_numerics(self._contexts) else _untouched_like
            self._arg_params = {name: make_array(group.on_devices(name)[0]) for name in self._param_names}
            self._aux_params = {name: make_array(group.on_devices(name)[0]) for name in self._aux_names}

    def reshape(self, data_shapes: object, label_shapes: object = None) -> None:
        """Prepare for batches of other shapes; :meth:`forward` calls this if necessary.

        Args:
            data_shapes: as for :meth:`bind`.
            label_shapes: as for :meth:`bind`.
        """
        self._executors("reshape").reshape(*self._describe(data_shapes, label_shapes, 3))

    def _describe(
        self, data_shapes: Any, label_shapes: Any, stacklevel: int
    ) -> tuple[list[DataDesc], list[DataDesc] | None]:
        data = descriptions("data_shapes", data_shapes)
        if sorted(desc.name for desc in data) != sorted(self._data_names):
            raise ValueError(
                f"bind: data_shapes names {[desc.name for desc in data]}, expected the module's data_names "
                f"{self._data_names}"
            )
        if not label_shapes:
            return data, None
        label = descriptions("label_shapes", label_shapes)
        if sorted(desc.name for desc in label) != sorted(self._label_names):
            warnings.warn(
                f"bind: label_shapes names {[desc.name for desc in label]}, expected the module's label_names "
                f"{self._label_names}",
                stacklevel=stacklevel,
            )
        return data, label

    # -- parameters ------------------------------------------------------------------------------------

    def _init_params(self, initializer: Callable[..., object] | None, params: InitialParams) -> None:
        if self.params_initialized and not params.force_init:
            warnings.warn(
                "init_params: the parameters are already initialized, so nothing was done: pass force_init=True to "
                "initialize them again",
                stacklevel=3,
            )
            return
        group = self._executors("init_params")
        if self._stale:
            self.get_params()
        attributes = self._symbol.attr_dict()
        for kind, targets, values in (
            ("parameter", self._arg_params, params.arg_params),
            ("auxiliary state", self._aux_params, params.aux_params),
        ):
            for name in sorted(targets):
                if values is not None and name in values:
                    _copy(kind, name, values[name], targets[name])
                elif values is not None and not params.allow_missing:
                    raise MissingParameterError(
                        f"init_params: the {kind} {name!r} is missing; pass allow_missing=True to "
                        "leave it to the initializer"
                    )
                elif initializer is not None and have_numerics(self._contexts):
                    initializer(InitDesc(name, attributes.get(name)), targets[name])
        self.params_initialized = True
        self._stale = False
        group.set_params(self._arg_params, self._aux_params)

    def _set_params(self, params: InitialParams) -> None:
        arg_params, aux_params = params.arg_params or {}, params.aux_params or {}
        names = {*self._param_names, *self._aux_names}
        extra = [name for name in (*arg_params, *aux_params) if name not in names]
        if extra and not params.allow_extra:
            message = f"set_params: the module has no parameter {extra[0]!r}; pass allow_extra=True to ignore it"
            if params.allow_missing:
                raise ValueError(message)
            warnings.warn(message, stacklevel=3)  # MXNet checks for extra names only with allow_missing
        super()._set_params(params._replace(arg_params=arg_params, aux_params=aux_params))

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Return the parameters and auxiliary states, on the CPU (enqueued copies of those on the devices)."""
        if not self.params_initialized:
            raise StateError("get_params: the parameters are not initialized: call init_params() or set_params() first")
        if self._stale:
            self._sync_params_from_devices()
        return self._arg_params, self._aux_params

    def _sync_params_from_devices(self) -> None:
        """Copy the parameters and auxiliary states from the devices."""
        group = self._executors("get_params")
        in_store = {} if self._parameter_updater is None else self._parameter_updater.fetch_rows(self._arg_params)
        group.fetch({k: v for k, v in self._arg_params.items() if k not in in_store}, averaged=False)
        group.fetch(self._aux_params, averaged=True)
        self._stale = False

    async def _synchronize_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        params = await super()._synchronize_params()
        updater = self._parameter_updater
        in_store = {name: params[0][name] for name in updater.in_store} if updater is not None else {}
        if len(self._contexts) > 1 or in_store:
            self._executors("fit").set_params(in_store, params[1])
        return params

    def _trained_modules(self) -> list[Module]:
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
        """Pull the parameters that other workers have updated."""
        self._stale |= self._require_updater("fit").pull(self._executors("fit"))

    # -- the optimizer ---------------------------------------------------------------------------------

    def _init_optimizer(
        self, kvstore: object, optimizer: object, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        group = self._executors("init_optimizer")
        store = select_store(kvstore, len(self._contexts), self._param_names)
        rescale_grad = 1.0 / (group.batch_size * summed_workers(store))
        instance = create_optimizer(optimizer, dict(optimizer_params), rescale_grad, self._param_names, self._symbol)
        self._parameter_updater = ParameterUpdater(instance, store, self._updates_on(store, kvstore), self._param_names)
        self._parameter_updater.start(group, self._compression_params)
        if self._states_to_load is not None:
            self.load_optimizer_states(self._states_to_load)
            self._states_to_load = None

    def _updates_on(self, store: KVStoreBase | None, kvstore: object) -> bool:
        """Return whether a store, chosen for a ``kvstore`` argument, updates the weights."""
        return is_updated_by_store(store, kvstore, [param.shape for param in self._arg_params.values()])

    def borrow_optimizer(self, shared_module: Module) -> None:
        """Use another module's optimizer, with its states.

        Raises:
            ValueError: the other module has no optimizer.
        """
        if not shared_module.optimizer_initialized:
            raise ValueError("borrow_optimizer: the other module has no optimizer: call its init_optimizer() first")
        self._parameter_updater = shared_module._parameter_updater
        self.optimizer_initialized = True

    def _require_updater(self, name: str) -> ParameterUpdater:
        if self._parameter_updater is None:
            raise StateError(f"{name}: the module has no optimizer: call init_optimizer() first")
        return self._parameter_updater

    # Private names of MXNet that scripts read.

    @property
    def _optimizer(self) -> opt.Optimizer | None:
        return None if self._parameter_updater is None else self._parameter_updater.optimizer

    @property
    def _updater(self) -> opt.Updater | None:
        return None if self._parameter_updater is None else self._parameter_updater.updater

    @property
    def _kvstore(self) -> KVStoreBase | None:
        return None if self._parameter_updater is None else self._parameter_updater.store

    @property
    def _update_on_kvstore(self) -> bool:
        return self._parameter_updater is not None and self._parameter_updater.on_store

    # -- one batch -------------------------------------------------------------------------------------

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Enqueue copies of the rows of row_sparse parameters that a batch needs, from the store to the devices.

        If a store updates such parameters, :meth:`update` updates them only in the store.

        Args:
            data_batch: the batch.
            sparse_row_id_fn: a function that takes the batch and returns a dict: arrays of row numbers, of any shape,
                by the name of the parameter.

        Raises:
            TypeError: the function does not return a dict.
            ValueError: a name is not the name of a parameter.
        """
        group = self._executors("prepare")
        if sparse_row_id_fn is None:
            return
        updater = self._parameter_updater
        if updater is None or updater.store is None or not updater.on_store:
            warnings.warn(
                "prepare: the parameters are not updated in a store, so sparse_row_id_fn need not be called",
                stacklevel=2,
            )
            return
        rows = sparse_row_id_fn(data_batch)
        if not isinstance(rows, dict):
            raise TypeError(
                f"prepare: sparse_row_id_fn returned a {type(rows).__name__}, expected a dict from names to rows"
            )
        updater.pull_rows(group, rows)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch, whose shapes may differ from those of the last batch.

        Args:
            data_batch: anything with ``data`` and ``label``, lists of arrays.
            is_train: whether to run in training mode (default: as the module is bound).
        """
        group = self._prepare_executors("forward", data_batch)
        group.forward(data_batch, self.for_training if is_train is None else is_train)

    def forward_backward(self, data_batch: object) -> None:
        if any(is_replaced(self, name, _PASSES[name]) for name in _PASSES):
            super().forward_backward(data_batch)  # a user's forward or backward
            return
        self._check_for_training("forward_backward")
        self._prepare_executors("forward_backward", data_batch).forward_backward(data_batch)

    def _prepare_executors(self, name: str, data_batch: Any) -> ExecutorGroup:
        """Return the executors, prepared for the shapes of a batch."""
        self._check_ready(name)
        if not isinstance(getattr(data_batch, "data", None), (list, tuple)):
            raise TypeError(
                f"{name}: data_batch is a {type(data_batch).__name__}, expected mx.io.DataBatch([array], [label]), or "
                "an object with lists of arrays, data and label"
            )
        group = self._executors(name)
        shapes = [tuple(array.shape) for array in data_batch.data]
        if shapes != [desc.shape for desc in group.data_shapes]:
            self.reshape(
                getattr(data_batch, "provide_data", None) or _reshape(group.data_shapes, data_batch.data),
                getattr(data_batch, "provide_label", None)
                or _reshape(group.label_shapes or [], getattr(data_batch, "label", None) or []),
            )
        self._padding = getattr(data_batch, "pad", 0) or 0
        return group

    def _check_for_training(self, name: str) -> None:
        if not self.for_training:
            raise StateError(f"{name}: the module is bound for predictions: bind it with for_training=True")

    def backward(self, out_grads: Any = None) -> None:
        """Enqueue the backward pass of the last forward pass.

        Args:
            out_grads: gradients of the outputs, one or a list; only for outputs that are not losses.
        """
        self._check_ready("backward")
        self._check_for_training("backward")
        self._executors("backward").backward(out_grads)

    def update(self) -> None:
        """Enqueue the update of every parameter by its gradient, summed over the devices."""
        updater = self._require_updater("update")
        self._stale = True
        group = self._executors("update")
        updater.update(group)
        next_step(self, max(group.batch_size - self._padding, 0))

    def _arrays_by_role(self) -> dict[str, list[NDArray]]:
        """Return the arrays of training by role: ``weights``, ``gradients``, ``optimizer`` (states), ``kvstore``."""
        group = self._executors("update")
        names = [*self._param_names, *self._aux_names]
        gradients = [grad for name in self._param_names for grad in group.gradients(name) if grad is not None]
        updater = self._parameter_updater
        return {
            "weights": [array for name in names for array in group.on_devices(name)],
            "gradients": gradients,
            "optimizer": [] if updater is None else updater.updater.arrays(),
            "kvstore": [] if updater is None or updater.store is None else updater.store._arrays(),
        }

    def _arrays_by_name(self) -> dict[str, list[NDArray]]:
        """Return the weights and auxiliary states by name."""
        group = self._executors("update")
        return {name: group.on_devices(name) for name in [*self._param_names, *self._aux_names]}

    def _planned_bytes(self) -> int:
        """Return the size of the activations that the bound executors planned, in bytes."""
        return sum(executor.internal_bytes() for executor in self._executors("update").execs)

    @merges_devices
    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        """Return the outputs of the last forward pass; the next pass overwrites them.

        Args:
            merge_multi_context: concatenate the devices' parts; otherwise return a list for each output.
        """
        outputs = self._executors("get_outputs").outputs()
        if not merge_multi_context:
            return outputs
        axes = [DataDesc.get_batch_axis(output.attr("__layout__")) for output in self._symbol]
        return merge_parts(outputs, axes)

    @merges_devices
    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        """Return the gradients of the inputs, from the last backward pass.

        Args:
            merge_multi_context: concatenate the devices' parts; otherwise return a list for each input.

        Raises:
            RuntimeError: the module is not bound with gradients of its inputs.
        """
        group = self._executors("get_input_grads")
        if not self.inputs_need_grad:
            raise StateError("get_input_grads: the module is bound without them: bind it with inputs_need_grad=True")
        grads = group.input_grads()
        axes = [DataDesc.get_batch_axis(desc.layout) for desc in group.data_shapes]
        return merge_parts(grads, axes) if merge_multi_context else grads

    @merges_devices
    def get_states(self, merge_multi_context: bool = True) -> Any:
        """Return the arrays of ``state_names``.

        Args:
            merge_multi_context: concatenate the devices' parts; otherwise return a list for each state.
        """
        states = [self._executors("get_states").on_devices(name) for name in self._state_names]
        return merge_parts(states, [0] * len(states)) if merge_multi_context else states

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the arrays of ``state_names``.

        Args:
            states: for each state, an array for each device.
            value: one number for all elements.
        """
        group = self._executors("set_states")
        for position, name in enumerate(self._state_names):
            for device, target in enumerate(group.on_devices(name)):
                target[:] = value if states is None else states[position][device]

    def install_monitor(self, mon: Any) -> None:
        for executor in self._executors("install_monitor").execs:
            mon.install(executor)

    def _named_outputs(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        return self._executors("update_metric").labels_and_outputs(labels)

    def _executors(self, name: str) -> ExecutorGroup:
        if self._group is None:
            raise StateError(f"{name}: the module is not bound: call bind() first")
        return self._group


_PASSES = {name: getattr(Module, name) for name in ("forward", "backward")}


def _select(params: dict[str, NDArray], names: Sequence[str]) -> dict[str, NDArray]:
    missing = [name for name in names if name not in params]
    if missing:
        raise ValueError(
            f"bind: the loaded parameters lack {missing[0]!r}: create the module from the symbol, and pass "
            "them to init_params with allow_missing=True"
        )
    return {name: params[name] for name in names}


def _zeros_like(array: NDArray) -> NDArray:
    return zeros_of(array.stype, array.shape, cpu(), array.dtype)


def _untouched_like(array: NDArray) -> NDArray:
    return untouched(array.shape, array.dtype)


def _copy(kind: str, name: str, source: Any, target: NDArray) -> None:
    if source is target:
        return
    if tuple(source.shape) != target.shape:
        raise ValueError(f"init_params: the {kind} {name!r} has shape {source.shape}, expected {target.shape}")
    target[:] = source.as_in_context(cpu()) if isinstance(source, NDArray) else source


def _reshape(descs: Sequence[DataDesc], arrays: Sequence[Any]) -> list[DataDesc]:
    return [
        DataDesc(desc.name, cast("tuple[int, ...]", tuple(array.shape)), desc.dtype, desc.layout)
        for desc, array in zip(descs, arrays, strict=False)
    ]
