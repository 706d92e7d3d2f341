"""The base of all optimizers: learning rates, weight decay, update counts; a subclass adds its formula."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, TypeAlias

import numpy as np

from flowmx import ndarray as nd
from flowmx.engine.origin import warn_user
from flowmx.errors import MXNetError
from flowmx.lr_scheduler import LRScheduler
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import is_floating, name_of
from flowmx.optimizer import plain_data
from flowmx.registry import Recorded, Registry
from flowmx.semantics import semantics
from flowmx.suggestions import refuse_unknown

Index: TypeAlias = int | str
State: TypeAlias = Any
"""None, an array, a number, or a tuple or list of states."""

_DECAYED = ("_weight", "_gamma")
"""Names of parameters end so, where weight decay is meant for them."""

_LIVE = ("rescale_grad", "wd", "clip_gradient", "lr", "multi_precision", "begin_num_update")
"""Attributes whose value at pickling counts, since scripts may set them after construction."""

_ELSEWHERE = ("sym", "param_dict", "param_idx2name", "lr_scheduler")
"""Arguments that do not travel as they are."""


class Optimizer(Recorded):
    """Base of all optimizers.

    A subclass writes its formula in :meth:`step`, and the state it keeps for a weight in
    :meth:`create_state`. One that overrides :meth:`update`, as MXNet's do, works as well.

    Args:
        rescale_grad: the factor that gradients are multiplied with first, often ``1 / batch_size``.
        param_idx2name: from index to name, for multipliers by name.
        wd: weight decay; it counts for parameters whose names end in ``_weight`` or ``_gamma``.
        clip_gradient: bound on the absolute value of each element of a rescaled gradient.
        learning_rate: overrides the schedule's ``base_lr``; without a schedule the default is 0.01.
        lr_scheduler: gives the learning rate for a number of updates.
        sym: a symbol whose ``__lr_mult__`` and ``__wd_mult__`` attributes count.
        begin_num_update: the number of updates to start from.
        multi_precision: keep a float32 copy of float16 and bfloat16 weights and update that.
        param_dict: from index to ``gluon.Parameter``, whose ``lr_mult`` and ``wd_mult`` count.

    Raises:
        TypeError: ``param_idx2name`` is no mapping.
    """

    rates_together: ClassVar[bool] = False
    """True where ``_get_lrs`` and ``_get_wds`` are asked for the rates of all weights, as by MXNet's SGD and LARS;
    the others ask ``_get_lr`` and ``_get_wd`` for each. It tells which of them a subclass may replace."""

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[Index, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Index, Any] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown)
        if param_idx2name is not None and not isinstance(param_idx2name, Mapping):
            raise TypeError(f"param_idx2name is {param_idx2name!r}, expected a dict from index to name")
        if lr_scheduler is None and learning_rate is None:
            learning_rate = 0.01
        self.rescale_grad = rescale_grad
        if learning_rate is not None:
            _check_rate(learning_rate)
        self.lr_scheduler = lr_scheduler
        self.lr = learning_rate
        if lr_scheduler is not None and learning_rate not in (None, getattr(lr_scheduler, "base_lr", None)):
            lr_scheduler.base_lr = learning_rate
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.begin_num_update = begin_num_update
        self.num_update = begin_num_update
        self.aggregate_num = 0
        self.allow_np_array = semantics.get().array  # of MXNet, for programs that ask: here steps take both kinds
        self.idx2name: dict[Index, str] = dict(param_idx2name or {})
        self.param_dict: dict[Index, Any] = dict(param_dict or {})
        self.sym_info = (sym.attr_dict(), sym.list_arguments()) if sym is not None else ()
        self.lr_mult: dict[Index, float] = {}
        self.wd_mult: dict[Index, float] = {}
        # A weight that lives on several devices is updated on each, and its updates count once for each.
        self._all_index_update_counts: dict[int, dict[Index, int]] = {0: {}}
        self._index_update_count = self._all_index_update_counts[0]
        self.set_lr_mult({})
        self.set_wd_mult({})

    whole_array: ClassVar[bool] = False
    """True where a step needs the whole weight, as for a norm (LAMB, LARS): distributed stores do not split it."""

    by_rows: ClassVar[bool] = False
    """True where row_sparse gradients are taken by rows: of those the weights and states are updated, of no others."""

    # -- what a subclass writes ------------------------------------------------------------------------

    def create_state(self, index: Index, weight: NDArray) -> State:
        """The state of a weight between updates: arrays like it, or None."""
        return None

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        """The formula: change ``weight`` and ``state`` in place.

        Args:
            weight: the weight.
            grad: its gradient, neither rescaled nor clipped yet (see :meth:`fused` and :meth:`scaled`).
            state: the result of :meth:`create_state`.
            lr: this weight's learning rate.
            wd: this weight's decay.
            t: the number of updates of this weight, this one included.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement step() or update()")

    def fused(self, **parameters: Any) -> dict[str, Any]:
        """The parameters of an update operator, with those that all of them take."""
        parameters["rescale_grad"] = self.rescale_grad
        if self.clip_gradient:
            parameters["clip_gradient"] = self.clip_gradient
        return parameters

    def scaled(self, grad: NDArray, weight: NDArray | None = None, wd: float = 0.0) -> NDArray:
        """The gradient rescaled, with the decay of ``weight`` added where one is given, then clipped."""
        grad = grad * self.rescale_grad
        if weight is not None:
            grad = grad + wd * weight
        return self.clipped(grad)

    def clipped(self, grad: NDArray) -> NDArray:
        """The gradient with its elements in ``[-clip_gradient, clip_gradient]``."""
        if self.clip_gradient is None:
            return grad
        clipped: NDArray = nd.op.clip(grad, -self.clip_gradient, self.clip_gradient)
        return clipped

    # -- updating --------------------------------------------------------------------------------------

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update a weight in place, or each of a list of weights.

        Args:
            index: the weight's index, an int or str, for multipliers and counts.
            weight: the weight.
            grad: its gradient.
            state: the result of :meth:`create_state`.
        """
        for each in each_update(index, weight, grad, state):
            self._update_one(*each)

    def _update_one(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        self._update_count(index)
        count = self._index_update_count[index]
        self.step(weight, grad, state, self._get_lr(index), self._get_wd(index), count)

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> State:
        """The state of a weight; for a 16-bit weight under ``multi_precision`` with its float32 copy."""
        if not _is_half(weight):
            return self.create_state(index, weight)
        if self.multi_precision:
            master = weight.astype(np.float32)
            return (master, self.create_state(index, master))
        warnings.warn(
            f"{type(self).__name__} accumulates in {name_of(weight._dtype)}, which can train slowly or badly: consider "
            "multi_precision=True",
            stacklevel=2,
        )
        return self.create_state(index, weight)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update a weight (or each of a list), a 16-bit one by way of its float32 copy.

        Args:
            index: as for :meth:`update`.
            weight: as for :meth:`update`.
            grad: as for :meth:`update`.
            state: the result of :meth:`create_state_multi_precision`.
        """
        for i, w, g, s in each_update(index, weight, grad, state):
            if self._has_master(w):
                master, inner = s
                self.update(i, master, g.astype(np.float32), inner)
                master.copyto(w)
            else:
                self.update(i, w, g, s)

    def _has_master(self, weight: NDArray) -> bool:
        """True where a float32 master copy of the weight is updated."""
        return self.multi_precision and _is_half(weight)

    def _update_count(self, index: Any) -> None:
        counts = self._index_update_count
        for each in index if isinstance(index, (list, tuple)) else (index,):
            counts[each] = counts.get(each, self.begin_num_update) + 1
            self.num_update = max(self.num_update, counts[each])

    def _set_current_context(self, device_id: int) -> None:
        self._index_update_count = self._all_index_update_counts.setdefault(device_id, {})

    # -- learning rates and weight decay ---------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """The current learning rate."""
        if self.lr_scheduler is not None:
            return self.lr_scheduler(self.num_update)
        assert self.lr is not None
        return self.lr

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate.

        Raises:
            UserWarning: a schedule decides the learning rate (what MXNet raises).
        """
        if self.lr_scheduler is not None:
            raise UserWarning(
                "set_learning_rate: this optimizer has an lr_scheduler, which decides the learning rate; set "
                "optimizer.lr_scheduler.base_lr, or make the optimizer without one"
            )
        _check_rate(lr)
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Index, float]) -> None:
        """Set the factors on the learning rate by parameter name (or index).

        They come on top of the symbol's ``__lr_mult__`` attributes; what an earlier call set is forgotten.
        """
        self.lr_mult = self._attribute("__lr_mult__") | dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Index, float]) -> None:
        """Set the factors on the weight decay by parameter name (or index).

        They come on top of the symbol's ``__wd_mult__`` attributes, and of 0 for every known parameter whose
        name ends neither in ``_weight`` nor in ``_gamma``; what an earlier call set is forgotten.
        """
        undecayed: dict[Index, float] = {name: 0.0 for name in self.idx2name.values() if not name.endswith(_DECAYED)}
        self.wd_mult = undecayed | self._attribute("__wd_mult__") | dict(args_wd_mult)

    def _attribute(self, key: str) -> dict[Index, float]:
        if not self.sym_info:
            return {}
        attributes, arguments = self.sym_info
        return {name: float(attributes[name][key]) for name in arguments if key in attributes.get(name, {})}

    def rates(self, indices: Sequence[Index]) -> Iterator[tuple[float, float]]:
        """The learning rate and the decay of each weight, asked for by the methods that MXNet's optimizer asks."""
        cls, own = type(self), Optimizer
        together = self.rates_together
        lrs = together or (cls._get_lr is own._get_lr and cls._get_lrs is own._get_lrs)
        wds = together or (cls._get_wd is own._get_wd and cls._get_wds is own._get_wds)
        found = (
            self._get_lrs(indices) if lrs else [self._get_lr(index) for index in indices],
            self._get_wds(indices) if wds else [self._get_wd(index) for index in indices],
        )
        if min(map(len, found)) < len(indices):
            raise MXNetError(f"{cls.__name__} has rates for {min(map(len, found))} of {len(indices)} weights")
        return zip(*found, strict=False)

    def _get_lr(self, index: Index) -> float:
        return self._get_lrs([index])[0]

    def _get_wd(self, index: Index) -> float:
        return self._get_wds([index])[0]

    def _get_lrs(self, indices: Sequence[Index]) -> list[float]:
        lr, params, other = self.learning_rate, self.param_dict, self._multiplier
        return [lr * (float(params[i].lr_mult) if i in params else other(i, "lr_mult")) for i in indices]

    def _get_wds(self, indices: Sequence[Index]) -> list[float]:
        return [self.wd * self._multiplier(i, "wd_mult") for i in indices] if self.wd else [0.0] * len(indices)

    def _multiplier(self, index: Index, kind: str) -> float:
        if index in self.param_dict:
            return float(getattr(self.param_dict[index], kind))
        table: dict[Index, float] = getattr(self, kind)
        if index in table:
            return table[index]
        return table.get(self.idx2name[index], 1.0) if index in self.idx2name else 1.0

    # -- travelling ------------------------------------------------------------------------------------

    def progress(self) -> dict[str, Any]:
        """The progress of training: the counts that a new optimizer needs, besides the states, to continue exactly."""
        counts = [[device, list(table.items())] for device, table in self._all_index_update_counts.items()]
        return {"num_update": self.num_update, "counts": counts}

    def set_progress(self, progress: Mapping[str, Any]) -> None:
        """Go on from what :meth:`progress` gave."""
        self.num_update = progress["num_update"]
        self._all_index_update_counts = {0: {}} | {device: dict(table) for device, table in progress["counts"]}
        self._index_update_count = self._all_index_update_counts[0]

    def rename(self, names: Mapping[Index, Index]) -> None:
        """Count updates by other indexes from here on."""
        for table in self._all_index_update_counts.values():
            renamed = {names.get(index, index): count for index, count in table.items()}
            table.clear()
            table.update(renamed)

    def get_config(self, leaves_schedule: bool = False) -> dict[str, Any]:
        """The optimizer as plain data: its registered name and the arguments that make it anew.

        Args:
            leaves_schedule: warn of a schedule that is no plain data; the one that loads this keeps its own.

        Raises:
            TypeError: its class is not registered, or an argument is no plain data.
        """
        name = next((key for key, cls in registry.classes.items() if cls is type(self)), None)
        if name is None:
            raise TypeError(f"get_config: {type(self).__qualname__} is not registered (@mx.optimizer.register)")
        config: dict[str, Any] = plain_data.of(
            {
                "optimizer": name,
                "arguments": {key: value for key, value in self.given.items() if key not in _ELSEWHERE},
                "attributes": {key: getattr(self, key) for key in _LIVE},
                "tables": {key: list(self._table(key).items()) for key in ("idx2name", "lr_mult", "wd_mult")},
            },
            type(self).__name__,
        )
        config["lr_scheduler"] = None if self.lr_scheduler is None else self._schedule_config(leaves_schedule)
        return config

    def _schedule_config(self, leaves: bool) -> dict[str, Any]:
        try:
            return plain_data.of_schedule(self.lr_scheduler, f"{type(self).__name__}, lr_scheduler")
        except TypeError as error:
            if not leaves:
                raise
            warn_user(f"{error}: whoever loads the states keeps its own schedule", _warned)
            return {"name": type(self.lr_scheduler).__name__, "left": True}

    def _table(self, key: str) -> dict[Index, Any]:
        # Parameters do not travel, but their multipliers do.
        known = self.param_dict.items() if key in ("lr_mult", "wd_mult") else ()
        return {**getattr(self, key), **{index: float(getattr(param, key)) for index, param in known}}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "param_dict": {}}

    # MXNet's names of the functions below.

    @staticmethod
    def register(klass: type[Optimizer]) -> type[Optimizer]:
        """Make an optimizer class known by its name in lower case; usable as a decorator."""
        return registry.register(klass)

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Optimizer:
        """Make an optimizer by name."""
        return create(name, **kwargs)


registry: Registry[Optimizer] = Registry(Optimizer, "optimizer")
register = registry.register
Optimizer.opt_registry = registry.classes  # type: ignore[attr-defined]


def create(name: str | Optimizer, **kwargs: Any) -> Optimizer:
    """Make an optimizer from its name, in any case, and its arguments.

    Raises:
        ValueError: there is no such optimizer.
    """
    return registry.create(name, **kwargs)


def from_config(config: Mapping[str, Any], before: Optimizer | None = None) -> Optimizer:
    """Make the optimizer that :meth:`Optimizer.get_config` described.

    Args:
        config: the description.
        before: the optimizer in whose place it comes: its schedule stays where the description leaves it out.

    Raises:
        ValueError: it names an optimizer or a schedule that does not exist here.
    """
    told = _rate_is_known.set(True)
    try:
        made = create(config["optimizer"], **plain_data.made(config["arguments"]))
    finally:
        _rate_is_known.reset(told)
    # Set afterwards: an argument learning_rate would overwrite where the schedule has come to.
    schedule = config["lr_scheduler"]
    if schedule is not None and schedule.get("left"):
        made.lr_scheduler = before.lr_scheduler if before is not None else None
    else:
        made.lr_scheduler = None if schedule is None else plain_data.schedule(schedule)
    vars(made).update(config["attributes"])
    vars(made).update({key: dict(table) for key, table in config["tables"].items()})
    return made


_warned: set[tuple[str, int]] = set()
_rate_is_known: ContextVar[bool] = ContextVar("flowmx_rate_is_known", default=False)
"""True where an optimizer is made anew from its description: who made the first was warned."""


def _check_rate(lr: Any) -> None:
    """Refuse a learning rate that is no number; warn of one with which nothing is learnt."""
    if isinstance(lr, (str, bytes)):
        raise TypeError(f"learning_rate is {lr!r}, expected a number")
    if isinstance(lr, (int, float)) and not 0 <= lr < math.inf and not _rate_is_known.get():
        warn_user(
            f"learning_rate is {lr}, expected a number from 0 up: the weights move away from what is learnt", _warned
        )


def _is_half(weight: NDArray) -> bool:
    """True for a weight of float16 or bfloat16."""
    return weight._dtype.itemsize == 2 and is_floating(weight._dtype)


def each_update(*given: Any) -> Any:
    """The arguments of one update, for each update that they mean."""
    return zip(*given, strict=True) if isinstance(given[0], (list, tuple)) else [given]


@register
class Test(Optimizer):
    """An optimizer for tests: adds the rescaled gradient to the weight, and keeps a copy of the weight as its state."""

    __test__ = False  # no test case, whatever its name says to pytest

    def create_state(self, index: Index, weight: NDArray) -> State:
        return zeros_like(weight)

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        weight += grad * self.rescale_grad
        weight.copyto(state)


def zeros_like(weight: NDArray, may_be_sparse: bool = False) -> NDArray:
    """Zeros with the shape, dtype and device of a weight, and its storage type if they may."""
    return nd.zeros(weight.shape, weight.context, weight.dtype, weight.stype if may_be_sparse else "default")
