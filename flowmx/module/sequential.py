"""``mx.mod.SequentialModule``: modules in a chain."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

from flowmx.errors import StateError
from flowmx.io import DataDesc
from flowmx.module.base import BaseModule, Binding, GivenParams, OptimizerParams
from flowmx.module.module import Module
from flowmx.ndarray import NDArray


class SequentialModule(BaseModule):
    """Modules of which each takes the outputs of the one before as its inputs.

    Args:
        logger: where training is logged to.

    Example:
        >>> mod = mx.mod.SequentialModule()
        >>> mod.add(mx.mod.Module(first, label_names=[]))
        >>> mod.add(mx.mod.Module(second), take_labels=True, auto_wiring=True)
        >>> await mod.fit(train, num_epoch=5)
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: Any = logging) -> None:
        super().__init__(logger)
        self._modules: list[BaseModule] = []
        self._metas: list[dict[str, Any]] = []
        self._label_shapes: Any = None

    def add(self, module: BaseModule, **kwargs: Any) -> SequentialModule:
        """Add a module to the end; it must be bound anew then. Returns this one, for chaining.

        Args:
            module: the module.
            **kwargs: ``take_labels=True`` gives it the labels, and lets metrics see its outputs; ``auto_wiring=True``
                calls the outputs of the one before by the names of its inputs, in order.

        Raises:
            TypeError: another keyword.
        """
        unknown = set(kwargs) - {self.META_TAKE_LABELS, self.META_AUTO_WIRING}
        if unknown:
            raise TypeError(
                f"add: {sorted(unknown)[0]!r} is no keyword, expected {self.META_TAKE_LABELS!r} or "
                f"{self.META_AUTO_WIRING!r}"
            )
        self._modules.append(module)
        self._metas.append(kwargs)
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    def _first(self) -> BaseModule:
        if not self._modules:
            raise StateError("SequentialModule: there is no module in it: add() some first")
        return self._modules[0]

    def _taking_labels(self) -> list[BaseModule]:
        pairs = zip(self._modules, self._metas, strict=True)
        return [module for module, meta in pairs if meta.get(self.META_TAKE_LABELS)]

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def data_names(self) -> list[str]:
        return self._modules[0].data_names if self._modules else []

    @property
    def output_names(self) -> list[str]:
        return self._modules[-1].output_names if self._modules else []

    @property
    def data_shapes(self) -> list[DataDesc]:
        return self._first().data_shapes

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        self._first()
        found: list[DataDesc] | None = self._label_shapes
        return found

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        self._first()
        return self._modules[-1].output_shapes

    # -- binding ---------------------------------------------------------------------------------------

    def _bind(self, given: Binding) -> None:
        given.check_training()
        given.check_unshared(self)
        self._first()
        self._label_shapes = given.label_shapes if self._taking_labels() else None
        shapes = given.data_shapes
        for position, (module, meta) in enumerate(zip(self._modules, self._metas, strict=True)):
            if meta.get(self.META_AUTO_WIRING):
                shapes = _wired(module.data_names, shapes)
            inner = given._replace(
                data_shapes=shapes, label_shapes=given.label_shapes if meta.get(self.META_TAKE_LABELS) else None,
                inputs_need_grad=given.inputs_need_grad or (given.for_training and position > 0),
            )  # fmt: skip
            module.bind(*inner)
            shapes = module.output_shapes

    # -- parameters ------------------------------------------------------------------------------------

    def _init_params(self, initializer: Callable[..., Any] | None, given: GivenParams) -> None:
        if self.params_initialized and not given.force_init:
            return
        for module in self._modules:
            module.init_params(initializer, *given)
        self._check_names()
        self.params_initialized = True

    def _check_names(self) -> None:
        owner: dict[str, int] = {}
        for position, module in enumerate(self._modules):
            for name in (*module.get_params()[0], *module.get_params()[1]):
                if name in owner:
                    raise ValueError(
                        f"SequentialModule: modules {owner[name]} and {position} both have a parameter {name!r}: give "
                        "their layers other names"
                    )
                owner[name] = position

    def _set_params(self, given: GivenParams) -> None:
        for module in self._modules:  # each has some of the names
            module.set_params(*given._replace(allow_extra=True))
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        arg_params: dict[str, NDArray] = {}
        aux_params: dict[str, NDArray] = {}
        for module in self._modules:
            arg, aux = module.get_params()
            arg_params |= arg
            aux_params |= aux
        return arg_params, aux_params

    # -- training --------------------------------------------------------------------------------------

    def _init_optimizer(
        self, kvstore: Any, optimizer: Any, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        for module in self._modules:
            module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward passes of all modules."""
        self._check_ready("forward")
        batch = copy.copy(data_batch)
        for position, module in enumerate(self._modules):
            if position:
                before = self._modules[position - 1]
                batch.data = before.get_outputs()
                names = module.data_names if self._metas[position].get(self.META_AUTO_WIRING) else before.output_names
                batch.provide_data = [
                    DataDesc(name, array.shape) for name, array in zip(names, batch.data, strict=True)
                ]
            module.forward(batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Enqueue the backward passes of all modules, the last first."""
        self._check_ready("backward")
        for position in reversed(range(len(self._modules))):
            self._modules[position].backward(out_grads)
            if position:
                out_grads = self._modules[position].get_input_grads()

    def update(self) -> None:
        self._check_ready("update")
        for module in self._modules:
            module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        self._first()
        return self._modules[-1].get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        return self._first().get_input_grads(merge_multi_context)

    def install_monitor(self, mon: Any) -> None:
        for module in self._modules:
            module.install_monitor(mon)

    def _measured(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        return [pair for module in self._taking_labels() for pair in module._measured(labels)]

    # -- what fit asks ---------------------------------------------------------------------------------

    def _trained(self) -> list[Module]:
        return [each for module in self._modules for each in module._trained()]

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        trained = self._trained()  # they share a store
        return await trained[0]._begin_fit(epoch, batch) if trained else (epoch, batch)

    async def _end_epoch(self, epoch: int) -> int:
        trained = self._trained()
        if trained:
            epoch = await trained[0]._end_epoch(epoch)
        for each in trained[1:]:
            each._pull()
        return epoch

    async def _synchronized(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        for module in self._modules:
            await module._synchronized()
        return self.get_params()


def _wired(names: Sequence[str], shapes: Sequence[Any]) -> list[DataDesc]:
    """The shapes under the names of the inputs that take them."""
    if len(names) != len(shapes):
        raise ValueError(f"bind: the module has the inputs {list(names)}, and gets {len(shapes)} arrays")
    described = (each if isinstance(each, DataDesc) else DataDesc(*each) for each in shapes)
    return [DataDesc(name, each.shape, each.dtype, each.layout) for name, each in zip(names, described, strict=True)]
