"""Graphs of cuDNN's stand-in: tensors, and the operations that compute on them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.nn.windows import Geometry, correlate, spread, weight_gradient
from flowmx.ops.registry.dtypes import BY_NAME
from flowmx.ops.registry.operators import Run
from tests.graph_runs import device


class cudnnGraphNotSupportedError(RuntimeError):  # noqa: N801 - the frontend's name
    """No engine supports a graph."""


class Tensor:
    """A tensor of a graph."""

    def __init__(self, dim: Sequence[int] = (), stride: Sequence[int] = (), data_type: str = "", uid: int = 0) -> None:
        self.dim, self.stride, self.data_type, self.uid = list(dim), list(stride), data_type, uid
        self.is_output = False

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_output(self, value: bool) -> Tensor:
        self.is_output = value
        return self

    def set_data_type(self, value: str) -> Tensor:
        self.data_type = value
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = stride
        return self

    def array(self, address: int) -> Any:
        """Return the host's array at an address."""
        dtype = BY_NAME[self.data_type]
        reach = 1 + sum((length - 1) * step for length, step in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_char * (reach * dtype.itemsize)).from_address(address)
        steps = [step * dtype.itemsize for step in self.stride]
        make: Any = np.ndarray
        return make(self.dim, dtype, memory, 0, steps)


class Convolution:
    """One of the three products of images and filters."""

    def __init__(self, method: str, one: Tensor, other: Tensor, windows: dict[str, list[int]]) -> None:
        self.method, self.operands, self.windows = method, [one, other], windows
        self.outputs = [Tensor()]

    def check(self) -> None:
        """Raise an error if the dims of the three tensors do not fit each other."""
        small, image, filters = self._parts()
        g = self.geometry()
        for axis, (size, length) in enumerate(zip(small.dim[2:], image.dim[2:], strict=True)):
            if size != g.output(axis, length):
                raise cudnnGraphNotSupportedError(f"axis {axis}: {length} gives {g.output(axis, length)}, not {size}")
        assert (small.dim[0], small.dim[1]) == (image.dim[0], filters.dim[0])

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors of the convolution: output, input, filters."""
        (one, other), (output,) = self.operands, self.outputs
        return {
            "conv_fprop": (output, one, other),
            "conv_dgrad": (one, output, other),
            "conv_wgrad": (other, one, output),
        }[self.method]

    def geometry(self) -> Geometry:
        """The geometry of the windows."""
        _, image, filters = self._parts()
        assert self.windows["pre_padding"] == self.windows["post_padding"]
        strides, dilation, pad = (tuple(self.windows[name]) for name in ("stride", "dilation", "pre_padding"))
        return Geometry(tuple(filters.dim[2:]), strides, dilation, pad, image.dim[1] // filters.dim[1])

    def compute(self, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute the results on the host's arrays."""
        (one, other), (out,) = operands, outputs
        compute: Any = {"conv_fprop": correlate, "conv_dgrad": spread, "conv_wgrad": weight_gradient}[self.method]
        inputs = (other, one) if self.method == "conv_wgrad" else (one, other)
        result = np.empty(out.shape, out.dtype)
        compute(Run(device(np), True), self.geometry(), *map(np.ascontiguousarray, inputs), result)
        out[...] = result


class Attention:
    """Attention, or its gradients from given statistics; computed in float64."""

    def __init__(self, method: str, named: dict[str, Tensor | None], scale: float, outputs: int) -> None:
        assert type(scale) is float  # the frontend takes other types for tensors
        self.method, self.scale = method, scale
        self.named = {name: each for name, each in named.items() if each is not None}
        self.operands, self.outputs = list(self.named.values()), [Tensor() for _ in range(outputs)]

    def check(self) -> None:
        """Check each tensor, and raise the errors of the frontend."""
        q, k, v = (self.named[name] for name in "qkv")
        (batch, heads, rows, size), columns = q.dim, k.dim[2]
        out = [batch, heads, rows, v.dim[3]]
        stats = [batch, heads, rows, 1]
        expected = {"q": q.dim, "k": [batch, heads, columns, size], "v": [batch, heads, columns, v.dim[3]]}
        expected |= {"o": out, "dO": out, "stats": stats}
        outputs = [q.dim, k.dim, v.dim] if self.method == "sdpa_backward" else [out, stats]
        for name, each in self.named.items():
            if name == "bias":
                assert each.dim[2:] == [rows, columns]
                assert each.dim[:2] in ([1, 1], [batch, heads], [1, heads], [batch, 1])
            else:
                assert each.dim == expected[name], name
        for output, dims in zip(self.outputs, outputs, strict=False):
            assert output.dim == dims
        for each in (*self.operands, *self.outputs):
            if each.dim == stats:
                assert each.data_type == "float32"
                assert each.stride == [heads * rows, rows, 1, 1]
            elif each.stride[3] != 1 or each.data_type not in ("float16", "bfloat16"):
                raise cudnnGraphNotSupportedError(f"{each.data_type} of strides {each.stride}")
        if size % 8 or v.dim[3] % 8 or max(size, v.dim[3]) > 128:
            raise cudnnGraphNotSupportedError("hidden_dim should be multiple of 8, at most 128")
        if self.method == "sdpa_backward" and rows == columns == 1:
            raise cudnnGraphNotSupportedError("s_q = s_kv = 1 is not supported.")

    def compute(self, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute the results on the host's arrays."""
        for each in (*operands, *outputs):
            assert each.shape[3] == 1 or not any(number % 16 for number in (each.ctypes.data, *each.strides[:3]))
        arrays = {name: array.astype("float64") for name, array in zip(self.named, operands, strict=True)}
        q, k, v = (arrays[name] for name in "qkv")
        scores = np.einsum("bhqd,bhkd->bhqk", q, k) * self.scale + arrays.get("bias", 0.0)
        if self.method == "sdpa":
            stats = np.log(np.exp(scores).sum(axis=3, keepdims=True))
            results = [np.einsum("bhqk,bhkd->bhqd", np.exp(scores - stats), v), stats]
        else:
            weights, head = np.exp(scores - arrays["stats"]), arrays["dO"]
            product_sum = (head * arrays["o"]).sum(axis=3, keepdims=True)
            scores_gradient = weights * (np.einsum("bhqd,bhkd->bhqk", head, v) - product_sum) * self.scale
            pairs = [("bhqk,bhkd->bhqd", scores_gradient, k), ("bhqk,bhqd->bhkd", scores_gradient, q)]
            results = [np.einsum(*each) for each in [*pairs, ("bhqk,bhqd->bhkd", weights, head)]]
        for out, result in zip(outputs, results, strict=False):
            out[...] = result
