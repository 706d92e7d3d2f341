"""``mx.mod.BucketingModule``: a graph for each length of input, all with the same parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx.devices import Context
from flowmx.errors import StateError
from flowmx.module.base_module import BaseModule, Binding, InitialParams, OptimizerParams
from flowmx.module.evaluation import merges_devices
from flowmx.module.module import Module
from flowmx.name import NameManager
from flowmx.ndarray import NDArray
from flowmx.overrides import is_replaced


def _property_of_current(name: str, doc: str) -> Any:
    """Return a property that reads an attribute of the current bucket's module."""
    return property(lambda self: getattr(self._current, name), doc=doc)


class BucketingModule(BaseModule):
    """Modules with shared parameters, one for each *bucket*, for sequences of several lengths.

    The ``bucket_key`` of a batch selects its bucket. A graph is bound at the first use of its bucket.

    Args:
        sym_gen: a function that takes a key and returns a symbol, the names of its inputs and those of its labels.
        default_bucket_key: the key of the graph that is bound first. It must have all parameters, and should be the
            largest.
        logger: the logger of training.
        context: as for :class:`Module`.
        work_load_list: as for :class:`Module`.
        fixed_param_names: as for :class:`Module`.
        state_names: as for :class:`Module`.
        group2ctxs: as for :class:`Module`.
        compression_params: as for :class:`Module`.

    Raises:
        ValueError: ``default_bucket_key`` is missing.

    Example:
        >>> def sym_gen(length):
        ...     outputs, _ = cell.unroll(length, embedded, merge_outputs=True)
        ...     return mx.sym.SoftmaxOutput(outputs, name="softmax"), ("data",), ("softmax_label",)
        >>> mod = mx.mod.BucketingModule(sym_gen, default_bucket_key=batches.default_bucket_key)
        >>> await mod.fit(batches, num_epoch=5)
    """

    def __init__(
        self,
        sym_gen: Callable[[Any], tuple[Any, Sequence[str] | None, Sequence[str] | None]],
        default_bucket_key: object = None,
        logger: object = logging,
        context: Context | Sequence[Context] | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: object = None,
        compression_params: object = None,
    ) -> None:
        super().__init__(logger)
        if default_bucket_key is None:
            raise ValueError("BucketingModule: default_bucket_key is missing: pass the key of the largest bucket")
        self._default_bucket_key = default_bucket_key
        self._sym_gen = sym_gen
        self._arguments: dict[str, Any] = {
            "context": context, "work_load_list": work_load_list, "fixed_param_names": fixed_param_names,
            "state_names": state_names, "group2ctxs": group2ctxs, "compression_params": compression_params,
        }  # fmt: skip
        self._buckets: dict[Any, Module] = {}
        self._grad_req: Any = "write"
        self._monitor: Any = None
        self._default = self._create_module(default_bucket_key)  # raises if the arguments are invalid
        self._current = self._default
        self._curr_bucket_key = default_bucket_key

    def _call_sym_gen(self, *args: object, **kwargs: object) -> Any:
        with NameManager():  # layers get the same names in each graph
            return self._sym_gen(*args, **kwargs)

    def _create_module(self, key: object) -> Module:
        symbol, data_names, label_names = self._call_sym_gen(key)
        return Module(symbol, data_names, label_names, logger=self.logger, **self._arguments)

    # -- names and shapes ------------------------------------------------------------------------------

    symbol = _property_of_current("symbol", "The symbol of the current bucket.")
    data_names = _property_of_current("data_names", "Names of the inputs.")
    label_names = _property_of_current("label_names", "Names of the labels.")
    output_names = _property_of_current("output_names", "Names of the outputs.")
    data_shapes = _property_of_current("data_shapes", "Names, shapes and dtypes of the bound inputs.")
    label_shapes = _property_of_current("label_shapes", "Names, shapes and dtypes of the bound labels, if any.")
    output_shapes = _property_of_current("output_shapes", "Names and shapes of the outputs.")

    # -- binding ---------------------------------------------------------------------------------------

    def _bind(self, binding: Binding) -> None:
        binding.check_unshared(self)
        self._default.bind(*binding._replace(force_rebind=True))
        # Other buckets get their graphs at their first batches.
        self._buckets = {self._default_bucket_key: self._default}
        self._current, self._curr_bucket_key = self._default, self._default_bucket_key
        self._grad_req = binding.grad_req

    def switch_bucket(self, bucket_key: object, data_shapes: object, label_shapes: object = None) -> None:
        """Switch to a bucket; its graph is bound at the first use.

        Args:
            bucket_key: the bucket's key.
            data_shapes: the shapes of its batches, as for :meth:`bind`.
            label_shapes: the shapes of its labels, as for :meth:`bind`.

        Raises:
            RuntimeError: the module is not bound.
            ValueError: the bucket's graph has parameters that the default graph lacks.
        """
        if not self.binded:
            raise StateError("switch_bucket: the module is not bound: call bind() first")
        if bucket_key not in self._buckets:
            module = self._create_module(bucket_key)
            self._check_params(bucket_key, module)
            module.bind(
                data_shapes, label_shapes, self.for_training, self.inputs_need_grad, shared_module=self._default,
                grad_req=self._grad_req,
            )  # fmt: skip
            if self._monitor is not None:
                module.install_monitor(self._monitor)
            self._buckets[bucket_key] = module
        self._current, self._curr_bucket_key = self._buckets[bucket_key], bucket_key

    def _check_params(self, key: object, module: Module) -> None:
        names = {*self._default._param_names, *self._default._aux_names}
        extra = [name for name in (*module._param_names, *module._aux_names) if name not in names]
        if extra:
            raise ValueError(
                f"switch_bucket: the graph of bucket {key!r} has a parameter {extra[0]!r}, which the default "
                f"bucket {self._default_bucket_key!r} lacks: name layers and begin states explicitly, "
                "and give the default bucket all parameters"
            )

    def prepare(self, data_batch: object, sparse_row_id_fn: object = None) -> None:
        """Bind the graph of a batch's bucket and pull the rows that the batch needs, without switching the bucket.

        Args:
            data_batch: the batch.
            sparse_row_id_fn: as for :meth:`Module.prepare`.
        """
        current, key = self._current, self._curr_bucket_key
        self._switch_for(data_batch)
        self._current.prepare(data_batch, sparse_row_id_fn)
        self._current, self._curr_bucket_key = current, key

    def _switch_for(self, batch: Any) -> None:
        key = getattr(batch, "bucket_key", None)
        if key is None:
            raise ValueError(
                "BucketingModule: the batch has no bucket_key: use an iterator that sets it, such as "
                "mx.rnn.BucketSentenceIter"
            )
        self.switch_bucket(key, batch.provide_data, batch.provide_label)

    # -- parameters ------------------------------------------------------------------------------------

    def _init_params(self, initializer: Callable[..., object] | None, params: InitialParams) -> None:
        if self.params_initialized and not params.force_init:
            return
        self._default.init_params(initializer, *params)
        self.params_initialized = True

    def _set_params(self, params: InitialParams) -> None:
        self._default.set_params(*params)
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        self._check_ready("get_params")
        return self._default.get_params()

    @merges_devices
    def get_states(self, merge_multi_context: bool = True) -> Any:
        """Return the arrays of ``state_names``; see :meth:`Module.get_states`."""
        return self._current.get_states(merge_multi_context)

    def set_states(self, states: object = None, value: float | None = None) -> None:
        """Set the arrays of ``state_names``; see :meth:`Module.set_states`."""
        self._current.set_states(states, value)

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Save a checkpoint with the symbol of the default bucket; see :meth:`Module.save_checkpoint`."""
        self._default.save_checkpoint(prefix, epoch, save_optimizer_states, remove_amp_cast)

    @staticmethod
    def load(
        prefix: str, epoch: int, sym_gen: Any = None, default_bucket_key: Any = None, **kwargs: Any
    ) -> BucketingModule:
        """Return a module with the parameters of a checkpoint.

        Args:
            prefix: the prefix of the files' names.
            epoch: the number of completed epochs.
            sym_gen: as for the class; the checkpoint has only one symbol.
            default_bucket_key: as for the class.
            **kwargs: as for the class.
        """
        module = BucketingModule(sym_gen, default_bucket_key, **kwargs)
        checkpoint = Module.load(prefix, epoch, data_names=module.data_names, label_names=module.label_names)
        module._set_initial_params(checkpoint._arg_params, checkpoint._aux_params)
        return module

    @staticmethod
    def load_dict(
        sym_dict: Mapping[Any, Any], sym_gen: Any, default_bucket_key: Any, arg_params: dict[str, NDArray],
        aux_params: dict[str, NDArray], **kwargs: Any,
    ) -> BucketingModule:  # fmt: skip
        """Return a module with these symbols and parameters.

        Args:
            sym_dict: symbols by key, for some of the buckets.
            sym_gen: as for the class.
            default_bucket_key: as for the class.
            arg_params: parameters by name.
            aux_params: auxiliary states by name.
            **kwargs: as for the class.
        """

        def generate(key: Any) -> tuple[Any, Any, Any]:
            symbol, data_names, label_names = sym_gen(key)
            return sym_dict.get(key, symbol), data_names, label_names

        module = BucketingModule(generate, default_bucket_key, **kwargs)
        module._set_initial_params(arg_params, aux_params)
        return module

    def _set_initial_params(self, arg_params: dict[str, NDArray], aux_params: dict[str, NDArray]) -> None:
        """Set the parameters before the module is bound."""
        self._default._arg_params, self._default._aux_params = arg_params, aux_params
        self._default.params_initialized = self.params_initialized = True

    # -- training --------------------------------------------------------------------------------------

    def _init_optimizer(
        self, kvstore: object, optimizer: object, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        self._default.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        for bucket in self._buckets.values():
            if bucket is not self._default:
                bucket.borrow_optimizer(self._default)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch, with the graph of its bucket."""
        self._check_ready("forward")
        self._switch_for(data_batch)
        self._current.forward(data_batch, is_train)

    def forward_backward(self, data_batch: object) -> None:
        if any(is_replaced(self, name, _PASSES[name]) for name in _PASSES):
            super().forward_backward(data_batch)  # a user's forward or backward
            return
        self._check_ready("forward_backward")
        self._switch_for(data_batch)
        self._current.forward_backward(data_batch)

    def backward(self, out_grads: Any = None) -> None:
        self._check_ready("backward")
        self._current.backward(out_grads)

    def update(self) -> None:
        self._check_ready("update")
        self._current.update()
        self._default._stale = True

    @merges_devices
    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        return self._current.get_outputs(merge_multi_context)

    @merges_devices
    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        return self._current.get_input_grads(merge_multi_context)

    def install_monitor(self, mon: object) -> None:
        self._monitor = mon
        for bucket in self._buckets.values():
            bucket.install_monitor(mon)

    def _named_outputs(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        return []

    def _metric_modules(self) -> Sequence[BaseModule]:
        return (self._current,)

    # -- hooks of fit ----------------------------------------------------------------------------------

    def _trained_modules(self) -> list[Module]:
        return [self._default]

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        return await self._default._begin_fit(epoch, batch)

    async def _end_epoch(self, epoch: int) -> int:
        return await self._default._end_epoch(epoch)

    async def _synchronize_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        return await self._default._synchronize_params()


_PASSES = {name: getattr(BucketingModule, name) for name in ("forward", "backward")}
