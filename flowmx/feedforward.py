"""``mx.model.FeedForward``: MXNet's oldest training interface, implemented with :class:`Module`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import metric, model
from flowmx.callback import LogValidationMetricsCallback
from flowmx.devices import Context, cpu
from flowmx.engine.loops import blocks_in_ordinary_code
from flowmx.initializer import Uniform
from flowmx.io import DataIter, NDArrayIter, ResizeIter
from flowmx.module import BaseModule, BucketingModule, Module
from flowmx.ndarray import NDArray
from flowmx.symbol import Symbol

__all__ = ["FeedForward"]


class FeedForward:
    """A network that is trained on arrays or an iterator, then predicts; awaited in coroutines, blocking elsewhere.

    Args:
        symbol: the symbol; or a function that makes one for a bucket's key.
        ctx: a device, or several; predictions use the first.
        num_epoch: the first epoch not to train.
        epoch_size: the number of batches in an epoch (default: all batches of the data).
        optimizer: a name, or an optimizer.
        initializer: initializes parameters that are not in ``arg_params``.
        numpy_batch_size: the number of samples in a batch, for data that is an array.
        arg_params: parameters.
        aux_params: auxiliary states.
        allow_extra_params: ignore parameters that the symbol does not have.
        begin_epoch: the first epoch's number.
        **kwargs: arguments of the optimizer.

    Raises:
        TypeError: ``symbol`` is neither a symbol nor a function.

    Example:
        >>> net = mx.model.FeedForward(symbol, num_epoch=10, learning_rate=0.1)
        >>> await net.fit(images, labels)
        >>> probabilities = await net.predict(more_images)
    """

    def __init__(
        self, symbol: object, ctx: Context | Sequence[Context] | None = None, num_epoch: int | None = None,
        epoch_size: int | None = None, optimizer: Any = "sgd",
        initializer: Callable[..., object] = Uniform(0.01),  # noqa: B008
        numpy_batch_size: int = 128, arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None, allow_extra_params: bool = False, begin_epoch: int = 0,
        **kwargs: object,
    ) -> None:  # fmt: skip
        warnings.warn("FeedForward is MXNet's oldest interface: use mx.mod.Module", DeprecationWarning, stacklevel=2)
        if not isinstance(symbol, Symbol) and not callable(symbol):
            raise TypeError(f"FeedForward: symbol is {symbol!r}, expected a Symbol, or a function of a bucket's key")
        self.symbol: Any = symbol if isinstance(symbol, Symbol) else None
        self.sym_gen = None if isinstance(symbol, Symbol) else symbol
        self.ctx: list[Context] = [cpu()] if ctx is None else [ctx] if isinstance(ctx, Context) else list(ctx)
        self.num_epoch = num_epoch
        self.epoch_size = epoch_size
        self.optimizer = optimizer
        self.initializer = initializer
        self.numpy_batch_size = numpy_batch_size
        self.arg_params = None if arg_params is None else dict(arg_params)
        self.aux_params = None if aux_params is None else dict(aux_params)
        self.allow_extra_params = allow_extra_params
        self.begin_epoch = begin_epoch
        self.kwargs = dict(kwargs)

    # -- training --------------------------------------------------------------------------------------

    @blocks_in_ordinary_code
    async def fit(
        self, X: object, y: object = None, eval_data: Any = None, eval_metric: Any = "acc",
        epoch_end_callback: Any = None, batch_end_callback: Any = None, kvstore: Any = "local", logger: object = None,
        work_load_list: object = None,
        monitor: Any = None, eval_end_callback: Any = LogValidationMetricsCallback(),  # noqa: B008
        eval_batch_end_callback: Any = None,
    ) -> None:  # fmt: skip
        """Train the network.

        Args:
            X: the inputs as an array, or an iterator.
            y: the labels, if ``X`` is an array.
            eval_data: an iterator, or a pair of inputs and labels, to evaluate on after each epoch.
            eval_metric: the metric.
            epoch_end_callback: as for :meth:`Module.fit`.
            batch_end_callback: as for :meth:`Module.fit`.
            kvstore: as for :meth:`Module.fit`.
            logger: the logger of training.
            work_load_list: the part of a batch for each device.
            monitor: as for :meth:`Module.fit`.
            eval_end_callback: as for :meth:`Module.fit`.
            eval_batch_end_callback: as for :meth:`Module.fit`.

        Raises:
            TypeError, ValueError: the data has the wrong type, or inputs and labels do not match.
        """
        data = self._batches(X, y, is_train=True)
        module = self._module(data, logger, work_load_list)
        await module.fit(
            data if self.epoch_size is None else ResizeIter(data, self.epoch_size, reset_internal=False),
            eval_data=self._evaluation(eval_data), eval_metric=eval_metric, epoch_end_callback=epoch_end_callback,
            batch_end_callback=batch_end_callback, kvstore=kvstore, optimizer=self.optimizer,
            optimizer_params=self.kwargs, eval_end_callback=eval_end_callback,
            eval_batch_end_callback=eval_batch_end_callback, initializer=self.initializer,
            arg_params=self._filter_params(self.arg_params, module),
            aux_params=self._filter_params(self.aux_params, module),
            allow_missing=True, begin_epoch=self.begin_epoch, num_epoch=self.num_epoch, monitor=monitor,
        )  # fmt: skip
        args, aux = module.get_params()
        self.arg_params, self.aux_params = dict(args), dict(aux)

    def _module(self, data: DataIter, logger: object, work_load_list: object) -> BaseModule:
        names = [desc[0] for desc in data.provide_data], [desc[0] for desc in data.provide_label]
        options: dict[str, Any] = {"context": self.ctx, "work_load_list": work_load_list}
        if logger is not None:
            options["logger"] = logger
        make = self.sym_gen
        if make is None:
            return Module(self.symbol, *names, **options)
        key: Any = data.default_bucket_key  # type: ignore[attr-defined]
        self.symbol = make(key)
        return BucketingModule(lambda key: (make(key), *names), key, **options)

    def _filter_params(self, params: dict[str, NDArray] | None, module: BaseModule) -> dict[str, NDArray] | None:
        if params is None or not self.allow_extra_params:
            return params
        names = {*module.symbol.list_arguments(), *module.symbol.list_auxiliary_states()}
        return {name: array for name, array in params.items() if name in names}

    # -- predicting ------------------------------------------------------------------------------------

    @blocks_in_ordinary_code
    async def predict(
        self, X: object, num_batch: int | None = None, return_data: bool = False, reset: bool = True
    ) -> object:
        """Return the outputs for all inputs, as NumPy arrays: one, or a list if there are several.

        Args:
            X: the inputs as an array, or an iterator.
            num_batch: predict this number of batches (default: all).
            return_data: return outputs, inputs and labels.
            reset: reset an iterator first.

        Raises:
            RuntimeError: there are no parameters yet.
        """
        data = self._batches(X, None, is_train=False)
        module = self._predictor(data)
        outputs: list[list[Any]] = []
        inputs: list[list[Any]] = []
        labels: list[list[Any]] = []
        async for batch_outputs, _, batch in module.iter_predict(data, num_batch, reset):
            count = data.batch_size - (batch.pad or 0)
            outputs.append([(await output).asnumpy() for output in batch_outputs])
            if return_data:
                inputs.append([(await array[:count].copy()).asnumpy() for array in batch.data])
                labels.append([(await array[:count].copy()).asnumpy() for array in batch.label or ()])
        return (
            (_concatenate(outputs), _concatenate(inputs), _concatenate(labels))
            if return_data
            else _concatenate(outputs)
        )

    @blocks_in_ordinary_code
    async def score(
        self, X: object, eval_metric: object = "acc", num_batch: int | None = None, batch_end_callback: Any = None,
        reset: bool = True,
    ) -> Any:  # fmt: skip
        """Evaluate the network; return the metric's value.

        Args:
            X: an iterator.
            eval_metric: the metric.
            num_batch: evaluate this number of batches (default: all).
            batch_end_callback: called after each batch.
            reset: reset the iterator first.

        Raises:
            RuntimeError: there are no parameters yet.
        """
        data = self._batches(X, None, is_train=False)
        score_metric = eval_metric if isinstance(eval_metric, metric.EvalMetric) else metric.create(eval_metric)
        await self._predictor(data).score(data, score_metric, num_batch, batch_end_callback, reset=reset)
        return score_metric.get()[1]

    def _predictor(self, data: DataIter) -> Module:
        if self.arg_params is None or self.symbol is None:
            raise RuntimeError("FeedForward: there are no parameters yet: call fit(), or pass arg_params")
        names = [desc[0] for desc in data.provide_data]
        label_names = [desc[0] for desc in data.provide_label or ()]
        inputs = [name for name in self.symbol.list_arguments() if name not in self.arg_params and name not in names]
        module_labels = [name for name in inputs if name in label_names] or inputs
        module = Module(self.symbol, names, module_labels, context=self.ctx[0])
        labels = data.provide_label if set(inputs) <= set(label_names) else None
        module.bind(data.provide_data, labels, for_training=False)
        aux_params = self._filter_params(self.aux_params or {}, module)
        module.init_params(None, self._filter_params(self.arg_params, module), aux_params)
        return module

    # -- data ------------------------------------------------------------------------------------------

    def _batches(self, X: object, y: object, is_train: bool) -> DataIter:
        if isinstance(X, DataIter):
            return X
        if not isinstance(X, (np.ndarray, NDArray)):
            raise TypeError(f"FeedForward: X is {type(X).__name__}, expected an array or an iterator of mx.io")
        if y is None:
            if is_train:
                raise ValueError("FeedForward: y is missing: if X is an array, pass the labels as an array too")
            y = np.zeros(X.shape[0])
        if not isinstance(y, (np.ndarray, NDArray)):
            raise TypeError(f"FeedForward: y is {type(y).__name__}, expected an array")
        if y.ndim == 2 and y.shape[1] == 1:
            y = y.reshape((y.shape[0],))
        if y.ndim != 1 or y.shape[0] != X.shape[0]:
            raise ValueError(f"FeedForward: y has shape {y.shape}, expected a label for each of {X.shape[0]} samples")
        size = min(X.shape[0], self.numpy_batch_size)
        return NDArrayIter(X, y, size, shuffle=is_train, last_batch_handle="roll_over" if is_train else "pad")

    def _evaluation(self, eval_data: object) -> DataIter | None:
        if eval_data is None or isinstance(eval_data, DataIter):
            return eval_data
        if not isinstance(eval_data, (tuple, list)) or len(eval_data) != 2 or eval_data[0] is None:
            raise TypeError(
                f"FeedForward: eval_data is {eval_data!r}, expected an iterator, or a pair of inputs and labels"
            )
        if eval_data[1] is None and isinstance(eval_data[0], DataIter):
            return eval_data[0]
        inputs, labels = (np.array(part) if isinstance(part, list) else part for part in eval_data)
        return self._batches(inputs, labels, is_train=True)

    # -- files -----------------------------------------------------------------------------------------

    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Save symbol and parameters by ``mx.model.save_checkpoint``; blocks until they are on disk.

        Args:
            prefix: the prefix of the files' names.
            epoch: the number of completed epochs (default: ``num_epoch``).
            remove_amp_cast: remove casts of mixed precision from the symbol.

        Raises:
            ValueError: both ``epoch`` and ``num_epoch`` are missing.
        """
        epoch = self.num_epoch if epoch is None else epoch
        if epoch is None:
            raise ValueError("FeedForward.save: epoch and num_epoch are both missing: pass one")
        model.save_checkpoint(
            prefix, epoch, self.symbol, self.arg_params or {}, self.aux_params or {}, remove_amp_cast
        )  # fmt: skip

    @staticmethod
    def load(prefix: str, epoch: int, ctx: Context | Sequence[Context] | None = None, **kwargs: Any) -> FeedForward:
        """Return a network with the symbol and parameters of a checkpoint; :meth:`fit` resumes at that epoch.

        Args:
            prefix: the prefix of the files' names.
            epoch: the number of completed epochs.
            ctx: as for the class.
            **kwargs: arguments of the optimizer.
        """
        symbol, arg_params, aux_params = model.load_checkpoint(prefix, epoch)
        return FeedForward(
            symbol, ctx, arg_params=arg_params, aux_params=aux_params, begin_epoch=epoch, **kwargs
        )  # fmt: skip

    @staticmethod
    @blocks_in_ordinary_code
    async def create(
        symbol: Symbol, X: object, y: object = None, ctx: Context | Sequence[Context] | None = None,
        num_epoch: int | None = None, epoch_size: int | None = None, optimizer: Any = "sgd",
        initializer: Callable[..., object] = Uniform(0.01),  # noqa: B008
        eval_data: object = None, eval_metric: object = "acc", epoch_end_callback: object = None,
        batch_end_callback: object = None, kvstore: object = "local", logger: object = None,
        work_load_list: object = None, eval_end_callback: object = LogValidationMetricsCallback(),
        eval_batch_end_callback: object = None, **kwargs: Any,
    ) -> FeedForward:  # fmt: skip
        """Make a network and train it; the arguments are those of the class and of :meth:`fit`."""
        network = FeedForward(
            symbol, ctx, num_epoch=num_epoch, epoch_size=epoch_size, optimizer=optimizer, initializer=initializer,
            **kwargs,
        )  # fmt: skip
        await network.fit(
            X, y, eval_data, eval_metric, epoch_end_callback, batch_end_callback, kvstore, logger, work_load_list,
            eval_end_callback=eval_end_callback, eval_batch_end_callback=eval_batch_end_callback,
        )  # fmt: skip
        return network


def _concatenate(batches: Sequence[Sequence[Any]]) -> Any:
    """Concatenate the arrays of batches along the first axis: one array, or a list if batches have several."""
    arrays = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    return arrays[0] if len(arrays) == 1 else arrays
