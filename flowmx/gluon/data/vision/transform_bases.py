"""Bases of the transforms: those that work on NumPy arrays of the host at once, and random ones."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.engine import State
from flowmx.gluon.block import Block, HybridBlock
from flowmx.ndarray import NDArray


class OnHost:
    """Mixed into a block that can do its work at once, on a NumPy array; :class:`Compose` then spares it the engine."""

    def host(self, image: Any) -> Any:
        """The changed array: a view, or a new one."""
        raise NotImplementedError


class RandomTransform(HybridBlock):
    """Base of what is random: by :meth:`drawn` for an array, by :meth:`operator` for a symbol."""

    def hybrid_forward(self, F: Any, x: Any, **kwargs: Any) -> Any:
        return self.operator(F, x) if F is sym else self.drawn(x)

    def drawn(self, x: NDArray) -> NDArray:
        """The image, changed by numbers drawn from the augmentations' generator."""
        raise NotImplementedError

    def operator(self, F: Any, x: Any) -> Any:
        """The operator that draws where the graph runs."""
        raise NotImplementedError


def is_for_host(transform: Block, x: Any) -> TypeGuard[OnHost]:
    """Tell whether a transform can work on the host at once: the content is there, nothing is recorded or hooked."""
    if not isinstance(transform, OnHost) or transform._forward_hooks or transform._forward_pre_hooks:
        return False
    if not isinstance(x, NDArray) or x.context.device_type == "gpu" or x._entry is not None:
        return isinstance(x, np.ndarray)
    storage = x.variable
    done = storage.writer is None or storage.writer.state == State.DONE
    return done and storage.array is not None and storage.failure is None


def as_array(x: Any) -> Any:
    """An array of memory of its own."""
    if not isinstance(x, np.ndarray):
        return x
    return nd.from_numpy(x if x.base is None and x.flags.c_contiguous else np.array(x, order="C"))
