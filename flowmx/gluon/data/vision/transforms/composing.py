"""Transforms of several transforms, and the bases of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.data import rng
from flowmx.engine import State
from flowmx.gluon.block import Block, HybridBlock
from flowmx.gluon.nn import HybridSequential, Sequential
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


class Compose(Sequential):
    """Several changes, one after the other.

    Args:
        transforms: the changes.

    Example:
        >>> change = transforms.Compose([transforms.Resize(300), transforms.CenterCrop(256), transforms.ToTensor()])
        >>> change(mx.nd.zeros((224, 224, 3), dtype="uint8")).shape
        (3, 256, 256)
    """

    def __init__(self, transforms: Iterable[Block]) -> None:
        super().__init__()
        self.add(*transforms)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Nothing: a graph would be compiled for each size that images have."""

    def forward(self, x: Any, *args: Any) -> Any:
        """The changed image."""
        for change in self._children.values():
            if isinstance(change, OnHost) and (isinstance(x, np.ndarray) or _is_ready(x)) and not _is_hooked(change):
                x = change.host(x._host() if isinstance(x, NDArray) else x)
            else:
                x = change(as_array(x))
        return as_array(x)


def _is_ready(x: Any) -> bool:
    """True where an array's content is computed, in host memory, and not recorded for a gradient."""
    if not isinstance(x, NDArray) or x.context.device_type == "gpu" or x._entry is not None:
        return False
    storage = x.variable
    done = storage.writer is None or storage.writer.state == State.DONE
    return done and storage.array is not None and storage.failure is None


def _is_hooked(block: Block) -> bool:
    return bool(block._forward_hooks or block._forward_pre_hooks)


def as_array(x: Any) -> Any:
    """An array of memory of its own."""
    if not isinstance(x, np.ndarray):
        return x
    return nd.from_numpy(x if x.base is None and x.flags.c_contiguous else np.array(x, order="C"))


class HybridCompose(HybridSequential):
    """Several changes, one after the other, that may be compiled together by :meth:`hybridize`: for images of one size.

    Args:
        transforms: the changes.

    Raises:
        TypeError: one is no HybridBlock.
    """

    def __init__(self, transforms: Iterable[HybridBlock]) -> None:
        super().__init__()
        self.add(*transforms)


class RandomApply(Sequential):
    """A change that is made with a probability.

    Args:
        transforms: the change; a list is composed.
        p: the probability.
    """

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        super().__init__()
        self.transforms = Compose(transforms) if isinstance(transforms, (list, tuple)) else transforms
        self.p = p

    def forward(self, x: Any, *args: Any) -> Any:
        return self.transforms(x) if rng.current().random() < self.p else x


class HybridRandomApply(HybridSequential):
    """A change that is made with a probability; composed with symbols it is made always, and taken with it.

    Args:
        transforms: the change, a HybridBlock; it must keep the shape.
        p: the probability.
    """

    def __init__(self, transforms: HybridBlock, p: float = 0.5) -> None:
        super().__init__()
        self.transforms = transforms
        self.p = p

    def hybrid_forward(self, F: Any, x: Any, *args: Any) -> Any:
        if F is not sym:
            return self.transforms(x) if rng.current().random() < self.p else x
        drawn = F.broadcast_add(F.zeros_like(F.cast(x, dtype="float32")), F.random.uniform(0, 1, shape=(1,)))
        return F.where(drawn < self.p, self.transforms(x), x)
