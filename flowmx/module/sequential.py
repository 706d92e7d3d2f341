"""``mx.mod.SequentialModule``: modules in a chain."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

from flowmx.errors import StateError
from flowmx.io import DataDesc
from flowmx.module.base_module import BaseModule, Binding, InitialParams, OptimizerParams
from flowmx.module.evaluation import merges_devices
from flowmx.module.module import Module
from flowmx.ndarray import NDArray


class SequentialModule(BaseModule):
    """A chain of modules: the outputs of one are the inputs of the next.

    Args:
        logger: the logger of training.

    Example:
        >>> mod = mx.mod.SequentialModule()
        >>> mod.add(mx.mod.Module(first, label_names=[]))
        >>> mod.add(mx.mod.Module(second), take_labels=True, auto_wiring=True)
        >>> await mod.fit(train, num_epoch=5)
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: object = logging) -> None:
        super().__init__(logger)
        self._modules: list[BaseModule] = []
        self._metas: list[dict[str, Any]] = []
        self._label_shapes: Any = None

    def add(self, module: BaseModule, **kwargs: object) -> SequentialModule:
        """Append a module, and return this module for chaining; bind it again afterwards.

        Args:
            module: the module.
            **kwargs: ``take_labels=True`` passes the labels to the module, and metrics count its outputs;
                ``auto_wiring=True`` renames the outputs of the previous module to the module's inputs, in order.

        Raises:
            TypeError: the keyword is unknown.
        """
        unknown = set(kwargs) - {self.META_TAKE_LABELS, self.META_AUTO_WIRING}
        if unknown:
            raise TypeError(
                f"add: {sorted(unknown)[0]!r} is not a keyword, expected {self.META_TAKE_LABELS!r} or "
                f"{self.META_AUTO_WIRING!r}"
            )
        self._modules.append(module)
        self._metas.append(kwargs)
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    def _first(self) -> BaseModule:
        if not self._modules:
            raise StateError("SequentialModule: there are no modules: add() some first")
        return self._modules[0]

    def _label_modules(self) -> list[BaseModule]:
        pairs = zip(self._modules, self._metas, strict=True)
        return [module for module, meta in pairs if meta.get(self.META_TAKE_LABELS)]

    # -- names and shapes ------------------------------------------------------------------------------

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
        descs: list[DataDesc] | None = self._label_shapes
        return descs

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        self._first()
        return self._modules[-1].output_shapes

    # -- binding ---------------------------------------------------------------------------------------

    def _bind(self, binding: Binding) -> None:
        binding.check_training()
        binding.check_unshared(self)
        self._first()
        self._label_shapes = binding.label_shapes if self._label_modules() else None
        shapes = binding.data_shapes
        for position, (module, meta) in enumerate(zip(self._modules, self._metas, strict=True)):
            if meta.get(self.META_AUTO_WIRING):
                shapes = _name_shapes(module.data_names, shapes)
            inner = binding._replace(
                data_shapes=shapes, label_shapes=binding.label_shapes if meta.get(self.META_TAKE_LABELS) else None,
                inputs_need_grad=binding.inputs_need_grad or (binding.for_training and position > 0),
            )  # fmt: skip
            module.bind(*inner)
            shapes = module.output_shapes

    # -- parameters ------------------------------------------------------------------------------------

    def _init_params(self, initializer: Callable[..., object] | None, params: InitialParams) -> None:
        if self.params_initialized and not params.force_init:
            return
        for module in self._modules:
            module.init_params(initializer, *params)
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

    def _set_params(self, params: InitialParams) -> None:
        for module in self._modules:  # a module has only some of the names
            module.set_params(*params._replace(allow_extra=True))
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
        self, kvstore: object, optimizer: object, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        for module in self._modules:
            module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward passes of all modules."""
        self._check_ready("forward")
        batch = copy.copy(data_batch)
        for position, module in enumerate(self._modules):
            if position:
                previous = self._modules[position - 1]
                batch.data = previous.get_outputs()
                names = module.data_names if self._metas[position].get(self.META_AUTO_WIRING) else previous.output_names
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

    @merges_devices
    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        self._first()
        return self._modules[-1].get_outputs(merge_multi_context)

    @merges_devices
    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        return self._first().get_input_grads(merge_multi_context)

    def install_monitor(self, mon: object) -> None:
        for module in self._modules:
            module.install_monitor(mon)

    def _named_outputs(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        return []

    def _metric_modules(self) -> Sequence[BaseModule]:
        return self._label_modules()

    # -- hooks of fit ----------------------------------------------------------------------------------

    def _trained_modules(self) -> list[Module]:
        return [inner for module in self._modules for inner in module._trained_modules()]

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        modules = self._trained_modules()  # they share a store
        return await modules[0]._begin_fit(epoch, batch) if modules else (epoch, batch)

    async def _end_epoch(self, epoch: int) -> int:
        modules = self._trained_modules()
        if modules:
            epoch = await modules[0]._end_epoch(epoch)
        for module in modules[1:]:
            module._pull()
        return epoch

    async def _synchronize_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        for module in self._modules:
            await module._synchronize_params()
        return self.get_params()


def _name_shapes(names: Sequence[str], shapes: Sequence[Any]) -> list[DataDesc]:
    """Rename shapes to the inputs that take them, in order."""
    if len(names) != len(shapes):
        raise ValueError(f"bind: the module has the inputs {list(names)}, but gets {len(shapes)} arrays")
    descs = (shape if isinstance(shape, DataDesc) else DataDesc(*shape) for shape in shapes)
    return [DataDesc(name, desc.shape, desc.dtype, desc.layout) for name, desc in zip(names, descs, strict=True)]
