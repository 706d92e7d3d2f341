"""The interface of every kind of module, and ``fit``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from flowmx import metric, model
from flowmx.engine.loops import runs_in_plain_code
from flowmx.initializer import Initializer, Uniform
from flowmx.io import DataDesc
from flowmx.module.fitting import Fit
from flowmx.module.loops import Callbacks, Loops, metric_of, refuse_sliced
from flowmx.ndarray import NDArray

if TYPE_CHECKING:
    from flowmx.module.module import Module

Params: TypeAlias = Mapping[str, NDArray] | None
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
        """Raise ValueError where gradients of the inputs are asked for without training."""
        if self.inputs_need_grad and not self.for_training:
            raise ValueError("bind: inputs_need_grad needs for_training=True")

    def check_unshared(self, module: BaseModule) -> None:
        """Raise NotImplementedError where there is a module to share with."""
        if self.shared_module is not None:
            raise NotImplementedError(f"bind: a {type(module).__name__} can not share another one's parameters")


class GivenParams(NamedTuple):
    """Parameters by name, and the treatment of those that are missing, initialized already, or unknown."""

    arg_params: Params
    aux_params: Params
    allow_missing: bool
    force_init: bool
    allow_extra: bool


class BaseModule(Loops):
    """Base class of modules; see :class:`Module`.

    A module is bound (shapes are known and memory is there), then its parameters are initialized, then its
    optimizer. Data is anything that iterators of ``mx.io`` are: it gives batches to ``for`` or ``async for``,
    describes them with ``provide_data`` and ``provide_label``, and can be ``reset()``.

    Args:
        logger: where training is logged to.

    Attributes:
        binded, params_initialized, optimizer_initialized: how far it is.
        for_training: bound for training.
        inputs_need_grad: bound for gradients of its inputs.
        symbol: the symbol.
    """

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = False
        self.for_training = False
        self.inputs_need_grad = False
        self.params_initialized = False
        self.optimizer_initialized = False
        self._symbol: Any = None

    # -- what a kind of module implements --------------------------------------------------------------

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
        """Describes the inputs it is bound with."""
        raise NotImplementedError

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        """Describes the labels it is bound with, if any."""
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
        """Make ready for batches of these shapes: infer all others, and make the arrays.

        Args:
            data_shapes: pairs of name and shape, or ``DataDesc``: an iterator's ``provide_data``.
            label_shapes: likewise; None for predictions.
            for_training: make gradients of the parameters.
            inputs_need_grad: make gradients of the inputs too.
            force_rebind: bind anew where it is bound.
            shared_module: another module, whose parameters (and optimizer) this one shares; only None for a
                :class:`BucketingModule` or a :class:`SequentialModule`.
            grad_req: ``"write"`` or ``"add"`` gradients, or from argument to word.

        Raises:
            ValueError: names or numbers of instances do not fit; gradients of the inputs without training.
            NotImplementedError: a module to share with, for a kind that can not.
            ShapeError: the shapes do not fit the symbol.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        self._bind(
            Binding(data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, shared_module, grad_req)
        )
        self.binded, self.for_training, self.inputs_need_grad = True, for_training, inputs_need_grad

    def _bind(self, given: Binding) -> None:
        """Make ready for batches, where it is not bound or is to be bound anew."""
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
        """Initialize parameters and auxiliary states: from given arrays, else by the initializer.

        Args:
            initializer: for those that are not given.
            arg_params: parameters by name.
            aux_params: auxiliary states by name.
            allow_missing: leave those to the initializer that are not in ``arg_params`` or ``aux_params``.
            force_init: initialize although they are.
            allow_extra: kept for MXNet's scripts; names that the module does not have are left out.

        Raises:
            ValueError: one is not given (unless that is allowed), or has another shape.
        """
        self._init_params(initializer, GivenParams(arg_params, aux_params, allow_missing, force_init, allow_extra))

    def _init_params(self, initializer: Callable[..., Any] | None, given: GivenParams) -> None:
        """Initialize the parameters, unless they are initialized and it is not forced."""
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
            kvstore: ``"local"``, ``"device"``, another name that ``mx.kv.create`` takes, or a store, in which the
                module's parameters are by name. It sums gradients over devices and, if it can, updates the
                parameters. One device of one process needs none. None sums, and updates on the first device.
            optimizer: a name, or an optimizer.
            optimizer_params: its arguments. ``rescale_grad`` defaults to one over the batch size, which is that of all
                workers together where a store sums what they push (``"dist_sync"``).
            force_init: install another one where there is one.

        Raises:
            TypeError: the optimizer or the kvstore is something else.
            ValueError, NotImplementedError: there is no optimizer, or no kvstore, of this name.
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
        """Install an optimizer, where there is none or another one is to replace it."""
        raise NotImplementedError

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """The parameters and auxiliary states, on the CPU."""
        raise NotImplementedError

    def backward(self, out_grads: Any = None) -> None:
        """Enqueue the backward pass."""
        raise NotImplementedError

    def update(self) -> None:
        """Enqueue the optimizer's update of every parameter."""
        raise NotImplementedError

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        """The gradients of the inputs, of the last backward pass."""
        raise NotImplementedError

    def _measured(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        """Labels and outputs of the last forward pass by name, for each device."""
        raise NotImplementedError

    def get_states(self, merge_multi_context: bool = True) -> Any:
        """List the states that pass from batch to batch: none, unless the module has ``state_names``."""
        return []

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the states; a module without them takes none.

        Raises:
            ValueError: states, or a value for them, were given.
        """
        if states or value is not None:
            raise ValueError(f"set_states: {type(self).__name__} has no states, so there is nothing to set")

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch the executors."""
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
        """Set parameters and auxiliary states, by name.

        Args:
            arg_params: the parameters.
            aux_params: the auxiliary states.
            allow_missing: leave those that are not given as they are.
            force_init: set them although they are initialized.
            allow_extra: do not mind names that the module does not have.
        """
        self._set_params(GivenParams(arg_params, aux_params, allow_missing, force_init, allow_extra))

    def _set_params(self, given: GivenParams) -> None:
        """Set parameters and auxiliary states."""
        self.init_params(None, *given)

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
        """Count the outputs of the last forward pass into a metric; waits for them.

        Args:
            eval_metric: the metric.
            labels: the batch's labels.
            pre_sliced: only False here (a list of labels for each device is not taken).
        """
        refuse_sliced(pre_sliced)
        for label, pred in self._measured(labels):
            eval_metric.update_dict(label, pred)

    async def update_metric_async(
        self, eval_metric: metric.EvalMetric, labels: Sequence[NDArray], pre_sliced: bool = False
    ) -> None:
        """As :meth:`update_metric`, awaiting the outputs: the form for coroutines."""
        if type(self).update_metric is not BaseModule.update_metric or "update_metric" in vars(self):
            await asyncio.to_thread(self.update_metric, eval_metric, labels, pre_sliced)  # somebody's own
            return
        refuse_sliced(pre_sliced)
        for label, pred in self._measured(labels):
            await eval_metric.update_dict_async(label, pred)

    # -- many batches ----------------------------------------------------------------------------------

    @runs_in_plain_code
    async def fit(
        self, train_data: Any, eval_data: Any = None, eval_metric: Any = "acc", epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None, kvstore: Any = "local", optimizer: Any = "sgd",
        optimizer_params: OptimizerParams = _SGD_PARAMS, eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        initializer: Initializer | Callable[..., Any] = Uniform(0.01),  # noqa: B008
        arg_params: Params = None, aux_params: Params = None, allow_missing: bool = False, force_rebind: bool = False,
        force_init: bool = False, begin_epoch: int = 0, num_epoch: int | None = None, validation_metric: Any = None,
        monitor: Any = None, sparse_row_id_fn: Any = None, checkpoint: Any = None, resume: bool = True,
    ) -> None:  # fmt: skip
        """Train on all of ``train_data``, ``num_epoch - begin_epoch`` times.

        The loop runs ahead of the devices within the engine's limits, and gives way to other tasks at each
        batch. Cancelling it leaves the module as the last enqueued batch makes it.

        Over several machines (``kvstore="dist_sync"``) the workers meet at the end of each epoch: who has fewer batches
        holds nobody up, and all have the same parameters then. A worker that joins late, or a job that goes on from
        snapshots, begins with the epoch and the batch that the job has come to.

        Args:
            train_data: the batches to train on.
            eval_data: batches to evaluate on after each epoch.
            eval_metric: the metric of the training, or what ``mx.metric.create`` makes one from.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params), all computed. Callbacks
                may be lists, and return something awaitable, which is awaited.
            batch_end_callback: called with a ``mx.model.BatchEndParam``.
            kvstore: what sums gradients over devices and machines; see :meth:`Module.init_optimizer`.
            optimizer: a name, or an optimizer.
            optimizer_params: its arguments. ``rescale_grad`` defaults to one over the batch size.
            eval_end_callback: called after each evaluation, like ``batch_end_callback``.
            eval_batch_end_callback: called after each batch of the evaluation.
            initializer: for parameters that are not given.
            arg_params: first parameters; they count before the initializer.
            aux_params: first auxiliary states.
            allow_missing: leave parameters to the initializer that are not in ``arg_params``.
            force_rebind: bind anew.
            force_init: initialize the parameters anew.
            begin_epoch: the first epoch's number: training that is resumed goes on with the epoch that its
                checkpoint is named after.
            num_epoch: the number of the epoch to stop before.
            validation_metric: the metric of the evaluation (default: that of the training).
            monitor: watches the executors.
            sparse_row_id_fn: as for :meth:`prepare`, called with each batch but an epoch's first.
            checkpoint: a folder, or :class:`mx.checkpoint.Checkpoints`: training that is killed goes on from there as
                if it had never stopped, with the same order of samples and the same parameters to the bit. One is
                written at the end of each epoch, and after every so many batches.
            resume: go on from the newest checkpoint, if there is one. It counts before ``begin_epoch``, first
                parameters, and what the optimizer's learning rate, schedule and multipliers are at the start.

        Raises:
            ValueError: ``num_epoch`` is not given, or there is no batch.
            TypeError: with ``checkpoint``, ``train_data`` can not say where it stands.
            FileExistsError: without ``resume``, the folder has checkpoints already.
            CheckpointError: the checkpoint is of another network, optimizer or number of workers.
        """
        if num_epoch is None:
            raise ValueError("fit: num_epoch is missing: give the number of the epoch to stop before")
        if force_rebind or not self.binded:
            self.bind(train_data.provide_data, train_data.provide_label, for_training=True, force_rebind=force_rebind)
        if monitor is not None:
            self.install_monitor(monitor)
        fit = Fit(
            self, train_data, num_epoch, metric_of(eval_metric), eval_data,
            eval_metric if validation_metric is None else validation_metric, monitor, on_batch=batch_end_callback,
            on_epoch=epoch_end_callback, on_eval=eval_end_callback, on_eval_batch=eval_batch_end_callback,
            row_ids=sparse_row_id_fn,
        )  # fmt: skip
        await fit.open(checkpoint, kvstore, resume)
        if force_init or not self.params_initialized or arg_params is not None or aux_params is not None:
            self.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
        fit.restore_arrays()
        if not self.optimizer_initialized:
            self.init_optimizer(kvstore, optimizer, optimizer_params)
        await fit.restore_optimizers()
        await fit.start(begin_epoch)

    def _trained(self) -> list[Module]:
        """The modules that hold its parameters and optimizers."""
        return []

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        """The epoch and the batch to begin with: the given ones, or those that other workers are at."""
        return epoch, batch

    async def _begin_epoch(self, epoch: int, train_data: Any) -> None:
        """Do what comes before the first batch of an epoch; by default nothing."""

    async def _end_epoch(self, epoch: int) -> int:
        """Await that all workers have come to the end of an epoch; return the next, by default `epoch`."""
        return epoch

    async def _synchronized(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """The parameters, computed; auxiliary states are made the same on all devices."""
        arg_params, aux_params = self.get_params()
        for array in (*(arg_params or {}).values(), *(aux_params or {}).values()):
            await array
        return arg_params, aux_params
