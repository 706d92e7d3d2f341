"""Updates of a model's parameters by an optimizer, with gradients summed over devices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx import optimizer as opt
from flowmx.devices import Context
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.serialization.atomic import replace_file

__all__ = ["Trainer"]

_STORES = (None, "local", "device", "local_update_cpu", "local_allreduce_cpu", "local_allreduce_device")


class Trainer:
    """Updates parameters by their gradients.

    Args:
        params: the parameters, as ``block.collect_params()`` returns them, or a list.
        optimizer: the name of an optimizer, or one.
        optimizer_params: its arguments, where it is given by name.
        kvstore: ``"device"``, ``"local"`` or None: gradients are summed in this process.
        compression_params: only None.
        update_on_kvstore: only None or False.

    Raises:
        TypeError: something that is no parameter, or no optimizer.
        ValueError: the parameters are on different devices, or arguments beside an optimizer.
        NotImplementedError: another ``kvstore``.

    Example:
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> with mx.autograd.record():
        ...     loss = loss_fn(net(data), label)
        >>> loss.backward()
        >>> trainer.step(batch_size=32)
    """

    def __init__(
        self, params: ParameterDict | Mapping[str, Parameter] | Sequence[Parameter], optimizer: str | opt.Optimizer,
        optimizer_params: Mapping[str, Any] | None = None, kvstore: Any = "device", compression_params: Any = None,
        update_on_kvstore: bool | None = None,
    ) -> None:  # fmt: skip
        if kvstore not in _STORES or compression_params or update_on_kvstore:
            raise NotImplementedError(
                f"Trainer: kvstore is {kvstore!r}, compression_params {compression_params!r}, update_on_kvstore "
                f"{update_on_kvstore!r}, expected 'device', 'local' or None and no others: training over several "
                "machines arrives with the KVStore issue"
            )
        self._params = _listed(params)
        self._contexts = self._check_contexts()
        self._optimizer = self._made(optimizer, dict(optimizer_params or {}))
        self._scale = self._optimizer.rescale_grad
        self._updaters = {ctx: opt.get_updater(self._optimizer) for ctx in self._contexts}

    def _check_contexts(self) -> list[Context]:
        contexts: list[Context] = self._params[0].list_ctx() if self._params else []
        for param in self._params:
            if param.list_ctx() != contexts:
                raise ValueError(
                    f"Trainer: parameter {param.name!r} is on {param.list_ctx()}, and {self._params[0].name!r} on "
                    f"{contexts}, expected the same devices for all"
                )
        return contexts

    def _made(self, optimizer: str | opt.Optimizer, arguments: dict[str, Any]) -> opt.Optimizer:
        if isinstance(optimizer, opt.Optimizer):
            if arguments:
                raise ValueError(f"Trainer: the optimizer is complete, but optimizer_params came with it: {arguments}")
            made = optimizer
        else:
            made = opt.create(optimizer, **arguments)
        made.param_dict = dict(enumerate(self._params))
        return made

    @property
    def optimizer(self) -> opt.Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """The current learning rate."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate.

        Raises:
            UserWarning: a schedule decides it (what MXNet raises).
        """
        self._optimizer.set_learning_rate(lr)

    # -- one step --------------------------------------------------------------------------------------

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Enqueue the update of all parameters, by their gradients summed over the devices.

        Args:
            batch_size: gradients are divided by it.
            ignore_stale_grad: leave parameters as they are that no backward pass has reached since the last update.

        Raises:
            UserWarning: there is such a parameter (what MXNet raises).
        """
        fresh = self._fresh(ignore_stale_grad)
        self._sum(fresh)
        self._update(fresh, batch_size)

    def allreduce_grads(self) -> None:
        """Enqueue the sums of the gradients over the devices, to change them before :meth:`update`."""
        self._sum(self._fresh(ignore_stale_grad=True))

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Enqueue the update of all parameters by their gradients as they are; as :meth:`step`, without the sums."""
        self._update(self._fresh(ignore_stale_grad), batch_size)

    def _fresh(self, ignore_stale_grad: bool) -> list[tuple[int, Parameter]]:
        """The parameters to update, with their positions."""
        found = []
        for index, param in enumerate(self._params):
            if param.grad_req == "null":
                continue
            param.list_grad()  # says what is wrong where there is none
            stale = [ctx for ctx in self._contexts if not param._is_fresh(ctx)]
            if not stale:
                found.append((index, param))
            elif not ignore_stale_grad:
                raise UserWarning(
                    f"step: no backward pass has reached parameter {param.name!r} on {stale[0]} since the last update: "
                    "perhaps the model does not use it; if that is intended, pass ignore_stale_grad=True to leave "
                    "such parameters as they are"
                )
        return found

    def _sum(self, params: list[tuple[int, Parameter]]) -> None:
        if len(self._contexts) == 1:
            return
        with autograd.pause():
            for _, param in params:
                first, *others = param.list_grad()
                total = nd.add_n(first, *(each.as_in_context(first.context) for each in others))
                for each in (first, *others):
                    total.copyto(each)

    def _update(self, params: list[tuple[int, Parameter]], batch_size: int) -> None:
        self._optimizer.rescale_grad = self._scale / batch_size
        for index, param in params:
            for ctx, updater in self._updaters.items():
                updater(index, param.grad(ctx), param.data(ctx))
                param._mark_used(ctx)

    # -- states ----------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Await the optimizer's states, so that saving them does not block."""
        for updater in self._updaters.values():
            await updater.ready()

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Save the optimizer with its states; blocks until they are on disk (await :meth:`ready` in a coroutine).

        Args:
            fname: the file.
        """
        replace_file(fname, [next(iter(self._updaters.values())).get_states(dump_optimizer=True)])

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Go on from what :meth:`save_states` saved.

        Raises:
            StatesFormatError: the file is something else, or damaged.
            OSError: it can not be read.
        """
        states = Path(fname).read_bytes()
        for updater in self._updaters.values():
            updater.set_states(states)
            self._optimizer = updater.optimizer
        for updater in self._updaters.values():
            updater.optimizer = self._optimizer
        self._optimizer.param_dict = dict(enumerate(self._params))


def _listed(params: Any) -> list[Parameter]:
    if isinstance(params, (ParameterDict, Mapping)):
        params = [params[key] for key in sorted(params.keys())]
    if not isinstance(params, (list, tuple)):
        raise TypeError(f"Trainer: params is {type(params).__name__}, expected a dict or list of Parameters")
    for each in params:
        if not isinstance(each, Parameter):
            raise TypeError(f"Trainer: params holds {each!r}, expected Parameters")
    return list(params)
