"""The executors of a module, one for each device; each runs a slice of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx.devices import Context, cpu
from flowmx.executor.unplanned import UnplannedExecutor
from flowmx.graph.capacity import GraphCache, bytes_of, tick
from flowmx.graph.plan import Plan
from flowmx.io import DataDesc
from flowmx.module.evaluation import batch_labels
from flowmx.ndarray import NDArray


class _BoundExecutors:
    """The executors for batches with the same shapes."""

    def __init__(self, execs: list[Any]) -> None:
        self.execs = execs
        self.used = 0
        self.held_bytes = sum(map(_executor_bytes, execs))


def _executor_bytes(executor: Any) -> int:
    """Return the approximate bytes of an executor, without parameters and memory shared with other shapes."""
    if isinstance(executor, UnplannedExecutor):
        return 0  # its outputs are allocated at each pass
    plan: Plan = executor.plan
    return bytes_of(len(plan.graph.shapes)) + sum(map(plan.nbytes, plan.external))


class ExecutorGroup:
    """The executors of a module, and their inputs and outputs.

    Args:
        symbol: the symbol.
        contexts: the devices.
        workloads: the relative share of a batch for each device.
        param_names: the arguments that are parameters.
        fixed: the parameters that are not trained.
        for_training: bind gradients of the parameters.
        inputs_need_grad: bind gradients of the inputs too.
        grad_req: ``"write"``, ``"add"`` or ``"null"``, or a dict from arguments to these.
        shared: the group to share arrays with.
        group2ctxs: for each device, the devices of the ``ctx_group``s.
    """

    def __init__(
        self,
        symbol: Any,
        contexts: Sequence[Context],
        workloads: Sequence[float],
        data_shapes: list[DataDesc],
        label_shapes: list[DataDesc] | None,
        param_names: Sequence[str],
        fixed: Sequence[str],
        for_training: bool,
        inputs_need_grad: bool,
        grad_req: Any,
        shared: ExecutorGroup | None,
        group2ctxs: Sequence[Mapping[str, Any] | None],
    ) -> None:
        self.symbol = symbol
        self.contexts = list(contexts)
        self.workloads = list(workloads)
        self.param_names = list(param_names)
        self.output_names: list[str] = symbol.list_outputs()
        self._arguments = set(symbol.list_arguments())
        self._set_shapes(data_shapes, label_shapes)
        inputs = {desc.name for desc in data_shapes} if inputs_need_grad else set()
        with_gradient = (set(self.param_names) - set(fixed)) | inputs if for_training else set()
        request = _grad_requests(grad_req, symbol.list_arguments())
        requests = {name: request[name] if name in with_gradient else "null" for name in self._arguments}
        types = {
            desc.name: desc.dtype for desc in (*data_shapes, *(label_shapes or ())) if desc.name in self._arguments
        }
        self.execs: list[Any] = [
            symbol.simple_bind(
                context, grad_req=requests, type_dict=types, group2ctx=group2ctxs[i],
                shared_arg_names=self.param_names,
                shared_exec=shared.execs[i] if shared is not None else None, **self._shapes_on(i),
            )
            for i, context in enumerate(self.contexts)
        ]  # fmt: skip
        self._bound = self.execs
        self._cache = GraphCache(symbol.name or "module")
        self._cache.add(self._key(), _BoundExecutors(self.execs))

    # -- shapes ----------------------------------------------------------------------------------------

    def _set_shapes(self, data_shapes: list[DataDesc], label_shapes: list[DataDesc] | None) -> None:
        self.data_shapes, self.label_shapes = data_shapes, label_shapes
        self.slices: list[slice] = []
        self.batch_size = 0
        for desc in (*data_shapes, *(label_shapes or ())):
            axis = DataDesc.get_batch_axis(desc.layout)
            if axis < 0:
                continue
            if not self.slices:
                self.batch_size = desc.shape[axis]
                self.slices = split(self.batch_size, self.workloads)
            elif desc.shape[axis] != self.batch_size:
                raise ValueError(
                    f"bind: {desc.name} has {desc.shape[axis]} samples on axis {axis} of {desc.shape}, expected "
                    f"{self.batch_size} as {data_shapes[0].name} has"
                )
        if not self.slices:  # no input has a batch axis: every device gets the whole batch
            self.slices = [slice(0, 1) for _ in self.contexts]

    def _shapes_on(self, device: int) -> dict[str, tuple[int, ...]]:
        shapes = {}
        part = self.slices[device]
        for desc in (*self.data_shapes, *(self.label_shapes or ())):
            shape, axis = list(desc.shape), DataDesc.get_batch_axis(desc.layout)
            if axis >= 0:
                shape[axis] = part.stop - part.start
            if desc.name in self._arguments:
                shapes[desc.name] = tuple(shape)
        return shapes

    def _key(self) -> Any:
        return tuple(tuple(desc) for desc in (*self.data_shapes, *(self.label_shapes or ())))

    def reshape(self, data_shapes: list[DataDesc], label_shapes: list[DataDesc] | None) -> None:
        """Change to batches of other shapes, with the same parameters."""
        former = self.data_shapes, self.label_shapes
        try:
            self._set_shapes(data_shapes, label_shapes)
            bound = self._bind()
        except BaseException:  # whatever the reason: the executors still have the former shapes
            self._set_shapes(*former)
            raise
        bound.used = tick()
        self.execs = bound.execs

    def _bind(self) -> _BoundExecutors:
        """Return the executors for the shapes."""
        bound: _BoundExecutors | None = self._cache.graphs.get(self._key())
        if bound is None:
            bound = _BoundExecutors(
                [self._reshape(executor, self._shapes_on(i)) for i, executor in enumerate(self._bound)]
            )
            self._cache.add(self._key(), bound)
        return bound

    def _reshape(self, executor: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
        # Labels may be missing, so the shapes of unnamed arguments may change; the shapes of parameters may not.
        result = executor.reshape(partial_shaping=True, allow_up_sizing=True, **shapes)
        for name in self.param_names:
            if result.arg_dict[name] is not executor.arg_dict[name]:
                raise ValueError(
                    f"reshape: with inputs of shapes {shapes} the parameter {name!r} would change from "
                    f"{executor.arg_dict[name].shape} to {result.arg_dict[name].shape}; give inputs that differ in "
                    "the number of samples only, or bind another module"
                )
        return result

    # -- running ---------------------------------------------------------------------------------------

    def load(self, batch: Any) -> None:
        """Enqueue the copies of a batch's arrays to the devices."""
        pairs = [(self.data_shapes, batch.data), (self.label_shapes or [], batch_labels(batch))]
        for descs, arrays in pairs:
            for desc, array in zip(descs, arrays, strict=False):
                if desc.name not in self._arguments:
                    continue
                axis = DataDesc.get_batch_axis(desc.layout)
                for executor, part in zip(self.execs, self.slices, strict=True):
                    executor.arg_dict[desc.name][:] = self._part(array, part, axis)

    def _part(self, array: NDArray, part: slice, axis: int) -> Any:
        if len(self.execs) == 1 or axis < 0:
            return array
        return array[part] if axis == 0 else array[(slice(None),) * axis + (part,)]

    def forward(self, batch: Any, is_train: bool) -> None:
        """Enqueue the forward pass of a batch on every device."""
        self.load(batch)
        for executor in self.execs:
            executor.forward(is_train)

    def forward_backward(self, batch: object) -> None:
        """Enqueue both passes of a batch on every device, as one operation per device."""
        self.load(batch)
        for executor in self.execs:
            executor.forward_backward()

    def backward(self, out_grads: Any) -> None:
        """Enqueue the backward pass on every device, from gradients of the merged outputs, if any."""
        grads = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or ())
        for executor, part in zip(self.execs, self.slices, strict=True):
            executor.backward(
                [
                    self._part(grad, part, 0).as_in_context(output.context)
                    for grad, output in zip(grads, executor.outputs, strict=False)
                ]
                or None
            )

    def labels_and_outputs(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        """Return labels and outputs by name, for each device."""
        descs = self.label_shapes or []
        per_device = []
        for executor, part in zip(self.execs, self.slices, strict=True):
            labels_by_name = {
                desc.name: self._part(label, part, DataDesc.get_batch_axis(desc.layout))
                for desc, label in zip(descs, labels or (), strict=False)
            }
            per_device.append((labels_by_name, dict(zip(self.output_names, executor.outputs, strict=True))))
        return per_device

    # -- arrays ----------------------------------------------------------------------------------------

    def outputs(self) -> list[list[NDArray]]:
        """Return, for each output, a list of arrays by device."""
        return [list(arrays) for arrays in zip(*(executor.outputs for executor in self.execs), strict=True)]

    def input_grads(self) -> list[list[NDArray]]:
        """Return, for each input, a list of gradients by device."""
        return [[executor.grad_dict[desc.name] for executor in self.execs] for desc in self.data_shapes]

    def on_devices(self, name: str) -> list[NDArray]:
        """Return a parameter or auxiliary state on each device."""
        return [
            executor.arg_dict[name] if name in executor.arg_dict else executor.aux_dict[name] for executor in self.execs
        ]

    def has(self, name: str) -> bool:
        """Return whether the symbol has this parameter."""
        return name in self._arguments

    def gradients(self, name: str) -> list[Any]:
        """Return a parameter's gradient on each device, or Nones if it has no gradient."""
        return [executor.grad_dict[name] for executor in self.execs]

    def set_params(
        self, arg_params: Mapping[str, object], aux_params: Mapping[str, object], allow_extra: bool = False
    ) -> None:
        """Enqueue the copies of parameters and auxiliary states to every device."""
        for executor in self.execs:
            executor.copy_params_from(arg_params, aux_params, allow_extra_params=allow_extra)

    def fetch(self, targets: Mapping[str, NDArray], averaged: bool) -> None:
        """Enqueue the copies of parameters (or auxiliary states) into arrays on the CPU.

        Args:
            targets: arrays by name.
            averaged: whether to average over the devices, for values that differ, such as running means.
        """
        for name, target in targets.items():
            arrays = self.on_devices(name)
            if averaged and len(arrays) > 1:
                copies = [array.as_in_context(cpu()) for array in arrays]
                total = copies[0]
                for array in copies[1:]:
                    total = total + array
                arrays = [total / len(arrays)]
            arrays[0].copyto(target)


def split(batch_size: int, workloads: Sequence[float]) -> list[slice]:
    """Return the slices of a batch for devices with these workloads.

    Raises:
        ValueError: a device would get no samples.
    """
    total, workload_sum, start = sum(workloads), 0.0, 0
    slices = []
    for workload in workloads:
        workload_sum += workload
        stop = round(batch_size * workload_sum / total)
        if stop <= start:
            raise ValueError(
                f"bind: a batch of {batch_size} cannot be split over {len(workloads)} devices (work_load_list is "
                f"{list(workloads)})"
            )
        slices.append(slice(start, stop))
        start = stop
    return slices


def merge_parts(parts: Iterable[list[NDArray]], axes: Iterable[int]) -> list[NDArray]:
    """Concatenate the devices' parts of each output or input, on the first device."""
    merged = []
    for arrays, axis in zip(parts, axes, strict=False):
        if len(arrays) == 1 or axis < 0:
            merged.append(arrays[0])
        else:
            first = arrays[0].context
            merged.append(nd.op.concat(*(array.as_in_context(first) for array in arrays), dim=axis))
    return merged


def _grad_requests(grad_req: Any, names: Sequence[str]) -> dict[str, str]:
    if isinstance(grad_req, str):
        return dict.fromkeys(names, grad_req)
    if isinstance(grad_req, Mapping):
        return {name: grad_req.get(name, "write") for name in names}
    return dict(zip(names, grad_req, strict=True))
