"""Convolution and Deconvolution with their gradients, by oneDNN.

The library is fastest if the channels are contiguous in memory (channels-last). Bound graphs use this layout; arrays in
C order are copied on the way in and out. Filters are always copied into the library's layout, which is cheap compared
with the product, and scaled on the way for fused convolutions with a scale.

A deconvolution is the gradient of a convolution for its data, so three primitives serve all operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from flowmx.ops.kernels.onednn.epilogue import Epilogue
from flowmx.ops.kernels.onednn.layouts import (
    Desc,
    Geometry,
    any_layout,
    channels_last,
    channels_last_strides,
    dense,
    dims,
    is_channels_last,
    library_or_raise,
    plain,
    strided,
)
from flowmx.ops.kernels.onednn.library import Alg, Arg, DType, Handle, Prop, Query, Unsupported
from flowmx.ops.kernels.onednn.primitives import Call, Post, Primitive, Reorder, Scales, WorkspaceLayout, attributes
from flowmx.ops.kernels.onednn.work import Operand, Work, move_time_ns, multiply_time_ns, plan
from flowmx.ops.nn.windows import Geometry as Windows
from flowmx.ops.registry.operators import Shape

Geometries = Sequence[Geometry]
_PART = 1 << 22
"""Bytes of data copied at a time."""
_SUMMED = 1 << 17
"""Positions summed sequentially: the sum of 100,000 has an error of about 2e-6 of the largest sum."""
_BLOCK = 16
"""Channels that the widest implementations process at a time."""


def grouped(windows: Windows, weight: Geometry) -> Geometry:
    """Return the filters in oneDNN's form, with the groups as a separate axis."""
    shape, strides, dtype = weight
    if windows.groups == 1:
        return weight
    each = shape[0] // windows.groups
    return Geometry((windows.groups, each, *shape[1:]), (strides[0] * each, *strides), dtype)


def _window_arguments(windows: Windows) -> tuple[object, ...]:
    pad = dims(windows.pad)
    return dims(windows.stride), dims([each - 1 for each in windows.dilate]), pad, pad


class _Work(Work):
    """Base of the three kinds of propagation: descriptors of data, filters and output.

    Raises:
        Unsupported: all data may lie between two positions of a window; oneDNN 3.2 crashes with AMX.
    """

    def __init__(self, windows: Windows, data: Geometry, weight: Geometry, out: Geometry) -> None:
        super().__init__()
        lengths = enumerate(data.shape[2:])
        if any(windows.kernel[at] > 1 and windows.dilate[at] > length for at, length in lengths):
            raise Unsupported("oneDNN: dilated windows without data")
        self.weight_given = grouped(windows, weight)
        self.data = channels_last(data.shape, data.dtype)
        self.weight = any_layout(self.weight_given.shape, weight.dtype)
        self.out, self.out_shape = channels_last(out.shape, out.dtype), out.shape
        self.windows = _window_arguments(windows)

    def forward_desc(
        self, bias: Desc | None, train: bool, posts: Sequence[Post] = (), scales: Scales = ()
    ) -> Handle:  # fmt: skip
        lib = library_or_raise()
        return lib.create(
            "convolution_forward_primitive_desc_create", lib.engine,
            int(Prop.FORWARD_TRAINING if train else Prop.FORWARD_INFERENCE), int(Alg.CONVOLUTION_DIRECT),
            self.data.handle, self.weight.handle, None if bias is None else bias.handle, self.out.handle,
            *self.windows, attributes(*posts, scales=scales),
        )  # fmt: skip


def _effort(data: Geometry, weight: Geometry, out: Geometry) -> float:
    """Estimate the nanoseconds of a convolution, or a gradient of one, on one core."""
    return multiply_time_ns(prod(out.shape) * prod(weight.shape[1:])) + move_time_ns(data, weight, out)


class Forward(_Work):
    """Output = activation(data * (scale · filters) + bias + addend); all parts except data and filters are optional.

    The addend is copied to the output unless it shares its memory, and the product is added to it. Big data that must
    be copied is processed in parts of the batch, with less memory, which stays in the cache.
    """

    def __init__(
        self, windows: Windows, data: Geometry, weight: Geometry, out: Geometry, epilogue: Epilogue,
        addend: Geometry | None = None, packed: bool = False,
    ) -> None:  # fmt: skip
        layout = self.packed(windows, data, weight, out, epilogue) if packed else None
        self._parts, (data, out, *rest) = _part(data, out, *(() if addend is None else (addend,)))
        super().__init__(windows, data, weight, out)
        self.epilogue, workspace = epilogue, self.workspace
        self._epilogue = epilogue
        desc = self._desc(epilogue)
        if epilogue.has_scale and not epilogue.scales and library_or_raise().implementation(desc).startswith("ref"):
            library_or_raise().own(self, "primitive_desc", desc)
            self._epilogue = epilogue._replace(has_scale=False)  # the filters are scaled instead
            desc = self._desc(self._epilogue)
        arguments: dict[int, Desc | Query] = {Arg.SRC: self.data, Arg.WEIGHTS: Query.WEIGHTS, Arg.DST: self.out}
        self._run = Primitive(workspace, desc, {**arguments, **self._epilogue.arguments(self._vector(self._epilogue))})
        self._source = Operand(workspace, strided(*data), self.data)
        scale = (3 if windows.groups > 1 else 1, plain((out[0][1],), epilogue.vector_type))
        self._filters = Operand(
            workspace, layout or strided(*self.weight_given), self.filters(),
            scale=scale if epilogue.has_scale != self._epilogue.has_scale else None,
        )  # fmt: skip
        self._target = Operand(workspace, strided(*out), self.out, is_output=True)
        self._addend = Reorder(workspace, strided(*rest[0]), channels_last(out.shape, rest[0].dtype)) if rest else None
        self._steps = [dtype.nbytes * shape[0] * strides[0] for shape, strides, dtype in (data, out, *rest)]

    def packed(
        self, windows: Windows, data: Geometry, weight: Geometry, out: Geometry, epilogue: Epilogue
    ) -> Desc | None:
        """Return the layout of packed filters, which does not depend on scaling."""
        return packed_filters(windows, data, weight, out, epilogue._replace(has_scale=False))

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        _, data, weight, out = key[:4]
        return _effort(data, weight, out)

    def implementation(self) -> str:
        """Return the name of the implementation that oneDNN chose."""
        return self._run.implementation()

    def filters(self) -> Desc:
        """Return the layout in which the primitive reads the filters."""
        return self._run.descriptor(Arg.WEIGHTS)

    def _vector(self, epilogue: Epilogue) -> Shape:
        """Return the shape of scale and bias."""
        channels = self.out_shape[1]
        return (channels,) if epilogue.has_primitive_bias else (1, channels, *(1,) * (len(self.out_shape) - 2))

    def _desc(self, epilogue: Epilogue) -> Handle:
        vector = self._vector(epilogue)
        bias = plain(vector, epilogue.vector_type) if epilogue.has_primitive_bias else None
        return self.forward_desc(bias, False, epilogue.posts(vector), epilogue.scales)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        data, weight, *extra, out = addresses
        bias = [extra.pop(0)] if self.epilogue.has_bias else []
        scale = [extra.pop(0)] if self.epilogue.has_scale else []
        calls = self._filters.before(base, weight, *([] if self._epilogue.has_scale else scale))
        vectors = self._epilogue.addresses(bias, scale)
        operands = [data, out, *([] if self._addend is None else extra[:1])]
        for part in range(self._parts):
            places = [each + part * step for each, step in zip(operands, self._steps, strict=True)]
            calls += self._part(base, self._filters.at(base, weight), vectors, *places)
        return calls

    def _part(self, base: int, filters: int, vectors: Sequence[int], data: int, out: int, *addend: int) -> list[Call]:
        """Return the calls that compute one part of the batch."""
        source, target = self._source.at(base, data), self._target.at(base, out)
        before = self._source.before(base, data)
        if self._addend is not None and addend[0] != target:
            before.append(self._addend.at(base, addend[0], target))
        return [*before, self._run.at(base, source, filters, target, *vectors), *self._target.after(base, out)]


def packed_filters(
    windows: Windows, data: Geometry, weight: Geometry, out: Geometry, epilogue: Epilogue
) -> Desc | None:
    """Return the layout of packed filters, for data and output of these shapes and types, in any layout."""
    return _packed_filters(
        windows, _as_channels_last(data), dense(weight.shape, weight.dtype), _as_channels_last(out), epilogue
    )


@cache
def _packed_filters(
    windows: Windows, data: Geometry, weight: Geometry, out: Geometry, epilogue: Epilogue
) -> Desc | None:
    """Return the layout, chosen once per key, since packed copies are reused."""
    work = plan(Forward, windows, data, weight, out, epilogue, out if epilogue.has_addend else None)
    return None if work is None else work.filters()


def _as_channels_last(array: Geometry) -> Geometry:
    return array._replace(strides=channels_last_strides(array.shape))


def _part(data: Geometry, *others: Geometry) -> tuple[int, list[Geometry]]:
    """Split the batch into equal parts; return their number, and the geometry of each array's part."""
    shape, _, dtype = data
    batch, each = shape[0], dtype.nbytes * prod(shape[1:])
    if is_channels_last(data) or batch * each <= _PART:
        size = batch
    else:
        size = max(n for n in range(1, batch + 1) if batch % n == 0 and (n == 1 or n * each <= _PART))
    return batch // size, [each._replace(shape=(size, *each.shape[1:])) for each in (data, *others)]


class Add(Primitive):
    """Add one array to another, of the same layout or broadcast."""

    def __init__(self, workspace: WorkspaceLayout, total: Desc, summand: Desc | None = None) -> None:
        lib, summand = library_or_raise(), summand or total
        desc = lib.create(
            "binary_primitive_desc_create", lib.engine, int(Alg.BINARY_ADD), total.handle, summand.handle, total.handle,
            attributes(),
        )  # fmt: skip
        super().__init__(workspace, desc, {Arg.SRC: total, Arg.SRC_1: summand, Arg.DST: total})

    def at(self, base: int, *addresses: int) -> Call:
        """Return a call on the array that is added to, and the other array."""
        total, summand = addresses
        return super().at(base, total, summand, total)


class BackwardData(_Work):
    """The gradient for the data; also a deconvolution's forward, with an optional bias."""

    def __init__(
        self, windows: Windows, head: Geometry, weight: Geometry, data: Geometry, bias: DType | None = None
    ) -> None:
        super().__init__(windows, data, weight, head)
        lib, workspace = library_or_raise(), self.workspace
        hint = lib.own(self, "primitive_desc", self.forward_desc(None, True))
        desc = lib.create(
            "convolution_backward_data_primitive_desc_create", lib.engine, int(Alg.CONVOLUTION_DIRECT),
            self.data.handle, self.weight.handle, self.out.handle, *self.windows,
            hint, attributes(),
        )  # fmt: skip
        self._run = Primitive(
            workspace, desc, {Arg.DIFF_DST: self.out, Arg.WEIGHTS: Query.WEIGHTS, Arg.DIFF_SRC: self.data}
        )
        self._head = Operand(workspace, strided(*head), self.out)
        self._filters = Operand(workspace, strided(*self.weight_given), self._run.descriptor(Arg.WEIGHTS))
        self._target = Operand(workspace, strided(*data), self.data, is_output=True)
        shape = (1, data.shape[1], *(1,) * (len(data.shape) - 2))
        self._bias = None if bias is None else Add(self.workspace, self.data, plain(shape, bias))

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        _, head, weight, data = key[:4]
        return _effort(data, weight, head)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        head, weight, *bias, data = addresses
        target = self._target.at(base, data)
        return [
            *self._head.before(base, head), *self._filters.before(base, weight),
            self._run.at(base, self._head.at(base, head), self._filters.at(base, weight), target),
            *([] if self._bias is None else [self._bias.at(base, target, bias[0])]),
            *self._target.after(base, data),
        ]  # fmt: skip


def _is_wrong(implementation: str, windows: Windows, data: Shape, is_narrow: bool) -> bool:
    """Return whether oneDNN 3.2 computes wrong gradients of filters.

    It does for 1x1 filters with strides if the channels do not fill a block. For 16-bit dtypes it also does if the
    data is shorter than a window or a stride, and padded: it then adds memory that it has not initialized.
    """
    if is_narrow and not implementation.startswith(("x64:gemm", "gemm", "ref")):
        lengths = enumerate(data[2:])
        return any(windows.pad[at] and max(windows.reach(at), windows.stride[at]) > length for at, length in lengths)
    return implementation.startswith("jit_1x1") and max(windows.stride) > 1 and data[1] % _BLOCK > 0


class BackwardWeights(_Work):
    """The gradient for the filters, and optionally for the bias.

    The library sums all samples and positions sequentially, which for millions leaves five exact digits. So parts of
    the batch are summed first, and then these sums.
    """

    def __init__(
        self, windows: Windows, head: Geometry, data: Geometry, weight: Geometry, bias_grad: DType | None = None
    ) -> None:
        is_exact = weight.dtype == DType.F32 and bias_grad in (None, DType.F32)
        self._parts, (head, data) = _summands(head, data) if is_exact else (1, [head, data])
        super().__init__(windows, data, weight._replace(dtype=data.dtype), head)  # as in the forward
        lib, workspace = library_or_raise(), self.workspace
        weight_desc = any_layout(self.weight_given.shape, weight.dtype)
        bias = None if bias_grad is None else plain((head[0][1],), bias_grad)
        hint = lib.own(self, "primitive_desc", self.forward_desc(bias, True))
        desc = lib.create(
            "convolution_backward_weights_primitive_desc_create", lib.engine, int(Alg.CONVOLUTION_DIRECT),
            self.data.handle, weight_desc.handle, None if bias is None else bias.handle, self.out.handle,
            *self.windows, hint, attributes(),
        )  # fmt: skip
        while _is_wrong(lib.implementation(desc), windows, data.shape, data.dtype != DType.F32):
            lib.call("primitive_desc_next_impl", desc)
        arguments: dict[int, Desc | Query] = {
            Arg.SRC: self.data, Arg.DIFF_DST: self.out, Arg.DIFF_WEIGHTS: Query.DIFF_WEIGHTS
        }  # fmt: skip
        if bias is not None:
            arguments[Arg.DIFF_BIAS] = bias
        self._run = Primitive(workspace, desc, arguments)
        self._source = Operand(workspace, strided(*data), self.data)
        self._head = Operand(workspace, strided(*head), self.out)
        weight_layout = strided(*self.weight_given._replace(dtype=weight.dtype))
        self._target = Operand(workspace, weight_layout, self._run.descriptor(Arg.DIFF_WEIGHTS), is_output=True)
        self._steps = [dtype.nbytes * shape[0] * strides[0] for shape, strides, dtype in (head, data)]
        sums = [self._run.descriptor(Arg.DIFF_WEIGHTS), *([] if bias is None else [bias])] if self._parts > 1 else []
        self._sums = [(Add(workspace, each), workspace.take(each.nbytes)) for each in sums]

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        _, head, data, weight = key[:4]
        return _effort(data, weight, head)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        head, data, weight, *bias = addresses
        targets = [self._target.at(base, weight), *bias]
        calls = self._part(base, head, data, targets)
        for part in range(1, self._parts):
            of_head, of_data = self._steps
            summands = [base + place for _, place in self._sums]
            calls += self._part(base, head + part * of_head, data + part * of_data, summands)
            sums = zip(targets, self._sums, strict=True)
            calls += [add.at(base, total, base + place) for total, (add, place) in sums]
        return [*calls, *self._target.after(base, weight)]

    def _part(self, base: int, head: int, data: int, targets: Sequence[int]) -> list[Call]:
        """Return the calls that compute the gradients of one part of the batch."""
        return [
            *self._source.before(base, data), *self._head.before(base, head),
            self._run.at(base, self._source.at(base, data), self._head.at(base, head), *targets),
        ]  # fmt: skip


def _summands(head: Geometry, data: Geometry) -> tuple[int, list[Geometry]]:
    """Split the batch into equal parts with sufficiently exact sums; return their number, and each array's part."""
    batch, _, *size = head.shape
    least = -(-batch * prod(size) // _SUMMED)
    parts = next((each for each in range(least, min(batch, 4 * least) + 1) if batch % each == 0), 1)
    return parts, [each._replace(shape=(batch // parts, *each.shape[1:])) for each in (head, data)]


class DeconvolutionWeights(BackwardWeights):
    """The gradient for a deconvolution's filters: the roles of head and data are exchanged."""

    def calls(self, base: int, *addresses: int) -> list[Call]:
        head, data, weight = addresses
        return super().calls(base, data, head, weight)
