"""`MixUp` and `CutMix`: batches of mixed images with mixed labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.errors import ArgumentError, ArgumentKindError
from flowmx.gluon.block import Block
from flowmx.ndarray import NDArray

__all__ = ["CutMix", "MixUp"]


class _Mix(Block):
    """Mixes each sample of a batch with the one before it; see the subclasses."""

    def __init__(self, num_classes: int | None, alpha: float, p: float) -> None:
        super().__init__()
        name = type(self).__name__
        if num_classes is not None and num_classes < 1:
            raise ArgumentError(f"{name}: num_classes is {num_classes}, expected at least 1, or None")
        if not alpha > 0:
            raise ArgumentError(f"{name}: alpha is {alpha!r}, expected a positive number")
        if not 0 <= p <= 1:
            raise ArgumentError(f"{name}: p is {p!r}, expected a probability from 0 to 1")
        self._num_classes, self._alpha, self._p = num_classes, alpha, p

    if TYPE_CHECKING:

        def __call__(self, x: NDArray, labels: NDArray, /) -> tuple[NDArray, NDArray]: ...

    def forward(self, x: Any, *args: Any) -> tuple[NDArray, NDArray]:
        """Enqueue the mixture of a batch and its labels.

        Args:
            x: the images, floating point: (samples, channels, height, width).
            *args: the labels: classes (samples,), or probabilities (samples, classes).

        Returns:
            The mixed images, of the same shape and dtype; the probabilities of the classes, float32.
        """
        with autograd.pause():
            labels = self._probabilities(x, *args)
            if rng.current().random() >= self._p:
                return x, labels
            return self.mix(x, labels, rng.current().betavariate(self._alpha, self._alpha))

    def mix(self, x: NDArray, labels: NDArray, share: float) -> tuple[NDArray, NDArray]:
        """Return images and probabilities, with about ``share`` of each sample and the rest of the one before it."""
        raise NotImplementedError

    def _probabilities(self, x: Any, labels: Any = None) -> NDArray:
        name = type(self).__name__
        for what, array in (("images", x), ("labels", labels)):
            if not isinstance(array, NDArray):
                raise ArgumentKindError(
                    f"{name}: the {what} are {type(array).__name__}, expected an NDArray: {name.lower()}(data, label)"
                )
        if x.element_type.kind in "iu":
            raise ArgumentKindError(f"{name}: the images are {x.element_type}, expected floating point: use ToTensor()")
        if labels.shape[0] != x.shape[0] or labels.ndim > 2:
            raise ArgumentError(
                f"{name}: the labels have shape {labels.shape} and the images {x.shape}, expected (samples,) or "
                "(samples, classes)"
            )
        if labels.ndim == 2 and labels.shape[1] > 1:
            return nd.cast(labels, dtype="float32")
        if self._num_classes is None:
            raise ArgumentError(
                f"{name}: the labels are classes, of shape {labels.shape}, so num_classes is needed: {name}(10)"
            )
        one_hot: NDArray = nd.one_hot(labels.reshape((-1,)), depth=self._num_classes, dtype="float32")
        return one_hot


def _shift_by_one(batch: NDArray) -> NDArray:
    """Return a batch whose samples have moved by one; the last one is the first."""
    size = batch.shape[0]
    moved: NDArray = nd.concat(batch[size - 1 :], batch[: size - 1], dim=0) if size > 1 else batch
    return moved


def _weighted_sum(first: NDArray, second: NDArray, share: float) -> NDArray:
    mixed: NDArray = first * share + second * (1 - share)
    return mixed


class MixUp(_Mix):
    """Average each image of a batch with another one, and their labels, by the same random weight.

    Each sample is mixed with the one before it in the batch, as in torchvision, so shuffle the data. The weight comes
    from the generator that ``mx.random.seed`` seeds. Calls only enqueue, on the device of the batch. Train with a loss
    that takes probabilities, ``SoftmaxCrossEntropyLoss(sparse_label=False)``.

    Zhang et al., mixup: Beyond Empirical Risk Minimization, arXiv:1710.09412.

    Args:
        num_classes: the number of classes; None if the labels are probabilities.
        alpha: both parameters of the Beta distribution of the weight. Small ones keep most images nearly unchanged.
        p: the probability that a batch is mixed.

    Raises:
        ValueError: an argument is out of its range; in a call, shapes do not fit, or ``num_classes`` is needed.
        TypeError: in a call, an argument is no array, or the images are integers.

    Example:
        >>> mixup = transforms.MixUp(num_classes=10, alpha=0.2)
        >>> for data, label in loader:
        ...     data, label = mixup(data, label)
    """

    def __init__(self, num_classes: int | None = None, alpha: float = 1.0, p: float = 1.0) -> None:
        super().__init__(num_classes, alpha, p)

    def mix(self, x: NDArray, labels: NDArray, share: float) -> tuple[NDArray, NDArray]:
        return _weighted_sum(x, _shift_by_one(x), share), _weighted_sum(labels, _shift_by_one(labels), share)


class CutMix(_Mix):
    """Replace a random rectangle of each image of a batch by that of another image; labels are mixed by area.

    The other image is the one before it in the batch, as in torchvision, so shuffle the data. The rectangle comes from
    the generator that ``mx.random.seed`` seeds. Calls only enqueue, on the device of the batch. Train with a loss that
    takes probabilities, ``SoftmaxCrossEntropyLoss(sparse_label=False)``.

    Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features, arXiv:1905.04899.

    Args:
        num_classes: the number of classes; None if the labels are probabilities.
        alpha: both parameters of the Beta distribution of the area that stays.
        p: the probability that a batch is mixed.
        layout: ``"NCHW"`` or ``"NHWC"``, the axes of the images.

    Raises:
        ValueError: an argument is out of its range; in a call, shapes do not fit, or ``num_classes`` is needed.
        TypeError: in a call, an argument is no array, or the images are integers.

    Example:
        >>> data, label = transforms.CutMix(num_classes=10)(data, label)
    """

    def __init__(
        self, num_classes: int | None = None, alpha: float = 1.0, p: float = 1.0, layout: str = "NCHW"
    ) -> None:
        super().__init__(num_classes, alpha, p)
        if layout not in ("NCHW", "NHWC"):
            raise ArgumentError(f"CutMix: layout is {layout!r}, expected 'NCHW' or 'NHWC'")
        self._row_axis = layout.index("H")

    def mix(self, x: NDArray, labels: NDArray, share: float) -> tuple[NDArray, NDArray]:
        if x.ndim != 4:
            raise ArgumentError(f"CutMix: the images have shape {x.shape}, expected (samples, channels, height, width)")
        height, width = x.shape[self._row_axis : self._row_axis + 2]
        (top, bottom), (left, right) = (_interval(length, share) for length in (height, width))
        area = (slice(None),) * self._row_axis + (slice(top, bottom), slice(left, right))
        mixed = x.copy()
        if bottom > top and right > left:
            mixed[area] = _shift_by_one(x)[area]
        remaining = 1 - (bottom - top) * (right - left) / (height * width)
        return mixed, _weighted_sum(labels, _shift_by_one(labels), remaining)


def _interval(length: int, share: float) -> tuple[int, int]:
    """Draw the rows or columns of a rectangle."""
    centre, half = rng.current().randrange(length), int(0.5 * math.sqrt(1 - share) * length)
    return max(0, centre - half), min(length, centre + half)
