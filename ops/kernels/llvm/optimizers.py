"""Updates of weights, each as one pass over the weight, its gradient and its states."""

from __future__ import annotations

from flowmx.ops.formulas import updates
from flowmx.ops.kernels.llvm.elementwise import fused
from flowmx.ops.optimizers.updates import REGISTERED

for _name, _rule in REGISTERED.items():
    fused(_name, _rule.formula, variant=updates.form, least=1)

fused("lamb_update_phase1", updates.lamb_direction, variant=updates.form_of_lamb, least=1)
