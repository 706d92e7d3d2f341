"""The steps of a graph under a watch: each output is looked at before another step may overwrite it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.observability.safety.watch import Look
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.math.finite import all_finite
from flowmx.ops.registry.operators import Array, Run


def run(look: Look, where: Run, step: Any) -> None:
    """Run a step, and look at what it gives.

    Args:
        look: what looks.
        where: what steps may ask for.
        step: of a graph (:class:`flowmx.graph.running.steps.Step`).
    """
    if isinstance(step.node.op, Sliced):  # each of its own steps is looked at
        step.forward(where, step.inputs, step.outputs)
        return
    inputs = _kept(step)
    step.forward(where, step.inputs, step.outputs)
    if step.node.op is None:  # a variable is copied to where an output lies: nothing is computed
        return
    for output in step.outputs:
        if output is not None and not all_finite(np, output):
            _report(look, where, step, output, inputs)


def _kept(step: Any) -> Sequence[Array]:
    """The inputs as they are before the step: copies of those that it writes over."""
    return [
        each.copy() if any(np.may_share_memory(each, out) for out in step.outputs if out is not None) else each
        for each in step.inputs
        if each is not None
    ]


def _report(look: Look, where: Run, step: Any, output: Array, inputs: Sequence[Array]) -> None:
    node = step.node
    names = [entry.node.output_name(entry.index) for entry in node.inputs]
    given = [name for name, each in zip(names, inputs, strict=False) if not all_finite(np, each)]
    is_backward = "_backward" in node.name
    if isinstance(node.op, Chain):
        _report_link(look, where, node, inputs, is_backward, given)
    else:
        look.at_step(shown(node.op), node.name, node.place(), is_backward, output, inputs, given)


def _report_link(
    look: Look, where: Run, node: Any, inputs: Sequence[Array], is_backward: bool, given: Sequence[str]
) -> None:  # fmt: skip
    """Compute a chain again, link by link, and report the first that gives what is not finite."""
    values = list(inputs)
    like = np.broadcast_arrays(*inputs)[0]
    for link in node.op.links:
        made = np.empty(like.shape, like.dtype)
        read = [values[at] for at in link.inputs]
        link.op.forward(where, read, [made])
        values.append(made)
        if not all_finite(np, made):
            backward = is_backward or "_backward" in link.name
            look.at_step(link.op.name, link.name, node.place(), backward, made, read, given)


def shown(op: Any) -> str:
    """An operator's name as the user knows it: fused ones by what they are made of."""
    name: str = op.name.removeprefix("_fused_").removeprefix("_noted_")
    then = getattr(op, "then", "")
    return f"{name} with {then}" if then else name
