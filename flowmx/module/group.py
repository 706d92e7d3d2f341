"""One executor a device, each with its slice of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx.devices import Context, cpu
from flowmx.io import DataDesc
from flowmx.module.loops import labels_of
from flowmx.ndarray import NDArray

_KEPT_SHAPES = 8


class ExecutorGroup:
    """The executors of a module, and the arrays that go in and come out.

    Args:
        symbol: the symbol.
        contexts: the devices.
        workloads: the part of a batch for each device, in any unit.
        param_names: the arguments that are parameters.
        fixed: those of them that are not trained.
        for_training: bind gradients of the parameters.
        inputs_need_grad: bind gradients of the inputs too.
        grad_req: what happens to gradients: one word, or from argument to word.
        shared: the group to share arrays with.
        group2ctxs: for each device, those of the ``ctx_group``s.
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
        self._describe(data_shapes, label_shapes)
        inputs = {each.name for each in data_shapes} if inputs_need_grad else set()
        wanted = (set(self.param_names) - set(fixed)) | inputs if for_training else set()
        request = _request_of(grad_req, symbol.list_arguments())
        requests = {name: request[name] if name in wanted else "null" for name in self._arguments}
        types = {
            each.name: each.dtype for each in (*data_shapes, *(label_shapes or ())) if each.name in self._arguments
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
        self._kept = {self._key(): self.execs}

    # -- shapes ----------------------------------------------------------------------------------------

    def _describe(self, data_shapes: list[DataDesc], label_shapes: list[DataDesc] | None) -> None:
        self.data_shapes, self.label_shapes = data_shapes, label_shapes
        self.slices: list[slice] = []
        self.batch_size = 0
        for each in (*data_shapes, *(label_shapes or ())):
            axis = DataDesc.get_batch_axis(each.layout)
            if axis < 0:
                continue
            if not self.slices:
                self.batch_size = each.shape[axis]
                self.slices = split(self.batch_size, self.workloads)
            elif each.shape[axis] != self.batch_size:
                raise ValueError(
                    f"bind: {each.name} has {each.shape[axis]} instances on axis {axis} of {each.shape}, expected "
                    f"{self.batch_size} as {data_shapes[0].name} has"
                )
        if not self.slices:  # no input has an axis of instances: every device sees all
            self.slices = [slice(0, 1) for _ in self.contexts]

    def _shapes_on(self, device: int) -> dict[str, tuple[int, ...]]:
        shapes = {}
        part = self.slices[device]
        for each in (*self.data_shapes, *(self.label_shapes or ())):
            shape, axis = list(each.shape), DataDesc.get_batch_axis(each.layout)
            if axis >= 0:
                shape[axis] = part.stop - part.start
            if each.name in self._arguments:
                shapes[each.name] = tuple(shape)
        return shapes

    def _key(self) -> Any:
        return tuple(tuple(each) for each in (*self.data_shapes, *(self.label_shapes or ())))

    def reshape(self, data_shapes: list[DataDesc], label_shapes: list[DataDesc] | None) -> None:
        """Change to batches of other shapes; the parameters stay where they are."""
        self._describe(data_shapes, label_shapes)
        execs = self._kept.get(self._key())
        if execs is None:
            execs = [self._reshaped(each, self._shapes_on(i)) for i, each in enumerate(self._bound)]
            if len(self._kept) >= _KEPT_SHAPES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[self._key()] = execs
        self.execs = execs

    def _reshaped(self, executor: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
        # Labels may be left out, so that shapes which are not named may change; those of parameters may not.
        made = executor.reshape(partial_shaping=True, allow_up_sizing=True, **shapes)
        for name in self.param_names:
            if made.arg_dict[name] is not executor.arg_dict[name]:
                raise ValueError(
                    f"reshape: with inputs of shapes {shapes} the parameter {name!r} would change from "
                    f"{executor.arg_dict[name].shape} to {made.arg_dict[name].shape}; give inputs that differ in the "
                    "number of instances alone, or bind another module"
                )
        return made

    # -- running ---------------------------------------------------------------------------------------

    def load(self, batch: Any) -> None:
        """Enqueue the copies of a batch's arrays to the devices."""
        described = [(self.data_shapes, batch.data), (self.label_shapes or [], labels_of(batch))]
        for descriptions, arrays in described:
            for each, array in zip(descriptions, arrays, strict=False):
                if each.name not in self._arguments:
                    continue
                axis = DataDesc.get_batch_axis(each.layout)
                for executor, part in zip(self.execs, self.slices, strict=True):
                    executor.arg_dict[each.name][:] = self._part(array, part, axis)

    def _part(self, array: Any, part: slice, axis: int) -> Any:
        if len(self.execs) == 1 or axis < 0:
            return array
        return array[part] if axis == 0 else array[(slice(None),) * axis + (part,)]

    def forward(self, batch: Any, is_train: bool) -> None:
        """Enqueue the forward pass of a batch on every device."""
        self.load(batch)
        for executor in self.execs:
            executor.forward(is_train)

    def forward_backward(self, batch: Any) -> None:
        """Enqueue both passes of a batch on every device, each as one operation."""
        self.load(batch)
        for executor in self.execs:
            executor.forward_backward()

    def backward(self, out_grads: Any) -> None:
        """Enqueue the backward pass on every device, from gradients of the merged outputs if given."""
        given = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or ())
        for executor, part in zip(self.execs, self.slices, strict=True):
            executor.backward(
                [
                    self._part(each, part, 0).as_in_context(output.context)
                    for each, output in zip(given, executor.outputs, strict=False)
                ]
                or None
            )

    def measured(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        """Labels and outputs by name, for each device."""
        described = self.label_shapes or []
        found = []
        for executor, part in zip(self.execs, self.slices, strict=True):
            named = {
                each.name: self._part(label, part, DataDesc.get_batch_axis(each.layout))
                for each, label in zip(described, labels or (), strict=False)
            }
            found.append((named, dict(zip(self.output_names, executor.outputs, strict=True))))
        return found

    # -- arrays ----------------------------------------------------------------------------------------

    def outputs(self) -> list[list[NDArray]]:
        """For each output, that of each device."""
        return [list(each) for each in zip(*(executor.outputs for executor in self.execs), strict=True)]

    def input_grads(self) -> list[list[NDArray]]:
        """For each input, its gradient on each device."""
        return [[executor.grad_dict[each.name] for executor in self.execs] for each in self.data_shapes]

    def on_devices(self, name: str) -> list[NDArray]:
        """A parameter or auxiliary state on each device."""
        return [
            executor.arg_dict[name] if name in executor.arg_dict else executor.aux_dict[name] for executor in self.execs
        ]

    def has(self, name: str) -> bool:
        """Tell whether the symbol has this parameter."""
        return name in self._arguments

    def gradients(self, name: str) -> list[Any]:
        """A parameter's gradient on each device; None where it has none."""
        return [executor.grad_dict[name] for executor in self.execs]

    def set_params(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], allow_extra: bool = False
    ) -> None:
        """Enqueue the copies of parameters and auxiliary states to every device."""
        for executor in self.execs:
            executor.copy_params_from(arg_params, aux_params, allow_extra_params=allow_extra)

    def fetch(self, targets: Mapping[str, NDArray], averaged: bool) -> None:
        """Enqueue the copies of parameters (or auxiliary states) into arrays on the CPU.

        Args:
            targets: from name to array.
            averaged: take the mean over the devices, which may differ (running means do).
        """
        for name, target in targets.items():
            found = self.on_devices(name)
            if averaged and len(found) > 1:
                moved = [each.as_in_context(cpu()) for each in found]
                total = moved[0]
                for each in moved[1:]:
                    total = total + each
                found = [total / len(found)]
            found[0].copyto(target)


def split(batch_size: int, workloads: Sequence[float]) -> list[slice]:
    """The slices of a batch for devices with these workloads.

    Raises:
        ValueError: a device would get nothing.
    """
    total, done, start = sum(workloads), 0.0, 0
    slices = []
    for workload in workloads:
        done += workload
        stop = round(batch_size * done / total)
        if stop <= start:
            raise ValueError(
                f"bind: a batch of {batch_size} can not be split over {len(workloads)} devices (work_load_list is "
                f"{list(workloads)})"
            )
        slices.append(slice(start, stop))
        start = stop
    return slices


def merged(parts: Iterable[list[NDArray]], axes: Iterable[int]) -> list[NDArray]:
    """For each output or input, what the devices have of it put together on the first one."""
    found = []
    for arrays, axis in zip(parts, axes, strict=False):
        if len(arrays) == 1 or axis < 0:
            found.append(arrays[0])
        else:
            first = arrays[0].context
            found.append(nd.op.concat(*(each.as_in_context(first) for each in arrays), dim=axis))
    return found


def _request_of(grad_req: Any, names: Sequence[str]) -> dict[str, str]:
    if isinstance(grad_req, str):
        return dict.fromkeys(names, grad_req)
    if isinstance(grad_req, Mapping):
        return {name: grad_req.get(name, "write") for name in names}
    return dict(zip(names, grad_req, strict=True))
