"""Helpers of ``mxnet.module`` and ``mxnet.executor_manager`` that packages import: executors of several devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.io import DataDesc
from flowmx.module.argument_checks import check_names, device_groups
from flowmx.module.executor_group import ExecutorGroup, merge_parts
from flowmx.ndarray import NDArray

__all__ = [
    "DataParallelExecutorGroup", "DataParallelExecutorManager", "_check_arguments", "_check_input_names",
    "_check_names_match", "_merge_multi_context", "_parse_data_desc", "_prepare_group2ctxs", "_split_input_slice",
]  # fmt: skip

_check_input_names = check_names


def _prepare_group2ctxs(group2ctxs: object, ctx_len: int) -> list[dict[str, Any] | None]:
    """Return the devices of ``ctx_group``s for every device."""
    return device_groups(group2ctxs, ctx_len)


def _descriptions(shapes: Any) -> list[DataDesc]:
    return [entry if isinstance(entry, DataDesc) else DataDesc(*entry) for entry in shapes or ()]


def _parse_data_desc(
    data_names: Sequence[str], label_names: Sequence[str], data_shapes: object, label_shapes: object
) -> tuple[list[DataDesc], list[DataDesc] | None]:
    """Return the descriptions of data and labels, after checking their names."""
    data, labels = _descriptions(data_shapes), _descriptions(label_shapes) if label_shapes is not None else None
    _check_names_match(data_names, data, "data", True)
    _check_names_match(label_names, labels or [], "label", False)
    return data, labels


def _check_names_match(names: Sequence[str], descriptions: Sequence[DataDesc], name: str, throw: bool) -> None:
    """Raise or warn if descriptions have other names.

    Raises:
        ValueError: the names differ and ``throw`` is true.
    """
    actual = [description.name for description in descriptions]
    if sorted(names) == sorted(actual):
        return
    message = f"{name}_shapes has the names {actual}, expected {list(names)}"
    if throw:
        raise ValueError(message)
    logging.warning(message)


def _split_input_slice(batch_size: int, work_load_list: Sequence[float]) -> list[slice]:
    """Return the slices of a batch for devices with these workloads.

    Raises:
        ValueError: the slice of a device is empty.
    """
    total = sum(work_load_list)
    counts = [round(workload * batch_size / total) for workload in work_load_list]
    counts[-1] += max(0, batch_size - sum(counts))
    slices, end = [], 0
    for count in counts:
        begin, end = min(end, batch_size), min(end + count, batch_size)
        if begin >= end:
            raise ValueError(f"a batch of {batch_size} cannot be split over {len(work_load_list)} devices")
        slices.append(slice(begin, end))
    return slices


def _check_arguments(symbol: Any) -> None:
    """Check that the names of arguments and of auxiliary states are unique.

    Raises:
        ValueError: a name is repeated.
    """
    for kind, names in (("argument", symbol.list_arguments()), ("auxiliary state", symbol.list_auxiliary_states())):
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the symbol has several {kind}s named {repeated[0]!r}: give variables unique names")


def _merge_multi_context(outputs: Sequence[list[NDArray]], major_axis: Sequence[int]) -> list[NDArray]:
    """Concatenate the outputs of all devices on the first device, along their batch axes."""
    return merge_parts(outputs, major_axis)


class DataParallelExecutorGroup:
    """The executors of a symbol, one per device, which compute slices of the batch.

    Args:
        symbol: the symbol.
        contexts: the devices.
        workload: the relative workloads of the devices.
        data_shapes: descriptions of the data.
        label_shapes: descriptions of the labels, or None.
        param_names: the arguments that are parameters.
        for_training: whether to bind gradients of the parameters.
        inputs_need_grad: whether to bind gradients of the data too.
        shared_group: the group to share parameters with.
        logger: not used.
        fixed_param_names: parameters that are not trained.
        grad_req: the gradient request, for all arguments or by name.
        state_names: arguments that are neither inputs nor parameters.
        group2ctxs: the devices of ``ctx_group``s, by device.

    Attributes:
        shared_data_arrays: the arrays other than parameters by name, for every device; shared between groups.
    """

    def __init__(
        self, symbol: object, contexts: Sequence[Context], workload: Sequence[float] | None, data_shapes: object,
        label_shapes: object, param_names: Sequence[str], for_training: bool, inputs_need_grad: bool,
        shared_group: DataParallelExecutorGroup | None = None, logger: object = logging,
        fixed_param_names: Sequence[str] | None = None, grad_req: object = "write",
        state_names: Sequence[str] | None = None, group2ctxs: object = None,
    ) -> None:  # fmt: skip
        del logger
        labels = _descriptions(label_shapes) if label_shapes else None
        self._initialize(
            ExecutorGroup(
                symbol, contexts, workload or [1] * len(contexts), _descriptions(data_shapes), labels, param_names,
                fixed_param_names or (), for_training, inputs_need_grad, grad_req,
                None if shared_group is None else shared_group._group, device_groups(group2ctxs, len(contexts)),
            ),
            state_names,
            shared_group,
        )  # fmt: skip

    def _initialize(
        self, group: ExecutorGroup, state_names: Sequence[str] | None, shared: DataParallelExecutorGroup | None = None
    ) -> None:
        self._group, self.state_names = group, list(state_names or ())
        params = set(self.param_names)
        self.shared_data_arrays: list[dict[str, NDArray]] = (
            [{} for _ in group.execs] if shared is None else shared.shared_data_arrays
        )
        for pool, executor in zip(self.shared_data_arrays, group.execs, strict=True):
            pool.update({name: array for name, array in executor.arg_dict.items() if name not in params})

    @classmethod
    def around(cls, group: ExecutorGroup, state_names: Sequence[str] = ()) -> DataParallelExecutorGroup:
        """Wrap the group of a module."""
        wrapper = cls.__new__(cls)
        wrapper._initialize(group, state_names)
        return wrapper

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_group":
            raise AttributeError(name)
        return getattr(self._group, name)  # execs, contexts, slices, batch_size, data_shapes, param_names, ...

    # -- names -----------------------------------------------------------------------------------------

    @property
    def workload(self) -> list[float]:
        """The relative workloads of the devices."""
        return self._group.workloads

    @property
    def arg_names(self) -> list[str]:
        """The symbol's arguments."""
        names: list[str] = self._group.symbol.list_arguments()
        return names

    @property
    def aux_names(self) -> list[str]:
        """The symbol's auxiliary states."""
        names: list[str] = self._group.symbol.list_auxiliary_states()
        return names

    @property
    def grad_req(self) -> dict[str, str]:
        """The gradient requests of the arguments by name: ``"write"``, ``"add"`` or ``"null"``."""
        return dict(self._group.execs[0]._requests)

    # -- arrays ----------------------------------------------------------------------------------------

    def _on_devices(self, names: Sequence[str]) -> list[list[NDArray]]:
        return [self._group.on_devices(name) for name in names]

    def _inputs(self, descriptions: Sequence[DataDesc] | None) -> list[list[tuple[slice, NDArray]]]:
        pairs = zip(self._group.slices, self._group.execs, strict=True)
        by_device = [(part, executor.arg_dict) for part, executor in pairs]
        names = [entry.name for entry in descriptions or () if entry.name in by_device[0][1]]
        return [[(part, arrays[name]) for part, arrays in by_device] for name in names]

    @property
    def param_arrays(self) -> list[list[NDArray]]:
        """The arrays of the parameters, by parameter and device."""
        return self._on_devices([name for name in self.param_names if self._group.has(name)])

    @property
    def grad_arrays(self) -> list[list[NDArray | None]]:
        """The gradients of the parameters, by parameter and device."""
        return [self._group.gradients(name) for name in self.param_names if self._group.has(name)]

    @property
    def aux_arrays(self) -> list[list[NDArray]]:
        """The arrays of the auxiliary states, by state and device."""
        return self._on_devices(self.aux_names)

    @property
    def state_arrays(self) -> list[list[NDArray]]:
        """The arrays of the states, by state and device."""
        return self._on_devices(self.state_names)

    @property
    def data_arrays(self) -> list[list[tuple[slice, NDArray]]]:
        """The slices and arrays of the inputs, by input and device."""
        return self._inputs(self._group.data_shapes)

    @property
    def label_arrays(self) -> list[list[tuple[slice, NDArray]]] | None:
        """The slices and arrays of the labels, by label and device."""
        return None if self._group.label_shapes is None else self._inputs(self._group.label_shapes)

    @property
    def input_grad_arrays(self) -> list[list[NDArray]]:
        """The gradients of the inputs, by input and device."""
        return self._group.input_grads()

    def set_params(
        self, arg_params: Mapping[str, object], aux_params: Mapping[str, object], allow_extra: bool = False
    ) -> None:
        """Enqueue the copies of parameters and auxiliary states to every device."""
        self._group.set_params(arg_params, aux_params, allow_extra)

    def get_params(self, arg_params: dict[str, NDArray], aux_params: dict[str, NDArray]) -> None:
        """Enqueue the copies of parameters and auxiliary states, the mean over the devices, into arrays on the CPU."""
        for target, names in ((arg_params, self.param_names), (aux_params, self.aux_names)):
            for name in names:
                if name not in target:
                    target[name] = nd.zeros_like(self._group.on_devices(name)[0])
            self._group.fetch({name: target[name] for name in names}, averaged=True)

    # -- running ---------------------------------------------------------------------------------------

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch, by default in training mode if the group is bound for training."""
        trains = any(request != "null" for request in self.grad_req.values())
        self._group.forward(data_batch, trains if is_train is None else is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Enqueue the backward pass, from gradients of the merged outputs if given."""
        self._group.backward(out_grads)

    def get_outputs(self, merge_multi_context: bool = True, begin: int = 0, end: int | None = None) -> Any:
        """Return the outputs: merged, or as lists by device."""
        outputs = self._group.outputs()[begin:end]
        return merge_parts(outputs, [0] * len(outputs)) if merge_multi_context else outputs

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        """Return the gradients of the inputs: merged, or as lists by device."""
        gradients = self._group.input_grads()
        axes = [DataDesc.get_batch_axis(entry.layout) for entry in self._group.data_shapes]
        return merge_parts(gradients, axes) if merge_multi_context else gradients

    def get_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return the names and shapes of the merged outputs."""
        return [(name, array.shape) for name, array in zip(self._group.output_names, self.get_outputs(), strict=True)]

    def reshape(self, data_shapes: object, label_shapes: object) -> None:
        """Rebind the executors for batches of other shapes."""
        self._group.reshape(_descriptions(data_shapes), _descriptions(label_shapes) if label_shapes else None)

    def update_metric(self, eval_metric: Any, labels: Sequence[NDArray], pre_sliced: bool = False) -> None:
        """Add the latest outputs to a metric; if ``pre_sliced``, ``labels`` has a list of labels per device."""
        for device, (named, outputs) in enumerate(self._group.labels_and_outputs([] if pre_sliced else labels)):
            if pre_sliced:
                names = [entry.name for entry in self._group.label_shapes or ()]
                named = dict(zip(names, labels[device], strict=False))
            eval_metric.update_dict(named, outputs)

    def install_monitor(self, mon: Any) -> None:
        """Install a monitor on every executor."""
        for executor in self._group.execs:
            mon.install(executor)


class DataParallelExecutorManager:
    """A symbol on several devices, for custom training loops.

    Args:
        symbol: the symbol.
        ctx: the devices.
        train_data: the iterator, for its data descriptions.
        arg_names: not used.
        param_names: the parameters (default: all arguments except the inputs).
        aux_names: not used.
        work_load_list: the relative workloads of the devices.
        logger: not used.
        sym_gen: returns the symbol of a bucket.
    """

    def __init__(
        self, symbol: Any, ctx: Sequence[Context], train_data: Any, arg_names: Sequence[str] | None = None,
        param_names: Sequence[str] | None = None, aux_names: Sequence[str] | None = None,
        work_load_list: Sequence[float] | None = None, logger: object = None, sym_gen: Any = None,
    ) -> None:  # fmt: skip
        del arg_names, aux_names, logger
        self.symbol, self.ctx, self.sym_gen = symbol, list(ctx), sym_gen
        self._workload = list(work_load_list or [1] * len(self.ctx))
        _check_arguments(symbol)
        self.slices = _split_input_slice(train_data.batch_size, self._workload)
        inputs = {description[0] for description in (*train_data.provide_data, *train_data.provide_label)}
        self.param_names = list(param_names or [name for name in symbol.list_arguments() if name not in inputs])
        self.aux_names: list[str] = symbol.list_auxiliary_states()
        self.execgrp = self.curr_execgrp = self._create_group(symbol, train_data, None)
        self.execgrp_bucket = {train_data.default_bucket_key: self.execgrp} if sym_gen is not None else {}
        self._batch: Any = None

    def _create_group(
        self, symbol: Any, data: Any, shared: DataParallelExecutorGroup | None
    ) -> DataParallelExecutorGroup:
        return DataParallelExecutorGroup(
            symbol, self.ctx, self._workload, data.provide_data, data.provide_label, self.param_names, True, False,
            shared,
        )  # fmt: skip

    def install_monitor(self, monitor: object) -> None:
        """Install a monitor on every executor.

        Raises:
            NotImplementedError: the manager has buckets.
        """
        if self.sym_gen is not None:
            raise NotImplementedError("install_monitor does not support buckets")
        self.execgrp.install_monitor(monitor)

    def set_params(self, arg_params: Mapping[str, object], aux_params: Mapping[str, object]) -> None:
        """Enqueue the copies of parameters and auxiliary states to every device."""
        self.execgrp.set_params(arg_params, aux_params, allow_extra=True)

    def copy_to(self, arg_params: dict[str, NDArray], aux_params: dict[str, NDArray]) -> None:
        """Enqueue the copies of parameters and auxiliary states into arrays on the CPU."""
        self.execgrp.get_params(arg_params, aux_params)

    @property
    def param_arrays(self) -> list[list[NDArray]]:
        """The arrays of the parameters, by parameter and device."""
        return self.execgrp.param_arrays

    @property
    def grad_arrays(self) -> list[list[NDArray | None]]:
        """The gradients of the parameters, by parameter and device."""
        return self.execgrp.grad_arrays

    @property
    def aux_arrays(self) -> list[list[NDArray]]:
        """The arrays of the auxiliary states, by state and device."""
        return self.execgrp.aux_arrays

    def load_data_batch(self, data_batch: Any) -> None:
        """Set the batch of the next forward pass, and select the executors of its bucket."""
        if self.sym_gen is not None:
            key = data_batch.bucket_key
            if key not in self.execgrp_bucket:
                self.execgrp_bucket[key] = self._create_group(self.sym_gen(key), data_batch, self.execgrp)
            self.curr_execgrp = self.execgrp_bucket[key]
        self._batch = data_batch

    def forward(self, is_train: bool = False) -> None:
        """Enqueue the forward pass of the loaded batch."""
        self.curr_execgrp.forward(self._batch, is_train)

    def backward(self) -> None:
        """Enqueue the backward pass."""
        self.curr_execgrp.backward()

    def update_metric(self, metric: object, labels: Sequence[NDArray], pre_sliced: bool = False) -> None:
        """Add the latest outputs to a metric."""
        self.curr_execgrp.update_metric(metric, labels, pre_sliced)
