"""Base classes of transforms that can run immediately on NumPy arrays, and of random transforms."""

from __future__ import annotations

from typing import Any, TypeGuard, cast

import numpy as np

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.devices.arrays import Array
from flowmx.engine import State
from flowmx.gluon.block import Block
from flowmx.gluon.hybrid import Layer
from flowmx.ndarray import NDArray
from flowmx.ops.registry.tensors import Functions, Tensor


class HostTransform:
    """Mixin for blocks that can transform a NumPy array immediately, so that :class:`Compose` bypasses the engine."""

    def host(self, image: Array) -> Array:
        """Return the transformed array: a view, or a new array."""
        raise NotImplementedError


class RandomTransform(Layer):
    """Base class of random transforms: :meth:`draw` transforms an array, :meth:`operator` a symbol."""

    def hybrid_forward(self, F: Functions, x: Tensor, **kwargs: object) -> Tensor:
        return self.operator(F, x) if F is sym else self.draw(cast("NDArray", x))

    def draw(self, x: NDArray) -> NDArray:
        """Transform an image with random numbers from the augmentations' generator."""
        raise NotImplementedError

    def operator(self, F: Functions, x: Tensor) -> Tensor:
        """Return an operator that draws its random numbers when the graph runs."""
        raise NotImplementedError


def can_run_on_host(transform: Block, x: Any) -> TypeGuard[HostTransform]:
    """Return whether a transform can run on the host now.

    The array must be computed and not recorded by autograd, and the transform must have no hooks or replaced methods.
    """
    if not isinstance(transform, HostTransform) or transform._forward_hooks or transform._forward_pre_hooks:
        return False
    if not all(_is_builtin(transform, name) for name in ("__call__", "forward", "hybrid_forward")):
        return False
    if not isinstance(x, NDArray) or x.context.device_type == "gpu" or x.tape_entry is not None:
        return isinstance(x, np.ndarray)
    storage = x.variable
    is_computed = storage.writer is None or storage.writer.state == State.DONE
    return is_computed and storage.array is not None and storage.failure is None


def _is_builtin(transform: Any, name: str) -> bool:
    """Return whether a transform's method is flowmx's; a user's method may compute something else."""
    method = getattr(transform, name, None)
    return method is None or getattr(method, "__module__", "").startswith("flowmx.")


def as_array(x: Any) -> Any:
    """Convert a NumPy array to an NDArray, copying it if it is a view; return other values unchanged."""
    if not isinstance(x, np.ndarray):
        return x
    return nd.from_numpy(x if x.base is None and x.flags.c_contiguous else np.array(x, order="C"))
