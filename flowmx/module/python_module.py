"""Modules written in Python: ``mx.mod.PythonModule`` and ``mx.mod.PythonLossModule``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx.errors import StateError
from flowmx.io import DataDesc
from flowmx.module.base_module import BaseModule, Binding, InitialParams, OptimizerParams
from flowmx.ndarray import NDArray


class PythonModule(BaseModule):
    """A module without parameters, often a part of a :class:`SequentialModule`.

    A subclass implements ``_compute_output_shapes()``, which returns pairs of name and shape, ``forward``,
    ``get_outputs``, and ``backward`` with ``get_input_grads``.

    Args:
        data_names: names of the inputs.
        label_names: names of the labels; None if the module has no labels.
        output_names: names of the outputs.
        logger: the logger of training.
    """

    def __init__(
        self,
        data_names: Sequence[str],
        label_names: Sequence[str] | None,
        output_names: Sequence[str],
        logger: object = logging,
    ) -> None:
        super().__init__(logger)
        self._data_names = list(data_names)
        self._label_names = None if label_names is None else list(label_names)
        self._output_names = list(output_names)
        self._data_shapes: Any = None
        self._label_shapes: Any = None
        self._output_shapes: Any = None

    @property
    def data_names(self) -> list[str]:
        return self._data_names

    @property
    def output_names(self) -> list[str]:
        return self._output_names

    @property
    def data_shapes(self) -> list[DataDesc]:
        descs: list[DataDesc] = self._data_shapes
        return descs

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        descs: list[DataDesc] | None = self._label_shapes
        return descs

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        shapes: list[tuple[str, tuple[int, ...]]] = self._output_shapes
        return shapes

    def _bind(self, binding: Binding) -> None:
        data_shapes, label_shapes = binding.data_shapes, binding.label_shapes
        if binding.grad_req != "write":
            raise ValueError(
                f"bind: grad_req is {binding.grad_req!r}, expected 'write', the only one that a PythonModule supports"
            )
        _check_shapes("data_shapes", data_shapes, self._data_names)
        if label_shapes is not None:
            _check_shapes("label_shapes", label_shapes, self._label_names or [])
        self._data_shapes, self._label_shapes = data_shapes, label_shapes
        self._output_shapes = self._compute_output_shapes()

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        raise NotImplementedError(f"{type(self).__name__} must implement _compute_output_shapes()")

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        return {}, {}

    def _init_params(self, initializer: object, params: InitialParams) -> None:
        """Mark the parameters as initialized, although the module has no parameters."""
        self.params_initialized = True

    def init_optimizer(
        self,
        kvstore: object = "local",
        optimizer: object = "sgd",
        optimizer_params: OptimizerParams = (),
        force_init: bool = False,
    ) -> None:
        """Mark the optimizer as initialized; there is nothing to optimize."""
        self.optimizer_initialized = True

    def update(self) -> None:
        """Do nothing: there are no parameters."""

    def _named_outputs(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        if self._label_shapes is None:
            return []  # no loss, so nothing to measure
        named_labels = dict(zip(self._label_names or (), labels, strict=False))
        return [(named_labels, dict(zip(self._output_names, self.get_outputs(), strict=False)))]

    def install_monitor(self, mon: object) -> None:
        """Do nothing: there is no graph to monitor."""


class PythonLossModule(PythonModule):
    """A loss: its output is its input, and its gradient comes from a function.

    Args:
        name: the module's name; its output is named ``<name>_output``.
        data_names: the name of its only input.
        label_names: the name of its only label.
        logger: the logger of training.
        grad_func: a function that takes scores and labels, and returns the gradient of the loss with respect to the
            scores. A subclass may implement ``_backward_impl`` instead, which sets ``_scores_grad`` from ``_scores``
            and ``_labels``.

    Raises:
        ValueError: there is not exactly one input and one label.
        TypeError: ``grad_func`` is not callable.

    Example:
        >>> hinge = mx.mod.PythonLossModule(grad_func=lambda scores, labels: (scores - labels) / len(labels))
    """

    def __init__(
        self,
        name: str = "pyloss",
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",),
        logger: object = logging,
        grad_func: Callable[[NDArray, NDArray], Any] | None = None,
    ) -> None:
        super().__init__(data_names, label_names, [f"{name}_output"], logger)
        if len(data_names) != 1 or len(label_names) != 1:
            raise ValueError(
                f"PythonLossModule: data_names is {list(data_names)} and label_names {list(label_names)}, expected one "
                "name each"
            )
        if grad_func is not None and not callable(grad_func):
            raise TypeError(f"PythonLossModule: grad_func is {grad_func!r}, expected a function of scores and labels")
        self._name = name
        self._grad_func = grad_func
        self._scores: Any = None
        self._labels: Any = None
        self._scores_grad: Any = None

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(f"{self._name}_output", tuple(self._data_shapes[0][1]))]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        self._scores = data_batch.data[0]
        if self.for_training if is_train is None else is_train:
            self._labels = data_batch.label[0]

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        return [self._scores] if merge_multi_context else [[self._scores]]

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradient of the scores.

        Raises:
            ValueError: ``out_grads`` is set; the output of a loss has no gradient.
            RuntimeError: the module is bound for predictions.
        """
        if out_grads is not None:
            raise ValueError("backward: the output of a loss has no gradient: omit out_grads")
        if not self.for_training:
            raise StateError("backward: the module is bound for predictions: bind it with for_training=True")
        self._backward_impl()

    def _backward_impl(self) -> None:
        if self._grad_func is None:
            raise NotImplementedError(f"{type(self).__name__} needs grad_func, or a subclass with _backward_impl()")
        grad = self._grad_func(self._scores, self._labels)
        self._scores_grad = grad if isinstance(grad, NDArray) else nd.array(grad)

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        return [self._scores_grad] if merge_multi_context else [[self._scores_grad]]


def _check_shapes(argument: str, shapes: Sequence[Any], names: Sequence[str]) -> None:
    actual = [desc[0] for desc in shapes]
    if actual != list(names):
        raise ValueError(f"bind: {argument} names {actual}, expected {list(names)}")
