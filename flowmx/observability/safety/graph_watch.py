"""The NaN watch of graph steps: checks every output before another step may overwrite it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.observability.safety.nan_watch import OutputCheck
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.math.finite import all_finite
from flowmx.ops.registry.operators import Array, Run


def run_step(check: OutputCheck, run: Run, step: Any) -> None:
    """Run a step and check its outputs.

    Args:
        check: the check of the operation's outputs.
        run: the run of the graph.
        step: a step of a graph (:class:`flowmx.graph.running.steps.Step`).
    """
    if isinstance(step.node.op, Sliced):  # its inner steps are checked
        step.forward(run, step.inputs, step.outputs)
        return
    inputs = _saved_inputs(step)
    step.forward(run, step.inputs, step.outputs)
    if step.node.op is None:  # a variable copied to an output: no computation
        return
    for output in step.outputs:
        if output is not None and not all_finite(np, output):
            _report(check, run, step, output, inputs)


def _saved_inputs(step: Any) -> Sequence[Array]:
    """Return the inputs before the step, with copies of those that it overwrites."""
    return [
        array.copy() if any(np.may_share_memory(array, out) for out in step.outputs if out is not None) else array
        for array in step.inputs
        if array is not None
    ]


def _report(check: OutputCheck, run: Run, step: Any, output: Array, inputs: Sequence[Array]) -> None:
    node = step.node
    names = [entry.node.output_name(entry.index) for entry in node.inputs]
    bad_inputs = [name for name, array in zip(names, inputs, strict=False) if not all_finite(np, array)]
    is_backward = "_backward" in node.name
    if isinstance(node.op, Chain):
        _report_link(check, run, node, inputs, is_backward, bad_inputs)
    else:
        check.at_step(display_name(node.op), node.name, node.place(), is_backward, output, inputs, bad_inputs)


def _report_link(
    check: OutputCheck, run: Run, node: Any, inputs: Sequence[Array], is_backward: bool, bad_inputs: Sequence[str]
) -> None:  # fmt: skip
    """Compute a chain again link by link, and report the first link with a NaN or an infinity."""
    values = list(inputs)
    like = np.broadcast_arrays(*inputs)[0]
    for link in node.op.links:
        output = np.empty(like.shape, like.dtype)
        link_inputs = [values[at] for at in link.inputs]
        link.op.forward(run, link_inputs, [output])
        values.append(output)
        if not all_finite(np, output):
            backward = is_backward or "_backward" in link.name
            check.at_step(link.op.name, link.name, node.place(), backward, output, link_inputs, bad_inputs)


def display_name(op: Any) -> str:
    """Return the operator's name for display; fused operators show their parts."""
    name: str = op.name.removeprefix("_fused_").removeprefix("_noted_")
    activation = getattr(op, "activation", "")
    return f"{name} with {activation}" if activation else name
