"""``NumpyOp`` and ``NDArrayOp`` of ``mxnet.operator``, the predecessors of `CustomOp`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx import operator
from flowmx.operator import CustomOp, CustomOpProp
from flowmx.symbol import Symbol, functions

__all__ = ["NDArrayOp", "NumpyOp", "PythonOp"]

_numbers = itertools.count()


class PythonOp:
    """Base class of operators that are written as one object. Calling the object returns a symbol.

    A subclass overrides ``forward`` and ``backward``, and the lists of arguments and outputs.

    Args:
        need_top_grad: False for an output layer, whose gradient does not depend on the gradients of its outputs.
    """

    _as_numpy: ClassVar[bool] = False
    """Whether ``forward`` and ``backward`` receive NumPy arrays instead of NDArrays."""

    def __init__(self, need_top_grad: bool = True) -> None:
        self.info_ = None
        self.need_top_grad_ = need_top_grad
        self._op_type: str | None = None
        warnings.warn(f"{type(self).__name__} is deprecated: derive operators from mx.operator.CustomOp", stacklevel=3)

    def __call__(self, *args: object, **kwargs: object) -> Symbol:
        """Return a symbol of the operator, applied to symbols."""
        return self.get_symbol(*args, **kwargs)

    def get_symbol(self, *args: object, **kwargs: object) -> Symbol:
        """Return a symbol of the operator, applied to symbols.

        Raises:
            NotImplementedError: the class is PythonOp itself.
        """
        if type(self).get_symbol is PythonOp.get_symbol and not isinstance(self, (NumpyOp, NDArrayOp)):
            raise NotImplementedError("derive operators from NumpyOp or NDArrayOp")
        if self._op_type is None:
            self._op_type = f"_python_op_{next(_numbers)}"
            operator.register(self._op_type)(lambda **_: _Prop(self))
        return functions.op("Custom", *args, op_type=self._op_type, **kwargs)

    def forward(self, in_data: list[Any], out_data: list[Any]) -> None:
        """Write the outputs."""
        out_data[0][:] = in_data[0]

    def backward(
        self, out_grad: Sequence[object], in_data: Sequence[object], out_data: Sequence[object], in_grad: list[Any]
    ) -> None:
        """Write the gradients of the arguments."""
        in_grad[0][:] = 1.0

    def infer_shape(self, in_shape: Sequence[object]) -> Any:
        """Return the shapes of arguments and outputs."""
        return in_shape, [in_shape[0]]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return ["output"]

    def list_arguments(self) -> list[str]:
        """Return the names of the arguments."""
        return ["data"]

    def need_top_grad(self) -> bool:
        """Return whether ``backward`` needs the gradients of the outputs."""
        return self.need_top_grad_

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Select the indices of the arrays that ``backward`` needs."""
        return [*(out_grad if self.need_top_grad() else []), *in_data, *out_data]


class NumpyOp(PythonOp):
    """An operator whose functions receive NumPy arrays."""

    _as_numpy = True


class NDArrayOp(PythonOp):
    """An operator whose functions receive NDArrays."""


class _Prop(CustomOpProp):
    """Declares the arguments, outputs and shapes of a `PythonOp`."""

    def __init__(self, op: PythonOp) -> None:
        super().__init__(op.need_top_grad())
        self._op = op

    def list_arguments(self) -> list[str]:
        return self._op.list_arguments()

    def list_outputs(self) -> list[str]:
        return self._op.list_outputs()

    def infer_shape(self, in_shape: Sequence[object]) -> Any:
        arguments, outputs = self._op.infer_shape(in_shape)[:2]
        return arguments, outputs, []

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        return self._op.declare_backward_dependency(out_grad, in_data, out_data)

    def create_operator(self, ctx: object, in_shapes: list[list[int]], in_dtypes: Sequence[object]) -> CustomOp:
        return _Op(self._op)


class _Op(CustomOp):
    """Calls ``forward`` and ``backward`` of a `PythonOp` with NumPy arrays or NDArrays."""

    def __init__(self, op: PythonOp) -> None:
        self._op = op

    def forward(self, is_train: bool, req: list[str], in_data: Any, out_data: Any, aux: Any) -> None:
        self._call(self._op.forward, req, out_data, in_data=in_data, out_data=out_data)

    def backward(self, req: list[str], out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        arrays = {"out_grad": out_grad, "in_data": in_data, "out_data": out_data, "in_grad": in_grad}
        self._call(self._op.backward, req, in_grad, **arrays)

    def _call(self, function: Any, req: list[str], targets: list[Any], **arguments: list[Any]) -> None:
        """Call a function with writable arrays, and store the results in the targets as ``req`` requests."""
        name = next(key for key, arrays in arguments.items() if arrays is targets)
        if self._op._as_numpy:
            arguments = {
                key: [None if array is None else array.asnumpy() for array in arrays]
                for key, arrays in arguments.items()
            }
            arguments[name] = [np.array(array) for array in arguments[name]]  # asnumpy may return read-only arrays
        else:
            arguments[name] = [array.copy() for array in targets]
        function(**arguments)
        for request, target, result in zip(req, targets, arguments[name], strict=True):
            self.assign(target, request, result)
