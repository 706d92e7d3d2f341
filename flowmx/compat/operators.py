"""``NumpyOp`` and ``NDArrayOp`` of ``mxnet.operator``: how operators were written before `CustomOp`."""

from __future__ import annotations

import itertools
import warnings
from typing import Any, ClassVar

import numpy as np

from flowmx import operator
from flowmx.operator import CustomOp, CustomOpProp
from flowmx.symbol import Symbol, functions

__all__ = ["NDArrayOp", "NumpyOp", "PythonOp"]

_numbers = itertools.count()


class PythonOp:
    """Base of operators that are written as one object; calling it makes a symbol.

    A subclass overrides ``forward`` and ``backward``, and what it takes and gives.

    Args:
        need_top_grad: False for an output layer, whose gradient does not depend on those of its outputs.
    """

    _as_numpy: ClassVar[bool] = False
    """True where its functions take NumPy arrays, False where they take NDArrays."""

    def __init__(self, need_top_grad: bool = True) -> None:
        self.info_ = None
        self.need_top_grad_ = need_top_grad
        self._registered: str | None = None
        warnings.warn(f"{type(self).__name__}: derive operators from mx.operator.CustomOp now", stacklevel=3)

    def __call__(self, *args: Any, **kwargs: Any) -> Symbol:
        """A symbol of the operator, on the symbols of its arguments."""
        return self.get_symbol(*args, **kwargs)

    def get_symbol(self, *args: Any, **kwargs: Any) -> Symbol:
        """A symbol of the operator, on the symbols of its arguments.

        Raises:
            NotImplementedError: the class is PythonOp itself.
        """
        if type(self).get_symbol is PythonOp.get_symbol and not isinstance(self, (NumpyOp, NDArrayOp)):
            raise NotImplementedError("derive operators from NumpyOp or NDArrayOp")
        if self._registered is None:
            self._registered = f"_python_op_{next(_numbers)}"
            operator.register(self._registered)(lambda **_: _Prop(self))
        return functions.op("Custom", *args, op_type=self._registered, **kwargs)

    def forward(self, in_data: list[Any], out_data: list[Any]) -> None:
        """Write the outputs."""
        out_data[0][:] = in_data[0]

    def backward(self, out_grad: list[Any], in_data: list[Any], out_data: list[Any], in_grad: list[Any]) -> None:
        """Write the gradients of the arguments."""
        in_grad[0][:] = 1.0

    def infer_shape(self, in_shape: list[Any]) -> Any:
        """The shapes of arguments and outputs."""
        return in_shape, [in_shape[0]]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def list_arguments(self) -> list[str]:
        """Names of the arguments."""
        return ["data"]

    def need_top_grad(self) -> bool:
        """True where ``backward`` needs the gradients of the outputs."""
        return self.need_top_grad_

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Select the numbered arrays that ``backward`` needs."""
        return [*(out_grad if self.need_top_grad() else []), *in_data, *out_data]


class NumpyOp(PythonOp):
    """An operator whose functions take NumPy's arrays."""

    _as_numpy = True


class NDArrayOp(PythonOp):
    """An operator whose functions take arrays."""


class _Prop(CustomOpProp):
    """Declares the arguments, outputs and shapes of such an operator."""

    def __init__(self, op: PythonOp) -> None:
        super().__init__(op.need_top_grad())
        self._op = op

    def list_arguments(self) -> list[str]:
        return self._op.list_arguments()

    def list_outputs(self) -> list[str]:
        return self._op.list_outputs()

    def infer_shape(self, in_shape: list[Any]) -> Any:
        arguments, outputs = self._op.infer_shape(in_shape)[:2]
        return arguments, outputs, []

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        return self._op.declare_backward_dependency(out_grad, in_data, out_data)

    def create_operator(self, ctx: Any, in_shapes: list[list[int]], in_dtypes: list[Any]) -> CustomOp:
        return _Op(self._op)


class _Op(CustomOp):
    """Calls the object's functions, with its kind of arrays."""

    def __init__(self, op: PythonOp) -> None:
        self._op = op

    def forward(self, is_train: bool, req: list[str], in_data: Any, out_data: Any, aux: Any) -> None:
        self._call(self._op.forward, req, out_data, in_data=in_data, out_data=out_data)

    def backward(self, req: list[str], out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        given = {"out_grad": out_grad, "in_data": in_data, "out_data": out_data, "in_grad": in_grad}
        self._call(self._op.backward, req, in_grad, **given)

    def _call(self, function: Any, req: list[str], written: list[Any], **given: list[Any]) -> None:
        """Call a function with arrays that it may write, and store what it wrote as ``req`` says."""
        name = next(key for key, arrays in given.items() if arrays is written)
        if self._op._as_numpy:
            given = {key: [None if each is None else each.asnumpy() for each in some] for key, some in given.items()}
            given[name] = [np.array(each) for each in given[name]]  # asnumpy's may be read-only
        else:
            given[name] = [each.copy() for each in written]
        function(**given)
        for request, target, found in zip(req, written, given[name], strict=True):
            self.assign(target, request, found)
