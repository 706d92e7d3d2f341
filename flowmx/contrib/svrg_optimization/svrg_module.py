"""A module that trains by stochastic variance reduced gradients (SVRG)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flowmx.ndarray as nd
from flowmx.contrib.svrg_optimization.svrg_optimizer import _SVRGOptimizer
from flowmx.kvstore import KVStoreBase
from flowmx.kvstore.choice import is_distributed
from flowmx.module import Module
from flowmx.module.base_module import OptimizerParams
from flowmx.ndarray import NDArray
from flowmx.optimizer import Optimizer

__all__ = ["SVRGModule"]


class SVRGModule(Module):
    """A module with gradients of reduced variance (R. Johnson and T. Zhang, 2013).

    Every few epochs it copies the parameters and computes the average gradient of all data at the copy. An update uses
    the batch's gradient, minus the batch's gradient at the copy, plus that average. With ``dist_sync`` the average is
    over the data of all workers, and every worker updates its weights.

    Args:
        symbol: the network; it and the other arguments are as in :class:`mx.mod.Module <flowmx.module.Module>`.
        update_freq: the number of epochs between full gradients, at least 1.

    Raises:
        TypeError: ``update_freq`` is not an int.
        ValueError: ``update_freq`` is not positive.

    Example:
        >>> x, y = mx.nd.random.uniform(shape=(40, 2)), mx.nd.ones((40, 1))
        >>> data = mx.io.NDArrayIter(x, y, batch_size=10, label_name="y")
        >>> dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1)
        >>> loss = mx.sym.LinearRegressionOutput(dense, mx.sym.var("y"))
        >>> from flowmx.contrib.svrg_optimization import SVRGModule
        >>> net = SVRGModule(loss, label_names=["y"], update_freq=2)
        >>> net.fit(data, num_epoch=4, eval_metric="mse")  # doctest: +SKIP
    """

    def __init__(self, symbol: Any, *args: Any, update_freq: int | None = None, **kwargs: Any) -> None:
        if isinstance(update_freq, bool) or not isinstance(update_freq, int):
            raise TypeError(f"SVRGModule: update_freq must be an int, the number of epochs, not {update_freq!r}")
        if update_freq <= 0:
            raise ValueError(f"SVRGModule: update_freq must be positive, not {update_freq}")
        super().__init__(symbol, *args, **kwargs)
        self.update_freq = update_freq
        self._mod_aux = Module(symbol, *args, **kwargs)
        self._param_dict: list[dict[str, NDArray]] = []

    def bind(self, *args: Any, **kwargs: Any) -> None:
        super().bind(*args, **kwargs)
        if self.for_training:
            self._mod_aux.bind(*args, **kwargs)

    def reshape(self, data_shapes: object, label_shapes: object = None) -> None:
        super().reshape(data_shapes, label_shapes)
        if self._mod_aux.binded:
            self._mod_aux.reshape(data_shapes, label_shapes)

    def _init_optimizer(
        self, kvstore: object, optimizer: object, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        super()._init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        group = self._executors("init_optimizer")
        self._param_dict = [
            {name: nd.zeros_like(group.on_devices(name)[device]) for name in self._param_names}
            for device in range(len(self._contexts))
        ]
        if is_distributed(store := self._kvstore):
            for key, value in zip(self._keys(), [*self._totals(), nd.zeros((1,))], strict=True):
                store.broadcast(key, value, out=[value])

    def _updates_on(self, store: KVStoreBase | None, requested: object) -> bool:
        if not is_distributed(store):
            return super()._updates_on(store, requested)
        if not store._is_synchronous:
            raise NotImplementedError(
                f"SVRGModule: full gradients are sums over all workers, which {store.type!r} does not compute: use "
                "'dist_sync'"
            )
        sparse = [name for name in self._param_names if self._arg_params[name].stype != "default"]
        if sparse:
            raise NotImplementedError(
                f"SVRGModule: full gradients are not summed over workers for row_sparse parameters: {', '.join(sparse)}"
            )
        return False  # servers would use a sum of full gradients as a gradient

    @property
    def _optimizer(self) -> Optimizer | None:
        """The optimizer for weights and full gradients, as in MXNet's stores."""
        optimizer = super()._optimizer
        return None if optimizer is None else _SVRGOptimizer(optimizer, param_idx2name=optimizer.idx2name)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        super().forward(data_batch, is_train)
        if self.for_training if is_train is None else is_train:
            self._mod_aux.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        super().backward(out_grads)
        self._mod_aux.backward(out_grads)

    def update(self) -> None:
        """Enqueue the update of every parameter with its variance-reduced gradient."""
        self._update_svrg_gradients()
        super().update()

    def update_full_grads(self, train_data: Any) -> None:
        """Copy the current parameters, and compute the average gradient of all data at them.

        Args:
            train_data: an iterator over the data; it is reset before and afterwards.

        Raises:
            ValueError: it has no batch.
        """
        self._mod_aux.set_params(*self.get_params())
        train_data.reset()
        number, pad = 0.0, 0
        for batch in train_data:
            self._mod_aux.forward(batch, is_train=True)
            self._mod_aux.backward()
            for sums, gradients in zip(self._param_dict, self._gradients(self._mod_aux), strict=True):
                for name, gradient in gradients.items():
                    sums[name] += gradient  # MXNet also adds to the previous average
            number, pad = number + 1, batch.pad or 0
        if not number:
            raise ValueError("update_full_grads: train_data returned no batch: is it empty?")
        train_data.reset()
        self._average(number - pad / train_data.batch_size)

    def _average(self, number: float) -> None:
        """Set every device's sums to the mean over all batches, divided by the number of devices."""
        totals, count = self._totals(), nd.full((1,), number, ctx=self._contexts[0])
        if is_distributed(store := self._kvstore):
            *totals, count = self._summed_by_workers(store, [*totals, count])
        for name, total in zip(self._param_names, totals, strict=True):
            batches = count.astype(total.dtype).reshape((1,) * total.ndim) * len(self._param_dict)
            for sums in self._param_dict:
                sums[name][:] = total / batches

    def _totals(self) -> list[NDArray]:
        """Return the sums over all devices."""
        context = self._contexts[0]
        return [
            nd.add_n(*(sums[name].as_in_context(context) for sums in self._param_dict)) for name in self._param_names
        ]

    def _keys(self) -> list[str]:
        """Return a store's keys for the sums and for the number of batches."""
        return [*(f"{name}_full" for name in self._param_names), "svrg_batches"]

    def _summed_by_workers(self, store: KVStoreBase, values: Sequence[NDArray]) -> list[NDArray]:
        outs = [nd.empty(value.shape, value.context, value.dtype) for value in values]
        store._exchange(self._keys(), [[value] for value in values], [[out] for out in outs])
        return outs

    def _update_svrg_gradients(self) -> None:
        devices = zip(self._gradients(self), self._gradients(self._mod_aux), self._param_dict, strict=True)
        for current, snapshot, full in devices:
            self._svrg_grads_update_rule(
                list(current.values()), [snapshot[n] for n in current], [full[n] for n in current]
            )

    @staticmethod
    def _svrg_grads_update_rule(current: list[NDArray], snapshot: list[NDArray], full: list[NDArray]) -> list[NDArray]:
        """Change gradients in place: subtract those at the parameter copy, and add the averages of all data."""
        for gradient, at_snapshot, average in zip(current, snapshot, full, strict=True):
            gradient -= at_snapshot
            gradient += average
        return current

    @staticmethod
    def _gradients(module: Module) -> list[dict[str, NDArray]]:
        """Return a module's gradients by name, for each device, without fixed parameters."""
        group = module._executors("update")
        return [
            {name: exec.grad_dict[name] for name in module._param_names if exec.grad_dict[name] is not None}
            for exec in group.execs
        ]

    async def _begin_epoch(self, epoch: int, train_data: object) -> None:
        if epoch % self.update_freq == 0:
            self.update_full_grads(train_data)
