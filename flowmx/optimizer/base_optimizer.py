"""The base class of all optimizers: learning rates, weight decay, update counts."""

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
from flowmx.keywords import refuse_unknown
from flowmx.lr_scheduler import LRScheduler
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import is_floating, name_of
from flowmx.optimizer import plain_data
from flowmx.overrides import is_replaced
from flowmx.registry import RecordsArguments, Registry
from flowmx.semantics import semantics

Index: TypeAlias = int | str
State: TypeAlias = Any
"""None, an array, a number, or a tuple or list of states."""

_DECAYED = ("_weight", "_gamma")
"""Suffixes of the names of parameters that weight decay applies to."""

_SAVED_ATTRIBUTES = ("rescale_grad", "wd", "clip_gradient", "lr", "multi_precision", "begin_num_update")
"""Attributes that are saved with their current values, because scripts may set them after construction."""

_DEFAULT_RATE = 0.01
"""The learning rate of optimizers and schedules that do not have another default."""
_warned_rates: set[tuple[str, int]] = set()
"""Lines at which an optimizer replaced the rate of its schedule."""
_SEPARATE = ("sym", "param_dict", "param_idx2name", "lr_scheduler")
"""Arguments that are saved in another form, or not at all."""


class Optimizer(RecordsArguments):
    """Base class of all optimizers.

    A subclass implements its update rule in :meth:`step`, and the state of a weight in
    :meth:`create_state`. A subclass that overrides :meth:`update`, as in MXNet, works as well.

    Args:
        rescale_grad: a factor of gradients, applied first, often ``1 / batch_size``.
        param_idx2name: the name of each index, for multipliers by name.
        wd: weight decay; it applies to parameters whose names end in ``_weight`` or ``_gamma``.
        clip_gradient: bound on the absolute value of each element of a rescaled gradient.
        learning_rate: overrides the schedule's ``base_lr``; without a schedule the default is 0.01.
        lr_scheduler: returns the learning rate for a number of updates.
        sym: a symbol whose ``__lr_mult__`` and ``__wd_mult__`` attributes are multipliers.
        begin_num_update: the initial number of updates.
        multi_precision: keep a float32 copy of float16 and bfloat16 weights and update that.
        param_dict: the ``gluon.Parameter`` of each index; its ``lr_mult`` and ``wd_mult`` are multipliers.

    Raises:
        TypeError: ``param_idx2name`` is not a mapping.
    """

    opt_registry: ClassVar[dict[str, type[Any]]]
    rates_together: ClassVar[bool] = False
    """True if updates call ``_get_lrs`` and ``_get_wds`` once for all weights, as in MXNet's SGD and LARS; False if
    they call ``_get_lr`` and ``_get_wd`` for each weight. Subclasses override the methods that are called."""

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
        **unknown: object,
    ) -> None:
        refuse_unknown(type(self), unknown)
        if param_idx2name is not None and not isinstance(param_idx2name, Mapping):
            raise TypeError(f"param_idx2name is {param_idx2name!r}, expected a dict from index to name")
        if lr_scheduler is None and learning_rate is None:
            learning_rate = _DEFAULT_RATE
        self.rescale_grad = rescale_grad
        if learning_rate is not None:
            _check_rate(learning_rate)
        _check_scheduler(lr_scheduler)
        self.lr_scheduler = lr_scheduler
        self.lr = learning_rate
        if lr_scheduler is not None and learning_rate is not None:
            _set_base_rate(lr_scheduler, learning_rate)
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.begin_num_update = begin_num_update
        self.num_update = begin_num_update
        self.aggregate_num = 0
        self.allow_np_array = semantics.get().array  # read by MXNet's scripts; steps take both kinds of arrays here
        self.idx2name: dict[Index, str] = dict(param_idx2name or {})
        self.param_dict: dict[Index, Any] = dict(param_dict or {})
        self.sym_info = (sym.attr_dict(), sym.list_arguments()) if sym is not None else ()
        self.lr_mult: dict[Index, float] = {}
        self.wd_mult: dict[Index, float] = {}
        # A weight on several devices is updated on each of them; each device has separate counts.
        self._all_index_update_counts: dict[int, dict[Index, int]] = {0: {}}
        self._index_update_count = self._all_index_update_counts[0]
        self.set_lr_mult({})
        self.set_wd_mult({})

    whole_array: ClassVar[bool] = False
    """True if a step needs the whole weight, for example its norm (LAMB, LARS): distributed stores do not split it."""

    by_rows: ClassVar[bool] = False
    """True if a row_sparse gradient updates only its rows of the weights and states."""

    _shared: ClassVar[tuple[str, ...]] = ()
    """Attributes, besides ``num_update``, that updates of all weights share."""

    def _follow_update(self, t: int) -> None:
        """Change the shared attributes as update number `t` of a weight does."""

    def _follow_counts(self, counts: Sequence[int]) -> None:
        """Change the shared attributes as updates of several weights do, up to these counts."""

    # -- implemented by subclasses ---------------------------------------------------------------------

    def create_state(self, index: Index, weight: NDArray) -> object:
        """Return the initial state of a weight: arrays of its shape, or None."""
        return None

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        """Apply the update rule: change ``weight`` and ``state`` in place.

        Args:
            weight: the weight.
            grad: its gradient, not yet rescaled or clipped (see :meth:`arguments` and :meth:`scale_gradient`).
            state: the result of :meth:`create_state`.
            lr: this weight's learning rate.
            wd: this weight's decay.
            t: the number of updates of this weight, including this one.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement step() or update()")

    def arguments(self, **parameters: object) -> dict[str, Any]:
        """Return the arguments of an update operator: ``parameters`` and those common to all update operators."""
        parameters["rescale_grad"] = self.rescale_grad
        if self.clip_gradient:
            parameters["clip_gradient"] = self.clip_gradient
        return parameters

    def scale_gradient(self, grad: NDArray, weight: NDArray | None = None, wd: float = 0.0) -> NDArray:
        """Return the gradient rescaled, with the decay of ``weight`` (if any) added, then clipped."""
        grad = grad * self.rescale_grad
        if weight is not None:
            grad = grad + wd * weight
        return self.clip(grad)

    def clip(self, grad: NDArray) -> NDArray:
        """Return the gradient with its elements clipped to ``[-clip_gradient, clip_gradient]``."""
        if self.clip_gradient is None:
            return grad
        clip: NDArray = nd.op.clip(grad, -self.clip_gradient, self.clip_gradient)
        return clip

    # -- updating --------------------------------------------------------------------------------------

    def update(self, index: object, weight: object, grad: object, state: object) -> None:
        """Update a weight, or a list of weights, in place.

        Args:
            index: the weight's index, an int or str, for multipliers and counts.
            weight: the weight.
            grad: its gradient.
            state: the result of :meth:`create_state`.
        """
        for update in each_update(index, weight, grad, state):
            self._update_one(*update)

    def _update_one(self, index: Index, weight: NDArray, grad: NDArray, state: State) -> None:
        self._update_count(index)
        count = self._index_update_count[index]
        self.step(weight, grad, state, self._get_lr(index), self._get_wd(index), count)

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> object:
        """Return the initial state of a weight; with ``multi_precision``, add a float32 copy of a 16-bit weight."""
        if not _is_half(weight):
            return self.create_state(index, weight)
        if self.multi_precision:
            master = weight.astype(np.float32)
            return (master, self.create_state(index, master))
        if not is_measuring.get():
            warnings.warn(
                f"{type(self).__name__} accumulates in {name_of(weight.element_type)}, which can train slowly or "
                "badly: consider multi_precision=True",
                stacklevel=2,
            )
        return self.create_state(index, weight)

    def update_multi_precision(self, index: object, weight: object, grad: object, state: object) -> None:
        """Update a weight or a list of weights; a 16-bit weight is updated through its float32 copy.

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
        """Return whether updates go through a float32 copy of the weight."""
        return self.multi_precision and _is_half(weight)

    def _update_count(self, index: object) -> None:
        counts, begin, most = self._index_update_count, self.begin_num_update, self.num_update
        for i in index if isinstance(index, (list, tuple)) else (index,):
            counts[i] = count = counts.get(i, begin) + 1
            if count > most:
                most = count
        self.num_update = most

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
            UserWarning: a schedule determines the learning rate (as in MXNet).
        """
        if self.lr_scheduler is not None:
            raise UserWarning(
                "set_learning_rate: this optimizer has an lr_scheduler, which determines the learning rate; set "
                "optimizer.lr_scheduler.base_lr, or create the optimizer without one"
            )
        _check_rate(lr)
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Index, float]) -> None:
        """Set the factors on the learning rate by parameter name (or index).

        They take precedence over the symbol's ``__lr_mult__`` attributes, and replace the factors of an earlier call.
        """
        self.lr_mult = self._attribute("__lr_mult__") | dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Index, float]) -> None:
        """Set the factors on the weight decay by parameter name (or index).

        They take precedence over the symbol's ``__wd_mult__`` attributes, and over 0 for every known parameter whose
        name ends neither in ``_weight`` nor in ``_gamma``; they replace the factors of an earlier call.
        """
        zeros: dict[Index, float] = {name: 0.0 for name in self.idx2name.values() if not name.endswith(_DECAYED)}
        self.wd_mult = zeros | self._attribute("__wd_mult__") | dict(args_wd_mult)

    def _attribute(self, key: str) -> dict[Index, float]:
        if not self.sym_info:
            return {}
        attributes, arguments = self.sym_info
        return {name: float(attributes[name][key]) for name in arguments if key in attributes.get(name, {})}

    def rates(self, indices: Sequence[Index]) -> Iterator[tuple[float, float]]:
        """Return the learning rate and the decay of each weight, from the methods that MXNet's optimizer calls."""
        all_at_once = self.rates_together
        lrs = all_at_once or not any(is_replaced(self, name, _RATES[name]) for name in ("_get_lr", "_get_lrs"))
        wds = all_at_once or not any(is_replaced(self, name, _RATES[name]) for name in ("_get_wd", "_get_wds"))
        columns = (
            self._get_lrs(indices) if lrs else [self._get_lr(index) for index in indices],
            self._get_wds(indices) if wds else [self._get_wd(index) for index in indices],
        )
        if min(map(len, columns)) < len(indices):
            raise MXNetError(f"{type(self).__name__} has rates for {min(map(len, columns))} of {len(indices)} weights")
        return zip(*columns, strict=False)

    def _get_lr(self, index: Index) -> float:
        return self._get_lrs([index])[0]

    def _get_wd(self, index: Index) -> float:
        return self._get_wds([index])[0]

    def _get_lrs(self, indices: Sequence[Index]) -> list[float]:
        lr, params, multiplier = self.learning_rate, self.param_dict, self._multiplier
        return [lr * (float(params[i].lr_mult) if i in params else multiplier(i, "lr_mult")) for i in indices]

    def _get_wds(self, indices: Sequence[Index]) -> list[float]:
        return [self.wd * self._multiplier(i, "wd_mult") for i in indices] if self.wd else [0.0] * len(indices)

    def _multiplier(self, index: Index, kind: str) -> float:
        if index in self.param_dict:
            return float(getattr(self.param_dict[index], kind))
        table: dict[Index, float] = getattr(self, kind)
        if index in table:
            return table[index]
        return table.get(self.idx2name[index], 1.0) if index in self.idx2name else 1.0

    # -- saving ----------------------------------------------------------------------------------------

    def progress(self) -> dict[str, Any]:
        """Return, as plain data, the counts that another optimizer needs besides the states to continue exactly."""
        counts = [[device, list(table.items())] for device, table in self._all_index_update_counts.items()]
        return {"num_update": self.num_update, "counts": counts}

    def set_progress(self, progress: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`progress`."""
        self.num_update = progress["num_update"]
        self._all_index_update_counts = {0: {}} | {device: dict(table) for device, table in progress["counts"]}
        self._index_update_count = self._all_index_update_counts[0]

    def rename(self, names: Mapping[Index, Index]) -> None:
        """Rename the indices of the update counts."""
        for table in self._all_index_update_counts.values():
            counts = {names.get(index, index): count for index, count in table.items()}
            table.clear()
            table.update(counts)

    def get_config(self, may_omit_schedule: bool = False) -> dict[str, Any]:
        """Return the optimizer as plain data: its registered name and its arguments.

        Args:
            may_omit_schedule: omit a schedule that cannot be saved, with a warning; the optimizer that loads the
                result keeps its schedule. If False, raise an error.

        Raises:
            TypeError: the class is not registered, or an argument cannot be saved.
        """
        name = next((key for key, cls in registry.classes.items() if cls is type(self)), None)
        if name is None:
            raise TypeError(f"get_config: {type(self).__qualname__} is not registered (@mx.optimizer.register)")
        config: dict[str, Any] = plain_data.to_plain(
            {
                "optimizer": name,
                "arguments": {key: value for key, value in self.init_arguments.items() if key not in _SEPARATE},
                "attributes": {key: getattr(self, key) for key in _SAVED_ATTRIBUTES},
                "tables": {key: list(self._table(key).items()) for key in ("idx2name", "lr_mult", "wd_mult")},
            },
            type(self).__name__,
        )
        config["lr_scheduler"] = None if self.lr_scheduler is None else self._schedule_config(may_omit_schedule)
        return config

    def _schedule_config(self, may_omit: bool) -> dict[str, Any]:
        try:
            return plain_data.schedule_to_plain(self.lr_scheduler, f"{type(self).__name__}, lr_scheduler")
        except TypeError as error:
            if not may_omit:
                raise
            warn_user(f"{error}: an optimizer that loads the states keeps its schedule", _warned)
            return {"name": type(self.lr_scheduler).__name__, "left": True}

    def _table(self, key: str) -> dict[Index, Any]:
        # Parameters are not saved, but their multipliers are.
        params = self.param_dict.items() if key in ("lr_mult", "wd_mult") else ()
        return {**getattr(self, key), **{index: float(getattr(param, key)) for index, param in params}}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "param_dict": {}}

    # MXNet also has the functions below as methods.

    @staticmethod
    def register(klass: type[Optimizer]) -> type[Optimizer]:
        """Register an optimizer class by its name in lower case; usable as a decorator."""
        return registry.register(klass)

    @staticmethod
    def create_optimizer(name: str, **kwargs: object) -> Optimizer:
        """Make an optimizer by name."""
        return create(name, **kwargs)


_RATES = {name: getattr(Optimizer, name) for name in ("_get_lr", "_get_lrs", "_get_wd", "_get_wds")}
registry: Registry[Optimizer] = Registry(Optimizer, "optimizer")
register = registry.register
Optimizer.opt_registry = registry.classes


def create(name: str | Optimizer, **kwargs: object) -> Optimizer:
    """Make an optimizer from its name, in any case, and its arguments.

    Raises:
        ValueError: the optimizer's name is unknown.
    """
    return registry.create(name, **kwargs)


def from_config(config: Mapping[str, Any], previous: Optimizer | None = None) -> Optimizer:
    """Make the optimizer that :meth:`Optimizer.get_config` described.

    Args:
        config: the description.
        previous: the optimizer to replace; its schedule is kept if the description omits one.

    Raises:
        ValueError: the optimizer's or the schedule's class is not defined here.
    """
    token = _is_restoring.set(True)
    try:
        optimizer = create(config["optimizer"], **plain_data.from_plain(config["arguments"]))
    finally:
        _is_restoring.reset(token)
    # Set afterwards: an argument learning_rate would overwrite the schedule's current rate.
    schedule = config["lr_scheduler"]
    if schedule is not None and schedule.get("left"):
        optimizer.lr_scheduler = previous.lr_scheduler if previous is not None else None
    else:
        optimizer.lr_scheduler = None if schedule is None else plain_data.schedule_from_plain(schedule)
    vars(optimizer).update(config["attributes"])
    vars(optimizer).update({key: dict(table) for key, table in config["tables"].items()})
    return optimizer


_warned: set[tuple[str, int]] = set()
is_measuring: ContextVar[bool] = ContextVar("flowmx_is_measuring", default=False)
"""True while the size of states is measured: only training warns."""
_is_restoring: ContextVar[bool] = ContextVar("flowmx_is_restoring", default=False)
"""True while an optimizer is made from its description: the original has already warned."""


def _set_base_rate(schedule: LRScheduler, rate: float) -> None:
    """Set the base rate of a schedule; warn if this replaces one that was chosen, such as with Adam's default rate."""
    base = getattr(schedule, "base_lr", None)
    if base == rate:
        return
    if base not in (None, _DEFAULT_RATE):
        warn_user(
            f"the optimizer's learning rate, {rate}, replaces that of its schedule, base_lr={base}, as in MXNet: pass "
            f"learning_rate={base} to keep it",
            _warned_rates,
        )
    schedule.base_lr = rate


def _check_scheduler(lr_scheduler: object) -> None:
    if not (lr_scheduler is None or callable(lr_scheduler)):
        warn_user(
            f"lr_scheduler is {lr_scheduler!r}, expected a schedule such as mx.lr_scheduler.FactorScheduler(1000); a "
            "constant rate is learning_rate",
            set(),
        )


def _check_rate(lr: object) -> None:
    """Raise if a learning rate is not a number; warn if it is negative or infinite."""
    if isinstance(lr, (str, bytes)):
        raise TypeError(f"learning_rate is {lr!r}, expected a number")
    if isinstance(lr, (int, float)) and not 0 <= lr < math.inf and not _is_restoring.get():
        warn_user(f"learning_rate is {lr}, expected a non-negative, finite number: training will diverge", _warned)


def _is_half(weight: NDArray) -> bool:
    """Return whether a weight is float16 or bfloat16."""
    return weight.element_type.itemsize == 2 and is_floating(weight.element_type)


def each_update(*arguments: object) -> Any:
    """Iterate over the arguments of single updates; the arguments are lists, or belong to one update."""
    return zip(*arguments, strict=True) if isinstance(arguments[0], (list, tuple)) else [arguments]


@register
class Test(Optimizer):
    """An optimizer for tests: adds the rescaled gradient to the weight, and keeps a copy of the weight as its state."""

    __test__ = False  # not a test case for pytest

    def create_state(self, index: Index, weight: NDArray) -> object:
        return zeros_like(weight)

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        weight += grad * self.rescale_grad
        weight.copyto(state)


def zeros_like(weight: NDArray, may_be_sparse: bool = False) -> NDArray:
    """Return zeros with the shape, dtype and device of a weight, and with its storage type if allowed."""
    return nd.zeros(weight.shape, weight.context, weight.dtype, weight.stype if may_be_sparse else "default")
