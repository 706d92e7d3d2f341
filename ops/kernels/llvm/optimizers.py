"""Updates of weights, each as one pass over the weight, its gradient and its states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from flowmx.ops.formulas import update_rules as updates
from flowmx.ops.formulas.expressions import Parameters, placeholder
from flowmx.ops.kernels.llvm.assembly import FLOAT
from flowmx.ops.kernels.llvm.elementwise import Loop, float_type_of, fused
from flowmx.ops.kernels.llvm.math_functions import expanded
from flowmx.ops.optimizers.updates import REGISTERED, Rule, mixed_update
from flowmx.ops.registry.operators import Array

for _name, _rule in REGISTERED.items():
    fused(_name, _rule.formula, variant=updates.variant_key, least=1)

fused("lamb_update_phase1", updates.lamb_direction, variant=updates.lamb_variant_key, least=1)

_loops: dict[Hashable, Loop | None] = {}


@mixed_update("cpu")
def _update_mixed(rule: Rule, p: object, inputs: Sequence[Array], out: Array) -> bool:
    """Update a float32 copy from a gradient of 16 bits, and round it to the weight."""
    _, grad, *states, weight = inputs
    arrays = [weight, grad, *states, weight, *states, out]
    if not all(each.flags.c_contiguous for each in arrays):
        return False
    key = (rule.name, updates.variant_key(p), tuple([each.dtype for each in arrays]))
    if key not in _loops:
        _loops[key] = _loop(rule, p, arrays, 2 + len(states))
    loop = _loops[key]
    return loop is not None and loop.run(out.size, loop.values(p), arrays)


def _loop(rule: Rule, p: object, arrays: Sequence[Array], count: int) -> Loop | None:
    reals = [float_type_of(each.dtype) for each in arrays]
    floats = [each for each in reals if each is not None and each.name == FLOAT.name]
    formulas = expanded(rule.formula(Parameters(p), *map(placeholder, range(count))))
    if formulas is None or len(floats) < len(reals):
        return None
    return Loop([*formulas, formulas[0]], count, FLOAT, floats)
