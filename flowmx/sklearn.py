"""``mx.sklearn``: scikit-learn estimators that train Gluon networks.

They work with pipelines, parameter searches, cross-validation, ``clone``, pickles and joblib. ``fit`` blocks, as in
scikit-learn: in a coroutine, use ``await asyncio.to_thread(model.fit, X, y)``.

Example:
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = mx.sklearn.NetworkClassifier(hidden_layer_sizes=(64,), max_iter=20, random_state=0)
    >>> model.fit(X / 16, y).score(X / 16, y) > 0.98
    True
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from flowmx import autograd, gluon, initializer, random
from flowmx import ndarray as nd
from flowmx.checkpoint import generators
from flowmx.devices import Context, current_context
from flowmx.gluon import nn
from flowmx.ops.registry.operators import Array

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import assert_all_finite, check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("mx.sklearn needs scikit-learn 1.6 or newer: pip install 'scikit-learn>=1.6'") from error

__all__ = ["NetworkClassifier", "NetworkRegressor"]

E = TypeVar("E", bound="_Network")


class _Network(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base class of both estimators: a network and its training in minibatches."""

    def __init__(
        self, net: gluon.Block | Callable[[int], gluon.Block] | None = None, *,
        hidden_layer_sizes: Sequence[int] | int = (100,), activation: str = "relu", loss: gluon.loss.Loss | None = None,
        optimizer: str = "adam", learning_rate: float = 0.001, optimizer_params: Mapping[str, object] | None = None,
        max_iter: int = 200, batch_size: int = 32, shuffle: bool = True, ctx: Context | None = None,
        random_state: object = None,
    ) -> None:  # fmt: skip
        self.net = net
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.optimizer_params = optimizer_params
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.ctx = ctx
        self.random_state = random_state

    def fit(self: E, X: object, y: object) -> E:
        """Train from scratch for ``max_iter`` epochs.

        Args:
            X: the inputs, (n, features), or (n, ...) if ``net`` is set.
            y: the targets, (n,).

        Raises:
            ValueError: parameters or data are invalid, or the loss is not finite.
        """
        self._check_parameters()
        X = self._validate(X, reset=True)
        targets, width = self._targets(X, y, None)
        self._start(width)
        self._train(X, targets, self.max_iter)
        return self

    def _partial_fit(self: E, X: object, y: object, classes: object) -> E:
        first = not hasattr(self, "net_")
        if first:
            self._check_parameters()
        X = self._validate(X, reset=first)
        targets, width = self._targets(X, y, classes, first)
        if first:
            self._start(width)
        self._train(X, targets, 1)
        return self

    # -- the differences between the two ------------------------------------------------------------------------

    def _targets(self, X: Array, y: object, classes: object, first: bool = True) -> tuple[Array, int]:
        """Return the targets for the loss, and the number of outputs of the network."""
        raise NotImplementedError

    def _loss(self) -> gluon.loss.Loss:
        raise NotImplementedError

    # -- training --------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        name = type(self).__name__
        for parameter in ("max_iter", "batch_size"):
            value = getattr(self, parameter)
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name}: {parameter} is {value!r}, expected an integer of at least 1")
        if not self.learning_rate > 0:
            raise ValueError(f"{name}: learning_rate is {self.learning_rate!r}, expected a positive number")
        if self.net is not None and not callable(self.net):
            raise TypeError(
                f"{name}: net is {type(self.net).__name__}, expected a gluon.Block, a function that takes the number "
                "of outputs and returns one, or None for a multilayer perceptron"
            )
        sizes = np.atleast_1d(self.hidden_layer_sizes)
        if self.net is None and any(size != int(size) or size < 1 for size in sizes):
            raise ValueError(f"{name}: hidden_layer_sizes is {self.hidden_layer_sizes!r}, expected sizes of at least 1")

    def _validate(self, X: object, reset: bool) -> Array:
        X = validate_data(self, X, reset=reset, dtype=[np.float32, np.float64], allow_nd=self.net is not None)
        return np.ascontiguousarray(X, dtype=np.float32)

    def _start(self, width: int) -> None:
        """Create and initialize the network."""
        self._random_state: np.random.RandomState = check_random_state(self.random_state)
        self._context = current_context() if self.ctx is None else self.ctx
        self._width = width
        self.loss_curve_: list[float] = []
        self.n_iter_ = 0
        if isinstance(self.net, gluon.Block):
            net = copy.deepcopy(self.net)  # fit must not change the estimator's parameters
        else:
            net = self._perceptron(width) if self.net is None else self.net(width)
        params = net.collect_params().values()
        for param in [param for param in params if param._arrays is None and param._deferred is None]:
            param.initialize(None, self._context, initializer.Xavier())
        net.collect_params().reset_ctx(self._context)
        self.net_ = net
        self._trainer: gluon.Trainer | None = None

    def _perceptron(self, width: int) -> gluon.HybridBlock:
        net = nn.HybridSequential()
        for size in np.atleast_1d(self.hidden_layer_sizes):
            net.add(nn.Dense(int(size), activation=None if self.activation == "identity" else self.activation))
        net.add(nn.Dense(width))
        net.hybridize()
        return net

    def _train(self, X: Array, targets: Array, epochs: int) -> None:
        loss_of = self._loss()
        with _seeded(int(self._random_state.randint(2**31 - 1))), self._context:
            if self._trainer is None:
                self._check_width(self.net_(nd.array(X[:1])))  # infers the shapes of parameters
                options = {"learning_rate": self.learning_rate, **(self.optimizer_params or {})}
                self._trainer = gluon.Trainer(self.net_.collect_params(), self.optimizer, options)
            for _ in range(epochs):
                self._epoch(X, targets, loss_of, self._trainer)

    def _epoch(self, X: Array, targets: Array, loss_of: gluon.loss.Loss, trainer: gluon.Trainer) -> None:
        order = self._random_state.permutation(len(X)) if self.shuffle else np.arange(len(X))
        total: Any = 0
        for start in range(0, len(X), self.batch_size):
            samples = order[start : start + self.batch_size]
            with autograd.record():
                loss = loss_of(self.net_(nd.array(X[samples])), nd.array(targets[samples]))
            loss.backward()
            trainer.step(len(samples))
            total = total + loss.sum()
        mean = float(total.asscalar()) / len(X)
        if not math.isfinite(mean):
            raise ValueError(
                f"{type(self).__name__}: the mean loss of epoch {self.n_iter_ + 1} is {mean}, expected a finite "
                f"number: scale the data, or lower learning_rate, which is {self.learning_rate}"
            )
        self.loss_curve_.append(mean)
        self.n_iter_ += 1

    def _check_width(self, out: object) -> None:
        if not isinstance(out, nd.NDArray) or out.shape != (1, self._width):
            actual = f"shape {out.shape}" if isinstance(out, nd.NDArray) else type(out).__name__
            raise ValueError(
                f"{type(self).__name__}: net returns {actual} for one sample, expected (1, {self._width}): a score for "
                "each class, or a number for each target"
            )

    def _outputs(self, X: object) -> Array:
        """Return the outputs of the network, (n, outputs), float64.

        The last batch is padded to the batch size, so that nothing is recompiled and the result of a sample does not
        depend on the batch.
        """
        check_is_fitted(self, "net_")
        X = self._validate(X, reset=False)
        outputs = []
        with self._context:
            for start in range(0, len(X), self.batch_size):
                batch = X[start : start + self.batch_size]
                padded = np.zeros((self.batch_size, *X.shape[1:]), np.float32)
                padded[: len(batch)] = batch
                outputs.append(self.net_(nd.array(padded))[: len(batch)])
            return np.concatenate([output.asnumpy() for output in outputs]).astype(np.float64)


class NetworkClassifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """A scikit-learn classifier that trains a Gluon network.

    Args:
        net: a block; a function that takes the number of classes and returns a block; or None for a multilayer
            perceptron. Every fit trains a copy, which starts with the block's values if it is initialized. The block
            returns a score for each class, without softmax.
        hidden_layer_sizes: the sizes of the perceptron's hidden layers.
        activation: the activation of the hidden layers: ``"relu"``, ``"tanh"``, ``"sigmoid"``, ... or ``"identity"``.
        loss: a loss of scores (n, classes) and class numbers (n,) with one value per sample (default: cross-entropy).
        optimizer: its name in :mod:`flowmx.optimizer`.
        learning_rate: its step size.
        optimizer_params: its other arguments.
        max_iter: the number of epochs of :meth:`fit`.
        batch_size: the number of samples of a step.
        shuffle: shuffle the samples in every epoch.
        ctx: the device (default: the current one).
        random_state: the source of initial values, dropout and shuffling, as in scikit-learn's estimators. An int makes
            the result reproducible. It is independent of ``mx.random.seed``, whose generator is not changed.

    Attributes:
        classes_: the labels, sorted.
        net_: the trained network.
        loss_curve_: the mean loss of each epoch.
        n_iter_: the number of epochs.
        n_features_in_: the length of the inputs' second axis.
    """

    def partial_fit(self, X: object, y: object, classes: object = None) -> NetworkClassifier:
        """Continue training for one epoch of these samples.

        Args:
            X: the inputs.
            y: their labels.
            classes: all labels of this and later calls, at the first call (default: those in ``y``).

        Raises:
            ValueError: a label is unknown.
        """
        return self._partial_fit(X, y, classes)

    def predict_proba(self, X: object) -> Array:
        """Return the probabilities of the classes, (n, classes), in the order of ``classes_``."""
        scores = self._outputs(X)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: object) -> Array:
        """Return the logarithms of :meth:`predict_proba`."""
        scores = self._outputs(X)
        scores -= scores.max(axis=1, keepdims=True)
        return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))

    def predict(self, X: object) -> Array:
        """Return the most probable label of each sample, (n,)."""
        best = self._outputs(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def _targets(self, X: Array, y: Any, classes: Any, first: bool = True) -> tuple[Array, int]:
        y = _labels(self, X, y)
        if first:
            self.classes_ = np.unique(y if classes is None else classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"NetworkClassifier: classes is {classes!r}, expected those of the first call: {self.classes_}"
            )
        numbers = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = y[self.classes_[numbers] != y].tolist()
        if unknown:
            raise ValueError(
                f"NetworkClassifier: y has the label {unknown[0]!r}, which is not in classes_ {self.classes_}: "
                "pass classes= with all labels to the first partial_fit"
            )
        return numbers.astype(np.float32), len(self.classes_)

    def _loss(self) -> gluon.loss.Loss:
        return gluon.loss.SoftmaxCrossEntropyLoss() if self.loss is None else self.loss


class NetworkRegressor(RegressorMixin, _Network):  # type: ignore[misc]
    """A scikit-learn regressor that trains a Gluon network.

    Args:
        net: as in :class:`NetworkClassifier`; it returns a number for each target.
        hidden_layer_sizes: as in :class:`NetworkClassifier`.
        activation: as in :class:`NetworkClassifier`.
        loss: a loss of predictions and targets (n, targets) with one value per sample (default: half the squared
            error).
        optimizer: as in :class:`NetworkClassifier`.
        learning_rate: as in :class:`NetworkClassifier`.
        optimizer_params: as in :class:`NetworkClassifier`.
        max_iter: as in :class:`NetworkClassifier`.
        batch_size: as in :class:`NetworkClassifier`.
        shuffle: as in :class:`NetworkClassifier`.
        ctx: as in :class:`NetworkClassifier`.
        random_state: as in :class:`NetworkClassifier`.

    Attributes:
        net_: the trained network.
        loss_curve_: the mean loss of each epoch.
        n_iter_: the number of epochs.
        n_features_in_: the length of the inputs' second axis.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: object, y: object) -> NetworkRegressor:
        """Continue training for one epoch of these samples.

        Args:
            X: the inputs.
            y: their targets.

        Raises:
            ValueError: the number of targets differs from that of the first call.
        """
        return self._partial_fit(X, y, None)

    def predict(self, X: object) -> Array:
        """Return the predictions, float64, in the shape of the training targets: (n,) or (n, targets)."""
        outputs = self._outputs(X)
        return outputs[:, 0] if self._is_flat else outputs

    def _targets(self, X: Array, y: object, classes: object, first: bool = True) -> tuple[Array, int]:
        y = _validate_targets(self, X, y)
        targets = y.reshape(len(y), -1).astype(np.float32)
        if not first and targets.shape[1] != self._width:
            raise ValueError(f"NetworkRegressor: y has {targets.shape[1]} targets, expected {self._width} as before")
        self._is_flat = y.ndim == 1
        return targets, targets.shape[1]

    def _loss(self) -> gluon.loss.Loss:
        return gluon.loss.L2Loss() if self.loss is None else self.loss


def _labels(model: object, X: Array, y: object) -> Array:
    _check_not_none(model, y)
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    check_consistent_length(X, y)
    return np.asarray(y)


def _validate_targets(model: object, X: Array, y: Any) -> Array:
    _check_not_none(model, y)
    y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    check_consistent_length(X, y)
    return np.asarray(y)


def _check_not_none(model: object, y: object) -> None:
    if y is None:
        raise ValueError(f"{type(model).__name__} requires y to be passed, but the target y is None")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators of all devices in a block, and restore their states afterwards."""
    before = generators.state([(context, read.wait()) for context, read in generators.push()])
    random.seed(seed)
    try:
        yield
    finally:
        generators.set_flowmx_state(before)
