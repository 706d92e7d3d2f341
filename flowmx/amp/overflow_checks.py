"""Overflow checks of trainers in mixed precision. They report the overflowing operator, and unscaled losses."""

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
from flowmx.observability.safety import Finding, Watch, nan_watch
from flowmx.observability.safety.step_counter import current_step


class UnscaledLossError(MXNetError, ValueError):
    """The gradients of a step come from a loss that was not scaled."""


class AmpWarning(UserWarning):
    """A use of mixed precision that can make training diverge silently."""


class OverflowWarning(AmpWarning):
    """An operator overflows, and a smaller loss scale cannot prevent it."""


class Overflow(NamedTuple):
    """A step that was skipped.

    Attributes:
        step: its number.
        loss_scale: the scale of its loss.
        parameters: the names of the parameters with gradients that are not finite.
        finding: the first operator with an output that is not finite, or None if the NaN watch was off, as in the first
            of several such steps.
    """

    step: int
    loss_scale: float
    parameters: tuple[str, ...]
    finding: Finding | None

    def __str__(self) -> str:
        names = ", ".join(self.parameters[:3]) + (", ..." if len(self.parameters) > 3 else "")
        cause = f": {self.finding}" if self.finding is not None else ""
        return (
            f"step {self.step} was skipped, because the gradients of {names} are not finite, at the loss scale "
            f"{self.loss_scale:g}{cause}"
        )


class Guard:
    """The overflow check that a trainer runs before each update in mixed precision.

    In the first step and after an overflow the NaN watch checks each operator of the next step, to report an operator
    that overflows repeatedly. Other steps only check the gradients.

    Args:
        params: the trainer's parameters.
        scaler: the loss scale.

    Attributes:
        last_overflow: the last step that was skipped.
    """

    def __init__(self, params: Sequence[Any], scaler: LossScaler) -> None:
        self.scaler = scaler
        self.last_overflow: Overflow | None = None
        self._params = params
        self._scaled: set[TapeNode] = set()
        self._unscaled: str | None = None
        self._warned: set[tuple[str, str | None]] = set()
        origin.layer_name_users += 1
        _guards.add(self)
        _recorder.arm(self)
        self._close = finalize(self, _close_guard)

    def disarm(self) -> None:
        """Stop all checks."""
        _guards.discard(self)
        _recorder.disarm(self)
        self._close()

    # -- losses ----------------------------------------------------------------------------------------

    def mark_scaled(self, losses: Sequence[NDArray]) -> None:
        """Record scaled losses."""
        self._scaled.update(node for node in map(_node, losses) if isinstance(node, TapeNode))

    def check_heads(self, heads: Sequence[NDArray]) -> None:
        """Check whether the heads of a backward pass reach a parameter without a scaled loss."""
        if self.scaler.loss_scale == 1 or self._unscaled is not None:
            return
        for head in heads:
            node = _node(head)
            if isinstance(node, TapeNode) and (name := self._reached_param(node)) is not None:
                layer = node.origin[2] if node.origin is not None else None
                where = f" of layer {layer!r}" if layer else ""
                self._unscaled = (
                    f"the loss {node.name!r}{where} (shape {head.shape}, computed at {describe(node.origin)}) was not "
                    f"scaled, and its gradient has reached parameter {name!r}"
                )
                return

    def _reached_param(self, head: TapeNode) -> str | None:
        """Return the name of a parameter that a head depends on other than through a scaled loss, or None."""
        visited, stack = {head}, [head]
        while stack:
            node = stack.pop()
            if node in self._scaled:
                continue
            for entry in node.entries:
                if entry is None or entry.node in visited:
                    continue
                if isinstance(entry.node, Leaf):
                    name = self._name_of(entry.node)
                    if name is not None:
                        return name
                else:
                    visited.add(entry.node)
                    stack.append(entry.node)
        return None

    def _name_of(self, leaf: Leaf) -> str | None:
        for param in self._params:
            if any(leaf.grad is grad for grad in (param._grads or {}).values()):
                return str(param.name)
        return None

    # -- steps -----------------------------------------------------------------------------------------

    def must_skip(self) -> bool:
        """Return whether the step must be skipped because it overflowed. Blocks until its gradients are computed.

        Raises:
            UnscaledLossError: its loss was not scaled.
        """
        self._check_scaled()
        is_finite = bool(self.scaler.finite(self._params).asscalar())
        flags = {} if is_finite else self._flags()
        return self._finish_step(is_finite, [name for name, flag in flags.items() if not flag.asscalar()])

    async def must_skip_async(self) -> bool:
        """As :meth:`must_skip`, awaiting the gradients."""
        self._check_scaled()
        is_finite = bool((await self.scaler.finite(self._params)).asscalar())
        flags = {} if is_finite else self._flags()
        return self._finish_step(is_finite, [name for name, flag in flags.items() if not (await flag).asscalar()])

    def _check_scaled(self) -> None:
        self._scaled.clear()
        unscaled, self._unscaled = self._unscaled, None
        if unscaled is not None:
            raise UnscaledLossError(
                f"step: {unscaled}. The update would be {self.scaler.loss_scale:g} times too small: call backward() on "
                "the scaled loss of `with amp.scale_loss(loss, trainer) as scaled_loss`"
            )

    def _flags(self) -> dict[str, NDArray]:
        """Return an array of shape (1,) for each parameter: 1 if its gradient is finite, else 0."""
        return {str(p.name): all_finite(p.list_grad()[:1]) for p in self._params if p.grad_req != "null"}

    def _finish_step(self, is_finite: bool, params: Sequence[str]) -> bool:
        """Update the loss scale, and report an overflow of the gradients of parameters. Return whether to skip."""
        finding, scale = _recorder.take(), self.scaler.loss_scale
        if self.scaler.update(is_finite):
            self.last_overflow = Overflow(current_step(), scale, tuple(params), finding)
            _recorder.arm(self)
            self._report(self.last_overflow)
        else:
            _recorder.disarm(self)
        return not is_finite

    def _report(self, overflow: Overflow) -> None:
        finding = overflow.finding
        if finding is None or (finding.is_backward and not self.scaler.is_at_minimum):
            log.info("AMP: %s", overflow)
            return
        if (finding.operator, finding.layer) in self._warned:
            return
        self._warned.add((finding.operator, finding.layer))
        if finding.is_backward:
            advice = "the loss scale is at its minimum: the gradients themselves are too large"
        else:
            advice = (
                "a smaller loss scale does not change the forward pass: keep the operator in float32 "
                f"(amp.init(fp32_ops=[..., {finding.operator!r}])), or check its inputs"
            )
        warnings.warn(f"amp: {overflow}; {advice}", OverflowWarning, stacklevel=5)


def _node(array: NDArray) -> TapeNode | Leaf | None:
    return None if array.tape_entry is None else array.tape_entry.node


class _Recorder:
    """The NaN watch that all guards share. It is on while a guard needs it."""

    def __init__(self) -> None:
        self._watch = Watch(stops=False)
        self._users: WeakSet[Guard] = WeakSet()
        self._is_on = False

    def arm(self, guard: Guard) -> None:
        """Turn the watch on for a guard."""
        self._users.add(guard)
        if not self._is_on:
            self._is_on = True
            nan_watch.watch_all(self._watch)

    def disarm(self, guard: Guard) -> None:
        """Turn the watch off for a guard."""
        self._users.discard(guard)
        self.tidy()

    def tidy(self) -> None:
        """Turn the watch off if no guard needs it."""
        # A WeakSet may count a guard that is being freed, but does not iterate over it.
        if self._is_on and not list(self._users):
            self._is_on = False
            nan_watch.unwatch_all(self._watch)

    def take(self) -> Finding | None:
        """Return the finding of the current step, or None, and clear it."""
        finding, self._watch.finding = self._watch.finding, None
        return finding if finding is not None and finding.step == current_step() else None


_recorder = _Recorder()
_guards: WeakSet[Guard] = WeakSet()


def _check_heads(heads: list[NDArray]) -> None:
    for guard in list(_guards):
        guard.check_heads(heads)


autograd.before_backward.append(_check_heads)


def _close_guard() -> None:
    origin.layer_name_users -= 1
    _recorder.tidy()
