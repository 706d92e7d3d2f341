"""``mx.mod.BucketingModule``: a graph for each length of input, all with the same parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx.devices import Context
from flowmx.errors import StateError
from flowmx.module.base import BaseModule, Binding, GivenParams, OptimizerParams
from flowmx.module.module import Module
from flowmx.name import NameManager
from flowmx.ndarray import NDArray


def _current(name: str, doc: str) -> Any:
    """A property that is the one of the current bucket's module."""
    return property(lambda self: getattr(self._current, name), doc=doc)


class BucketingModule(BaseModule):
    """Modules that share their parameters, one for each *bucket*: for sequences of several lengths.

    Each batch says by its ``bucket_key`` which it belongs to. Graphs are made when their bucket comes first.

    Args:
        sym_gen: called with a key, returns a symbol, the names of its inputs and those of its labels.
        default_bucket_key: the key of the graph that is bound first, which needs all parameters, and should be the
            largest.
        logger: where training is logged to.
        context: as for :class:`Module`, as are those that follow.
        work_load_list: see there.
        fixed_param_names: see there.
        state_names: see there.
        group2ctxs: see there.
        compression_params: see there.

    Raises:
        ValueError: there is no default key.

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
        default_bucket_key: Any = None,
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Any = None,
    ) -> None:
        super().__init__(logger)
        if default_bucket_key is None:
            raise ValueError("BucketingModule: default_bucket_key is missing: give the key of the largest bucket")
        self._default_bucket_key = default_bucket_key
        self._sym_gen = sym_gen
        self._arguments: dict[str, Any] = {
            "context": context, "work_load_list": work_load_list, "fixed_param_names": fixed_param_names,
            "state_names": state_names, "group2ctxs": group2ctxs, "compression_params": compression_params,
        }  # fmt: skip
        self._buckets: dict[Any, Module] = {}
        self._grad_req: Any = "write"
        self._monitor: Any = None
        self._default = self._made(default_bucket_key)  # says what is wrong
        self._current = self._default
        self._curr_bucket_key = default_bucket_key

    def _made(self, key: Any) -> Module:
        with NameManager():  # each graph names its layers as the others do
            symbol, data_names, label_names = self._sym_gen(key)
        return Module(symbol, data_names, label_names, logger=self.logger, **self._arguments)

    # -- what it is ------------------------------------------------------------------------------------

    symbol = _current("symbol", "The symbol of the bucket that is current.")
    data_names = _current("data_names", "Names of the inputs.")
    label_names = _current("label_names", "Names of the labels.")
    output_names = _current("output_names", "Names of the outputs.")
    data_shapes = _current("data_shapes", "Describes the inputs it is bound with.")
    label_shapes = _current("label_shapes", "Describes the labels it is bound with, if any.")
    output_shapes = _current("output_shapes", "Names and shapes of the outputs.")

    # -- binding ---------------------------------------------------------------------------------------

    def _bind(self, given: Binding) -> None:
        given.check_unshared(self)
        self._default.bind(*given._replace(force_rebind=True))
        # The graphs of other buckets are made as their batches come.
        self._buckets = {self._default_bucket_key: self._default}
        self._current, self._curr_bucket_key = self._default, self._default_bucket_key
        self._grad_req = given.grad_req

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Go over to a bucket, whose graph is made where there is none yet.

        Args:
            bucket_key: its key.
            data_shapes: as for :meth:`bind`, of its batches.
            label_shapes: likewise.

        Raises:
            RuntimeError: it is not bound.
            ValueError: its graph has parameters that the default one has not.
        """
        if not self.binded:
            raise StateError("switch_bucket: the module is not bound: call bind() first")
        if bucket_key not in self._buckets:
            made = self._made(bucket_key)
            self._check_params(bucket_key, made)
            made.bind(
                data_shapes, label_shapes, self.for_training, self.inputs_need_grad, shared_module=self._default,
                grad_req=self._grad_req,
            )  # fmt: skip
            if self._monitor is not None:
                made.install_monitor(self._monitor)
            self._buckets[bucket_key] = made
        self._current, self._curr_bucket_key = self._buckets[bucket_key], bucket_key

    def _check_params(self, key: Any, made: Module) -> None:
        known = {*self._default._param_names, *self._default._aux_names}
        extra = [name for name in (*made._param_names, *made._aux_names) if name not in known]
        if extra:
            raise ValueError(
                f"switch_bucket: the graph of bucket {key!r} has a parameter {extra[0]!r}, which that of the default "
                f"bucket {self._default_bucket_key!r} has not: give layers and begin states names of their own, "
                "and let the default bucket have all parameters"
            )

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Make the graph of a batch's bucket, with the rows that it needs, and stay with the current one.

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
                "BucketingModule: the batch has no bucket_key: use an iterator that gives one, such as "
                "mx.rnn.BucketSentenceIter"
            )
        self.switch_bucket(key, batch.provide_data, batch.provide_label)

    # -- parameters ------------------------------------------------------------------------------------

    def _init_params(self, initializer: Callable[..., Any] | None, given: GivenParams) -> None:
        if self.params_initialized and not given.force_init:
            return
        self._default.init_params(initializer, *given)
        self.params_initialized = True

    def _set_params(self, given: GivenParams) -> None:
        self._default.set_params(*given)
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        self._check_ready("get_params")
        return self._default.get_params()

    def get_states(self, merge_multi_context: bool = True) -> Any:
        """The arrays of ``state_names``; see :meth:`Module.get_states`."""
        return self._current.get_states(merge_multi_context)

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the arrays of ``state_names``; see :meth:`Module.set_states`."""
        self._current.set_states(states, value)

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """As :meth:`Module.save_checkpoint`, with the symbol of the default bucket."""
        self._default.save_checkpoint(prefix, epoch, save_optimizer_states, remove_amp_cast)

    @staticmethod
    def load(
        prefix: str, epoch: int, sym_gen: Any = None, default_bucket_key: Any = None, **kwargs: Any
    ) -> BucketingModule:
        """A module with the parameters of a checkpoint.

        Args:
            prefix: of the files' names.
            epoch: the number of epochs done.
            sym_gen: as for the class; the checkpoint has but one symbol.
            default_bucket_key: as for the class.
            **kwargs: likewise.
        """
        made = BucketingModule(sym_gen, default_bucket_key, **kwargs)
        loaded = Module.load(prefix, epoch, data_names=made.data_names, label_names=made.label_names)
        made._begin_with(loaded._arg_params, loaded._aux_params)
        return made

    @staticmethod
    def load_dict(
        sym_dict: Mapping[Any, Any], sym_gen: Any, default_bucket_key: Any, arg_params: dict[str, NDArray],
        aux_params: dict[str, NDArray], **kwargs: Any,
    ) -> BucketingModule:  # fmt: skip
        """A module with given symbols and parameters.

        Args:
            sym_dict: from key to symbol, for some of the buckets.
            sym_gen: as for the class.
            default_bucket_key: likewise.
            arg_params: parameters by name.
            aux_params: auxiliary states by name.
            **kwargs: as for the class.
        """

        def generate(key: Any) -> tuple[Any, Any, Any]:
            symbol, data_names, label_names = sym_gen(key)
            return sym_dict.get(key, symbol), data_names, label_names

        made = BucketingModule(generate, default_bucket_key, **kwargs)
        made._begin_with(arg_params, aux_params)
        return made

    def _begin_with(self, arg_params: dict[str, NDArray], aux_params: dict[str, NDArray]) -> None:
        """Take parameters over, before anything is bound."""
        self._default._arg_params, self._default._aux_params = arg_params, aux_params
        self._default.params_initialized = self.params_initialized = True

    # -- training --------------------------------------------------------------------------------------

    def _init_optimizer(
        self, kvstore: Any, optimizer: Any, optimizer_params: OptimizerParams, force_init: bool
    ) -> None:
        self._default.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        for each in self._buckets.values():
            if each is not self._default:
                each.borrow_optimizer(self._default)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch, by the graph of its bucket."""
        self._check_ready("forward")
        self._switch_for(data_batch)
        self._current.forward(data_batch, is_train)

    def forward_backward(self, data_batch: Any) -> None:
        if type(self).forward is not BucketingModule.forward or type(self).backward is not BucketingModule.backward:
            super().forward_backward(data_batch)  # somebody's own
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

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        return self._current.get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        return self._current.get_input_grads(merge_multi_context)

    def install_monitor(self, mon: Any) -> None:
        self._monitor = mon
        for each in self._buckets.values():
            each.install_monitor(mon)

    def _measured(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        return self._current._measured(labels)

    # -- what fit asks ---------------------------------------------------------------------------------

    def _trained(self) -> list[Module]:
        return [self._default]

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        return await self._default._begin_fit(epoch, batch)

    async def _end_epoch(self, epoch: int) -> int:
        return await self._default._end_epoch(epoch)

    async def _synchronized(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        return await self._default._synchronized()
