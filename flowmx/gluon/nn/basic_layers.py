"""Containers, and layers other than convolutions and normalization."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import numpy as np

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.engine import origin
from flowmx.gluon.base_block import A, Block
from flowmx.gluon.hybrid import HybridBlock, Layer
from flowmx.gluon.nn.activations import Activation
from flowmx.gluon.products import activated_product, fully_connected
from flowmx.gluon.scope import BlockOptions
from flowmx.initializer import InitializerLike
from flowmx.ndarray import NDArray, core
from flowmx.ndarray.functions import apply
from flowmx.ops.registry.dtypes import FLOAT32, DTypeLike
from flowmx.ops.registry.tensors import Functions, Tensor
from flowmx.ops.sparse.shapes import SparseShape

__all__ = ["Dense", "Dropout", "Embedding", "Flatten", "HybridLambda", "HybridSequential", "Lambda", "Sequential"]

_FUSED_DTYPES = (FLOAT32, np.dtype(np.float64))
_MAX_FUSED = 1 << 14
"""The maximum number of elements in a dense layer's result for fusing the activation into the operator."""


class _Stack(Block):
    """A chain of children: the output of one is the input of the next."""

    if TYPE_CHECKING:  # nearly all blocks in a chain take and return one array

        def __call__(self, x: A, /) -> A: ...

        def __iter__(self) -> Iterator[Layer]: ...

    else:

        def __iter__(self) -> Iterator[Block]:
            return iter(self._children.values())

    def add(self, *blocks: Block) -> None:
        """Append blocks."""
        for block in blocks:
            self.register_child(block)

    def _apply_all(self, x: Any, args: tuple[Any, ...]) -> Any:
        if args:
            raise TypeError(f"{type(self).__name__} {self.name!r}: {1 + len(args)} inputs were given, expected one")
        for block in self._children.values():
            x = block(x)
        return x

    def _repr_items(self) -> Iterator[tuple[str, Block]]:
        return iter(self._children.items())

    @overload
    def __getitem__(self, key: int) -> Layer: ...

    @overload
    def __getitem__(self, key: slice) -> Self: ...

    def __getitem__(self, key: int | slice) -> Any:
        """Return a block, or for a slice a container of blocks that shares their parameters."""
        count = len(self._children)
        if isinstance(key, int) and not -count <= key < count:
            raise IndexError(
                f"{type(self).__name__}: the index is {key}, expected less than the number of blocks, {count}"
            )
        blocks = list(self._children.values())[key]
        if isinstance(blocks, Block):
            return blocks
        container = type(self)(prefix=self._prefix)
        with container.name_scope():
            container.add(*blocks)
        return container

    def __len__(self) -> int:
        return len(self._children)


class Sequential(_Stack):
    """A chain of blocks: the output of one is the input of the next.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.

    Example:
        >>> net = nn.Sequential()
        >>> net.add(nn.Dense(10, activation="relu"), nn.Dense(20))
    """

    def forward(self, x: Any, *args: Any) -> Any:
        """Return the last block's output."""
        return self._apply_all(x, args)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridize the children, one by one."""
        if self._children and all(isinstance(child, HybridBlock) for child in self._children.values()):
            warnings.warn(
                f"hybridize: all children of the Sequential {self.name!r} are HybridBlocks: HybridSequential compiles "
                "them together, which is faster",
                stacklevel=2,
            )
        super().hybridize(active, **kwargs)


class HybridSequential(_Stack, HybridBlock):
    """A chain of HybridBlocks, compiled into one graph.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def hybrid_forward(self, F: Functions, x: Tensor, *args: Any) -> Any:
        return self._apply_all(x, args)


class Dense(Layer):
    """``activation(x · weightᵀ + bias)``.

    Args:
        units: the number of outputs.
        activation: the name of an activation, or None.
        use_bias: add a bias.
        flatten: collapse all axes of the input except the first. If False, transform only the last axis.
        dtype: the element type of the parameters.
        weight_initializer: the initializer of the weight.
        bias_initializer: the initializer of the bias.
        in_units: the number of inputs (default: inferred at the first call).
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, units: int, activation: str | None = None, use_bias: bool = True, flatten: bool = True,
        dtype: DTypeLike = "float32", weight_initializer: InitializerLike = None,
        bias_initializer: InitializerLike = "zeros", in_units: int = 0,
        **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._units, self._flatten = units, flatten
        with self.name_scope():
            self.weight = self.params.get(
                "weight", shape=(units, in_units), init=weight_initializer, dtype=dtype, allow_deferred_init=True
            )
            self.bias = self.params.get(
                "bias", shape=(units,), init=bias_initializer, dtype=dtype, allow_deferred_init=True
            ) if use_bias else None  # fmt: skip
            self.act = None if activation is None else Activation(activation, prefix=f"{activation}_")

    def hybrid_forward(self, F: Functions, x: Tensor, weight: Any, bias: Any = None) -> Any:
        if self.act is not None and isinstance(x, NDArray) and self._can_fuse_activation(x, weight):
            inputs = (x, weight) if bias is None else (x, weight, bias)
            return apply(activated_product(self._units, bias is None, self._flatten, self.act._act_type), inputs)
        out = fully_connected(F, x, weight, bias, self._units, self._flatten, "fwd")
        return out if self.act is None else self.act(out)

    def _can_fuse_activation(self, x: NDArray, weight: NDArray) -> bool:
        """Return whether to fuse product and activation: the result is small, and no hook needs the product."""
        act, shape = self.act, x.dims
        return (
            type(act) is Activation
            and Activation.hybrid_forward is _ACTIVATION
            and "hybrid_forward" not in act.__dict__
            and not (act._forward_hooks or act._forward_pre_hooks or act._active or origin.layer_name_users)
            and core.casting is None
            and x.element_type in _FUSED_DTYPES
            and weight.element_type is x.element_type
            and len(shape) == 2
            and weight.dims[1:] == shape[1:]  # FullyConnected raises an error otherwise
            and 0 < shape[0] * self._units <= _MAX_FUSED
            and not isinstance(shape, SparseShape)
            and not isinstance(weight.dims, SparseShape)
        )

    def __repr__(self) -> str:
        units, inputs = self.weight.shape or (self._units, 0)
        return f"{type(self).__name__}({inputs or None} -> {units}, {self.act or 'linear'})"


_ACTIVATION = Activation.hybrid_forward


class Dropout(Layer):
    """Dropout: training zeroes random elements with probability ``rate``, and scales the others by 1/(1 - rate).

    Args:
        rate: the probability of a zero, from 0 to 1.
        axes: axes that share one random mask.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, rate: float, axes: tuple[int, ...] = (), **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        self._rate, self._axes = rate, axes

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        if self._rate > 0:
            return F.Dropout(x, p=self._rate, axes=self._axes, name="fwd", cudnn_off=False)
        return F.identity(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p = {self._rate}, axes={self._axes})"


class Embedding(Layer):
    """Rows of a table, selected by index.

    Args:
        input_dim: the number of rows.
        output_dim: the length of a row.
        dtype: the element type of the table.
        weight_initializer: the initializer of the table.
        sparse_grad: use a row_sparse gradient, with only the rows of the batch.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, input_dim: int, output_dim: int, dtype: DTypeLike = "float32", weight_initializer: InitializerLike = None,
        sparse_grad: bool = False, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._kwargs = {"input_dim": input_dim, "output_dim": output_dim, "dtype": dtype, "sparse_grad": sparse_grad}
        self.weight = self.params.get(
            "weight", shape=(input_dim, output_dim), init=weight_initializer, dtype=dtype, allow_deferred_init=True,
            grad_stype="row_sparse" if sparse_grad else "default",
        )  # fmt: skip

    def hybrid_forward(self, F: Functions, x: Tensor, weight: Tensor) -> Tensor:
        return F.Embedding(x, weight, name="fwd", **self._kwargs)

    def __repr__(self) -> str:
        return "{}({input_dim} -> {output_dim}, {dtype})".format(type(self).__name__, **self._kwargs)


class Flatten(Layer):
    """Collapses all axes except the first."""

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.flatten(x)

    def __repr__(self) -> str:
        return type(self).__name__


class Lambda(Block):
    """A function of arrays as a block.

    Args:
        function: the function, or the name of a function of ``mx.nd``.
        prefix: as for ``Block``.

    Raises:
        ValueError: the function's name is unknown, or it is not callable.
    """

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None) -> None:
        super().__init__(prefix=prefix)
        self._func_impl = _find_function(nd, function)

    def forward(self, *args: Any) -> Any:
        """Call the function."""
        return self._func_impl(*args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_impl.__name__})"


class HybridLambda(HybridBlock):
    """A function of arrays or symbols as a block.

    Args:
        function: called as ``function(F, *inputs)``, or the name of a function of both ``mx.nd`` and ``mx.sym``.
        prefix: as for ``Block``.

    Raises:
        ValueError: the function's name is unknown, or it is not callable.
    """

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None) -> None:
        super().__init__(prefix=prefix)
        self._function = function
        for module in (nd, sym):
            _find_function(module, function)

    def hybrid_forward(self, F: Functions, x: Tensor, *args: Any) -> Any:
        if isinstance(self._function, str):
            return getattr(F, self._function)(x, *args)
        return self._function(F, x, *args)

    def __repr__(self) -> str:
        label = self._function if isinstance(self._function, str) else self._function.__name__
        return f"{type(self).__name__}({label})"


def _find_function(module: Any, function: str | Callable[..., Any]) -> Callable[..., Any]:
    result = getattr(module, function, None) if isinstance(function, str) else function
    if not callable(result):
        raise ValueError(f"Lambda: {function!r} is neither a function nor the name of one in {module.__name__}")
    return result
