"""Overflow checks of a trainer in mixed precision: the overflowing operator is named, and so is an unscaled loss."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakSet, finalize

from flowmx import autograd
from flowmx.amp.scaler import LossScaler, all_finite, log
from flowmx.engine import describe, origin
from flowmx.errors import MXNetError
from flowmx.ndarray import NDArray
from flowmx.ndarray.recording import Leaf, TapeNode
from flowmx.observability.safety import Finding, Watch, watch
from flowmx.observability.safety.steps import current_step


class UnscaledLossError(MXNetError, ValueError):
    """A step was asked for whose gradients come from a loss that was not scaled."""


class AmpWarning(UserWarning):
    """Something about mixed precision that lets training diverge silently."""


class OverflowWarning(AmpWarning):
    """An operator overflows where a smaller loss scale can not help."""


class Overflow(NamedTuple):
    """A step that was left out.

    Attributes:
        step: its number.
        loss_scale: the factor of its loss.
        parameters: names of those whose gradients are not finite.
        finding: the first operator with an output that is not finite; None where nothing watched, as in the first of
            several such steps.
    """

    step: int
    loss_scale: float
    parameters: tuple[str, ...]
    finding: Finding | None

    def __str__(self) -> str:
        shown = ", ".join(self.parameters[:3]) + (", ..." if len(self.parameters) > 3 else "")
        cause = f": {self.finding}" if self.finding is not None else ""
        return (
            f"step {self.step} was left out, since the gradients of {shown} are not finite, at the loss scale "
            f"{self.loss_scale:g}{cause}"
        )


class Guard:
    """The overflow check that a trainer runs before each update in mixed precision.

    While a step has overflowed, and at first, the following one is watched operator by operator, so that what overflows
    again and again is named; steps after a good one cost nothing but the check of the gradients.

    Args:
        params: the trainer's parameters.
        scaler: the loss scale.

    Attributes:
        last_overflow: the last step that was left out.
    """

    def __init__(self, params: Sequence[Any], scaler: LossScaler) -> None:
        self.scaler = scaler
        self.last_overflow: Overflow | None = None
        self._params = params
        self._scaled: set[TapeNode] = set()
        self._unscaled: str | None = None
        self._told: set[tuple[str, str | None]] = set()
        origin.names_layers += 1
        _guards.add(self)
        _recorder.arm(self)
        self._close = finalize(self, _let_go)

    def disarm(self) -> None:
        """Look at nothing any more."""
        _guards.discard(self)
        _recorder.disarm(self)
        self._close()

    # -- losses ----------------------------------------------------------------------------------------

    def is_scaled(self, losses: Sequence[NDArray]) -> None:
        """Say that these are scaled losses."""
        self._scaled.update(each._entry.node for each in losses if isinstance(_node(each), TapeNode))  # type: ignore[union-attr, misc]

    def see(self, heads: Sequence[NDArray]) -> None:
        """Look at what a backward pass begins with: whether it reaches a parameter other than by a scaled loss."""
        if self.scaler.loss_scale == 1 or self._unscaled is not None:
            return
        for head in heads:
            node = _node(head)
            if isinstance(node, TapeNode) and (name := self._reached_from(node)) is not None:
                layer = node.origin[2] if node.origin is not None else None
                where = f" of layer {layer!r}" if layer else ""
                self._unscaled = (
                    f"the loss {node.name!r}{where} (shape {head.shape}, computed at {describe(node.origin)}) was not "
                    f"scaled, and its gradient has reached parameter {name!r}"
                )
                return

    def _reached_from(self, head: TapeNode) -> str | None:
        """The name of a parameter that a head depends on, and not by a scaled loss alone."""
        seen, stack = {head}, [head]
        while stack:
            node = stack.pop()
            if node in self._scaled:
                continue
            for entry in node.entries:
                if entry is None or entry.node in seen:
                    continue
                if isinstance(entry.node, Leaf):
                    name = self._name_of(entry.node)
                    if name is not None:
                        return name
                else:
                    seen.add(entry.node)
                    stack.append(entry.node)
        return None

    def _name_of(self, leaf: Leaf) -> str | None:
        for param in self._params:
            if any(leaf.grad is grad for grad in (param._grads or {}).values()):
                return str(param.name)
        return None

    # -- steps -----------------------------------------------------------------------------------------

    def skips(self) -> bool:
        """Tell whether the step overflowed and is to be skipped. Blocks until its gradients are computed.

        Raises:
            UnscaledLossError: its loss was not scaled.
        """
        self._check_scaled()
        is_finite = bool(self.scaler.finite(self._params).asscalar())
        flags = {} if is_finite else self._flags()
        return self._settle(is_finite, [name for name, flag in flags.items() if not flag.asscalar()])

    async def skips_async(self) -> bool:
        """As :meth:`skips`, awaiting the gradients."""
        self._check_scaled()
        is_finite = bool((await self.scaler.finite(self._params)).asscalar())
        flags = {} if is_finite else self._flags()
        return self._settle(is_finite, [name for name, flag in flags.items() if not (await flag).asscalar()])

    def _check_scaled(self) -> None:
        self._scaled.clear()
        unscaled, self._unscaled = self._unscaled, None
        if unscaled is not None:
            raise UnscaledLossError(
                f"step: {unscaled}. The update would be {self.scaler.loss_scale:g} times too small: call backward() on "
                "what `with amp.scale_loss(loss, trainer) as scaled_loss` gives"
            )

    def _flags(self) -> dict[str, NDArray]:
        """Arrays of shape (1,) by parameter name: 1 where the gradient is finite, else 0."""
        return {str(p.name): all_finite(p.list_grad()[:1]) for p in self._params if p.grad_req != "null"}

    def _settle(self, is_finite: bool, overflown: Sequence[str]) -> bool:
        """Let the loss scale follow, and say what has overflowed: the gradients of these parameters."""
        finding, scale = _recorder.take(), self.scaler.loss_scale
        if self.scaler.settle(is_finite):
            self.last_overflow = Overflow(current_step(), scale, tuple(overflown), finding)
            _recorder.arm(self)
            self._tell(self.last_overflow)
        else:
            _recorder.disarm(self)
        return not is_finite

    def _tell(self, overflow: Overflow) -> None:
        finding = overflow.finding
        if finding is None or (finding.is_backward and not self.scaler.is_least):
            log.info("AMP: %s", overflow)
            return
        if (finding.operator, finding.layer) in self._told:
            return
        self._told.add((finding.operator, finding.layer))
        if finding.is_backward:
            advice = "the loss scale can not become smaller: the gradients themselves are too large"
        else:
            advice = (
                "a smaller loss scale does not change the forward pass: keep the operator in float32 "
                f"(amp.init(fp32_ops=[..., {finding.operator!r}])), or look at what it is given"
            )
        warnings.warn(f"amp: {overflow}; {advice}", OverflowWarning, stacklevel=5)


def _node(array: NDArray) -> TapeNode | Leaf | None:
    return None if array._entry is None else array._entry.node


class _Recorder:
    """The watch that all guards share: on while one of them needs it."""

    def __init__(self) -> None:
        self._watch = Watch(stops=False)
        self._wanted: WeakSet[Guard] = WeakSet()
        self._is_on = False

    def arm(self, guard: Guard) -> None:
        """Watch from here on."""
        self._wanted.add(guard)
        if not self._is_on:
            self._is_on = True
            watch.everywhere(self._watch)

    def disarm(self, guard: Guard) -> None:
        """Watch no longer, for this guard."""
        self._wanted.discard(guard)
        self.tidy()

    def tidy(self) -> None:
        """Stop watching once no guard needs it."""
        # A set of weak references may still count a guard while that is being freed, but does not give it.
        if self._is_on and not list(self._wanted):
            self._is_on = False
            watch.no_longer(self._watch)

    def take(self) -> Finding | None:
        """Take the finding of the current step, or None; the recorder is empty afterwards."""
        found, self._watch.found = self._watch.found, None
        return found if found is not None and found.step == current_step() else None


_recorder = _Recorder()
_guards: WeakSet[Guard] = WeakSet()


def _see(heads: list[NDArray]) -> None:
    for guard in list(_guards):
        guard.see(heads)


autograd.before_backward.append(_see)


def _let_go() -> None:
    origin.names_layers -= 1
    _recorder.tidy()
