"""The interface of every kind of module, and ``fit``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from flowmx import metric, model
from flowmx.engine.loops import blocks_in_ordinary_code
from flowmx.foreign_names import MODULE_OBJECTS, raise_missing
from flowmx.initializer import Initializer, Uniform
from flowmx.io import DataDesc
from flowmx.module.argument_checks import check_iterator
from flowmx.module.evaluation import Callbacks, Loops, as_metric, check_not_sliced
from flowmx.module.fitting import Fit
from flowmx.ndarray import NDArray
from flowmx.overrides import is_replaced

if TYPE_CHECKING:
    from flowmx.module.module import Module

Params: TypeAlias = Mapping[str, NDArray] | None
AnyInitializer: TypeAlias = Initializer | Callable[..., Any]
OptimizerParams: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, Any]]

_SGD_PARAMS = (("learning_rate", 0.01),)


class Binding(NamedTuple):
    """The arguments of :meth:`BaseModule.bind`."""

    data_shapes: Any
    label_shapes: Any
    for_training: bool
    inputs_need_grad: bool
    force_rebind: bool
    shared_module: Any
    grad_req: Any

    def check_training(self) -> None:
        """Raise ValueError if gradients of the inputs are requested without training."""
        if self.inputs_need_grad and not self.for_training:
            raise ValueError("bind: inputs_need_grad needs for_training=True")

    def check_unshared(self, module: BaseModule) -> None:
        """Raise NotImplementedError if ``shared_module`` is set, for modules that cannot share parameters."""
        if self.shared_module is not None:
            raise NotImplementedError(f"bind: a {type(module).__name__} cannot share another one's parameters")


class InitialParams(NamedTuple):
    """Parameters by name, and what to do with missing, initialized and unknown ones."""

    arg_params: Params
    aux_params: Params
    allow_missing: bool
    force_init: bool
    allow_extra: bool


class BaseModule(Loops):
    """Base class of modules; see :class:`Module`.

    A module is bound (its shapes are inferred, its memory is allocated), then its parameters are initialized, then
    its optimizer. Data is any iterator like those of ``mx.io``: it yields batches to ``for`` or ``async for``,
    describes them with ``provide_data`` and ``provide_label``, and has ``reset()``.

    Args:
        logger: the logger of training.

    Attributes:
        binded, params_initialized, optimizer_initialized: lifecycle flags.
        for_training: bound for training.
        inputs_need_grad: bound with gradients of its inputs.
        symbol: the symbol.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError, which names the equivalent of another library's attribute."""
            raise_missing(self, name, MODULE_OBJECTS)

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = False
        self.for_training = False
        self.inputs_need_grad = False
        self.params_initialized = False
        self.optimizer_initialized = False
        self._symbol: Any = None

    # -- implemented by subclasses ----------------------------------------------------------------------

    @property
    def symbol(self) -> Any:
        """The symbol."""
        return self._symbol

    @property
    def data_names(self) -> list[str]:
        """Names of the inputs."""
        raise NotImplementedError

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        raise NotImplementedError

    @property
    def data_shapes(self) -> list[DataDesc]:
        """Names, shapes and dtypes of the bound inputs."""
        raise NotImplementedError

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        """Names, shapes and dtypes of the bound labels, if any."""
        raise NotImplementedError

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the outputs."""
        raise NotImplementedError

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """Prepare for batches of these shapes: infer all other shapes and allocate the arrays.

        Args:
            data_shapes: pairs of name and shape, or ``DataDesc``: an iterator's ``provide_data``.
            label_shapes: the same for the labels; None for predictions.
            for_training: allocate gradients of the parameters.
            inputs_need_grad: allocate gradients of the inputs too.
            force_rebind: bind again if the module is bound.
            shared_module: another module, whose parameters (and optimizer) this one shares; must be None for a
                :class:`BucketingModule` or a :class:`SequentialModule`.
            grad_req: ``"write"`` or ``"add"``, or a dict from argument names to these.

        Raises:
            ValueError: names or numbers of samples do not match, or ``inputs_need_grad`` is set without
                ``for_training``.
            NotImplementedError: ``shared_module`` is set, and this kind of module cannot share parameters.
            ShapeError: the shapes do not fit the symbol.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        self._bind(
            Binding(data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, shared_module, grad_req)
        )
        self.binded, self.for_training, self.inputs_need_grad = True, for_training, inputs_need_grad

    def _bind(self, binding: Binding) -> None:
        """Prepare for batches. Called only if the module is unbound or is to be bound again."""
        raise NotImplementedError

    def init_params(
        self,
        initializer: Callable[..., Any] | None = Uniform(0.01),  # noqa: B008  (it never changes)
        arg_params: Params = None,
        aux_params: Params = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Initialize parameters and auxiliary states from arrays, or else with the initializer.

        Args:
            initializer: initializes parameters without an array.
            arg_params: parameters by name.
            aux_params: auxiliary states by name.
            allow_missing: use the initializer for names that are not in ``arg_params`` or ``aux_params``.
            force_init: initialize again.
            allow_extra: ignored; accepted for MXNet's scripts. Unknown names are always ignored.

        Raises:
            ValueError: an array is missing (unless that is allowed), or has the wrong shape.
        """
        self._init_params(initializer, InitialParams(arg_params, aux_params, allow_missing, force_init, allow_extra))

    def _init_params(self, initializer: Callable[..., Any] | None, params: InitialParams) -> None:
        """Initialize the parameters, unless they are initialized and ``force_init`` is False."""
        raise NotImplementedError

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: OptimizerParams = _SGD_PARAMS,
        force_init: bool = False,
    ) -> None:
        """Install an optimizer.

        Args:
            kvstore: ``"local"``, ``"device"``, another name that ``mx.kv.create`` takes, or a store that holds the
                module's parameters by name. It sums gradients over devices and, if it can, updates the
                parameters. One device in one process needs no store. None sums, and updates on the first device.
            optimizer: a name, or an optimizer.
            optimizer_params: its arguments. ``rescale_grad`` defaults to one over the batch size, which is the total of
                all workers if a store sums their gradients (``"dist_sync"``).
            force_init: replace the present optimizer, if any.

        Raises:
            TypeError: the optimizer or the kvstore has the wrong type.
            ValueError, NotImplementedError: the optimizer's or the kvstore's name is unknown.
        """
        self._check_ready("init_optimizer")
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring...")
            return
        self._init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    def _init_optimizer(
        self, kvstore: Any, optimizer: Any, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        """Install an optimizer, replacing the present one."""
        raise NotImplementedError

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Return the parameters and auxiliary states, on the CPU."""
        raise NotImplementedError

    def backward(self, out_grads: Any = None) -> None:
        """Enqueue the backward pass."""
        raise NotImplementedError

    def update(self) -> None:
        """Enqueue the optimizer's update of every parameter."""
        raise NotImplementedError

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        """Return the gradients of the inputs, from the last backward pass."""
        raise NotImplementedError

    def _named_outputs(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        """Return labels and outputs of the last forward pass by name, for each device; empty for outer modules."""
        raise NotImplementedError

    def _metric_modules(self) -> Sequence[BaseModule]:
        """Return the inner modules whose outputs update metrics."""
        return ()

    def get_states(self, merge_multi_context: bool = True) -> Any:
        """Return the states that pass from batch to batch; empty unless the module has ``state_names``."""
        return []

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the states that pass from batch to batch.

        Raises:
            ValueError: the module has no states.
        """
        if states or value is not None:
            raise ValueError(f"set_states: {type(self).__name__} has no states, so there is nothing to set")

    def install_monitor(self, mon: Any) -> None:
        """Install a monitor on the executors."""
        raise NotImplementedError

    # -- parameters ------------------------------------------------------------------------------------

    def set_params(
        self,
        arg_params: Params,
        aux_params: Params,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters and auxiliary states by name.

        Args:
            arg_params: the parameters.
            aux_params: the auxiliary states.
            allow_missing: keep the values of missing parameters.
            force_init: set them even if they are initialized.
            allow_extra: ignore unknown names.
        """
        self._set_params(InitialParams(arg_params, aux_params, allow_missing, force_init, allow_extra))

    def _set_replaced_params(self, arg_params: Params, aux_params: Params) -> None:
        """Call `set_params` at the end of an epoch, as MXNet does, if a user has replaced it."""
        if is_replaced(self, "set_params", _set_params):
            self.set_params(arg_params, aux_params)

    def _set_params(self, params: InitialParams) -> None:
        """Set parameters and auxiliary states."""
        self.init_params(None, *params)

    def save_params(self, fname: str) -> None:
        """Save parameters and auxiliary states to one file."""
        model.save_params(fname, *self.get_params())

    def load_params(self, fname: str) -> None:
        """Set the parameters and auxiliary states that :meth:`save_params` saved."""
        self.set_params(*model.read_params(fname))

    # -- one batch -------------------------------------------------------------------------------------

    def forward_backward(self, data_batch: Any) -> None:
        """Enqueue both passes of a batch, in training mode."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def update_metric(
        self, eval_metric: metric.EvalMetric, labels: Sequence[NDArray], pre_sliced: bool = False
    ) -> None:
        """Update a metric with the outputs of the last forward pass; blocks until they are computed.

        Args:
            eval_metric: the metric.
            labels: the batch's labels.
            pre_sliced: must be False: a list of labels for each device is unsupported.
        """
        check_not_sliced(pre_sliced)
        for module in self._metric_modules():
            module.update_metric(eval_metric, labels, pre_sliced)
        for label, pred in self._named_outputs(labels):
            eval_metric.update_dict(label, pred)

    async def update_metric_async(
        self, eval_metric: metric.EvalMetric, labels: Sequence[NDArray], pre_sliced: bool = False
    ) -> None:
        """Await the outputs of the last forward pass, then call :meth:`update_metric`, for coroutines."""
        if is_replaced(self, "update_metric", _update_metric):
            await asyncio.to_thread(self.update_metric, eval_metric, labels, pre_sliced)  # a user's method may block
            return
        check_not_sliced(pre_sliced)
        for module in self._metric_modules():
            await module.update_metric_async(eval_metric, labels, pre_sliced)
        for label, pred in self._named_outputs(labels):
            await eval_metric.update_dict_async(label, pred)

    # -- many batches ----------------------------------------------------------------------------------

    @blocks_in_ordinary_code
    async def fit(
        self, train_data: Any, eval_data: Any = None, eval_metric: Any = "acc", epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None, kvstore: Any = "local", optimizer: Any = "sgd",
        optimizer_params: OptimizerParams = _SGD_PARAMS, eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None, initializer: AnyInitializer = Uniform(0.01),  # noqa: B008
        arg_params: Params = None, aux_params: Params = None, allow_missing: bool = False, force_rebind: bool = False,
        force_init: bool = False, begin_epoch: int = 0, num_epoch: int | None = None, validation_metric: Any = None,
        monitor: Any = None, sparse_row_id_fn: Any = None, checkpoint: Any = None, resume: bool = True,
    ) -> None:  # fmt: skip
        """Train on all of ``train_data``, ``num_epoch - begin_epoch`` times.

        The loop runs ahead of the devices within the engine's limits and yields to other tasks at each batch.
        Cancelling it leaves the module with the parameters of the last enqueued batch. In distributed training
        (``kvstore="dist_sync"``) the workers synchronize at the end of each epoch; a worker with fewer batches does
        not block the others. A late worker, or a job that resumes from snapshots, begins at the job's current epoch
        and batch.

        Args:
            train_data: the batches to train on.
            eval_data: batches to evaluate on after each epoch.
            eval_metric: the metric of the training, or an argument of ``mx.metric.create``.
            epoch_end_callback: called with computed (epoch, symbol, arg_params, aux_params). May be a list, or async.
            batch_end_callback: called with a ``mx.model.BatchEndParam``.
            kvstore: sums gradients over devices and machines; see :meth:`Module.init_optimizer`.
            optimizer: a name, or an optimizer.
            optimizer_params: its arguments. ``rescale_grad`` defaults to one over the batch size.
            eval_end_callback: called after each evaluation, like ``batch_end_callback``.
            eval_batch_end_callback: called after each batch of the evaluation.
            initializer: initializes parameters that are not in ``arg_params``.
            arg_params: initial parameters; they take precedence over the initializer.
            aux_params: initial auxiliary states.
            allow_missing: let the initializer set parameters that are not in ``arg_params``.
            force_rebind: bind again.
            force_init: initialize the parameters again.
            begin_epoch: number of the first epoch; the number in a checkpoint's file name resumes from it.
            num_epoch: the first epoch not to train.
            validation_metric: the metric of the evaluation (default: ``eval_metric``).
            monitor: observes the executors.
            sparse_row_id_fn: as for :meth:`prepare`; called with each batch except the first of an epoch.
            checkpoint: a folder, or :class:`mx.checkpoint.Checkpoints`: training resumes from it bit for bit, with the
                same order of samples. A checkpoint is written after each epoch and after a set number of batches.
            resume: resume from the newest checkpoint, if any. It takes precedence over ``begin_epoch``, initial
                parameters, and the optimizer's initial learning rate, schedule and multipliers.

        Raises:
            ValueError: ``num_epoch`` is missing, or there is no batch.
            TypeError: with ``checkpoint``, ``train_data`` has no ``state()`` and ``set_state()``.
            FileExistsError: without ``resume``, the folder already has checkpoints.
            CheckpointError: the checkpoint belongs to another network, optimizer or number of workers.
        """
        epochs = await self._bind_for_fit(train_data, num_epoch, force_rebind, monitor)
        fit = Fit(
            self, train_data, epochs, as_metric(eval_metric), eval_data,
            eval_metric if validation_metric is None else validation_metric, monitor, on_batch=batch_end_callback,
            on_epoch=epoch_end_callback, on_eval=eval_end_callback, on_eval_batch=eval_batch_end_callback,
            row_ids=sparse_row_id_fn,
        )  # fmt: skip
        params = InitialParams(arg_params, aux_params, allow_missing, force_init, allow_extra=False)
        await self._initialize_fit(fit, (checkpoint, kvstore, resume), initializer, params, optimizer, optimizer_params)
        await fit.start(begin_epoch)

    async def _bind_for_fit(self, train_data: Any, num_epoch: int | None, force_rebind: bool, monitor: Any) -> int:
        """Bind the module for `fit`, if it is unbound, and install the monitor; return the number of epochs."""
        if num_epoch is None:
            raise ValueError("fit: num_epoch is missing: pass the number of the first epoch not to train")
        if force_rebind or not self.binded:
            # Planning a large network takes longer than an event loop may be blocked.
            bind = partial(self.bind, for_training=True, force_rebind=force_rebind)
            check_iterator("fit", train_data)
            await asyncio.to_thread(bind, train_data.provide_data, train_data.provide_label)
        if monitor is not None:
            self.install_monitor(monitor)
        return num_epoch

    async def _initialize_fit(
        self, fit: Fit, checkpoints: tuple[Any, Any, bool], initializer: AnyInitializer, params: InitialParams,
        optimizer: Any, optimizer_params: OptimizerParams,
    ) -> None:  # fmt: skip
        """Initialize parameters and the optimizer, and restore them from the newest checkpoint.

        Args:
            fit: the training.
            checkpoints: `fit`'s ``checkpoint``, ``kvstore`` and ``resume``.
            initializer: initializes parameters without an array.
            params: the initial parameters.
            optimizer: as for :meth:`fit`.
            optimizer_params: as for :meth:`fit`.
        """
        checkpoint, kvstore, resume = checkpoints
        await fit.open(checkpoint, kvstore, resume)
        has_arrays = params.arg_params is not None or params.aux_params is not None
        if params.force_init or not self.params_initialized or has_arrays:
            self.init_params(initializer, params.arg_params, params.aux_params, params.allow_missing, params.force_init)
        fit.restore_arrays()
        if not self.optimizer_initialized:
            self.init_optimizer(kvstore, optimizer, optimizer_params)
        await fit.restore_optimizers()

    def _trained_modules(self) -> list[Module]:
        """Return the modules that hold the parameters and optimizers."""
        return []

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        """Return the epoch and the batch to begin with: the arguments, or the position of the other workers."""
        return epoch, batch

    async def _begin_epoch(self, epoch: int, train_data: Any) -> None:
        """Prepare for the first batch of an epoch; does nothing by default."""

    async def _end_epoch(self, epoch: int) -> int:
        """Wait until all workers have finished an epoch; return the next, by default `epoch`."""
        return epoch

    async def _synchronize_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Return the parameters, computed; auxiliary states are made equal on all devices."""
        arg_params, aux_params = self.get_params()
        for array in (*(arg_params or {}).values(), *(aux_params or {}).values()):
            await array
        return arg_params, aux_params


_set_params, _update_metric = BaseModule.set_params, BaseModule.update_metric
