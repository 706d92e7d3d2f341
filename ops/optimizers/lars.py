"""SGD with a rate per layer, from the norms of its weight and gradient: the steps of LARS and LBSGD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from flowmx.ops.optimizers.updates import RULES, Rule, Update, register_rule, sum_of_squares, update_fast
from flowmx.ops.registry.operators import Array, Run


class _ByNorms(Update):
    """A rule with a learning-rate factor computed from both sums of squares."""

    plain: ClassVar[Rule]
    eta: float
    eps: float

    def factor(self, weight: float, grad: float) -> float:
        """Return the learning rate's factor, from the sums of squares of weight and gradient."""
        raise NotImplementedError

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        factor = self.factor(*(sum_of_squares(run.xp, array) for array in inputs[:2]))
        shared = {name: getattr(self, name) for name in ("wd", "rescale_grad", "clip_gradient", *self.plain.parameters)}
        p = SimpleNamespace(rule=self.plain, lr=self.lr * factor, **shared)
        update_fast(run, self.plain, p, self.mixed, inputs, outputs[0])


class _LARS(_ByNorms):
    def factor(self, weight: float, grad: float) -> float:
        if not (weight > 0 and grad > 0):
            return 1.0
        norm = math.sqrt(weight)
        return self.eta * norm / (math.sqrt(grad) * self.rescale_grad + self.wd * norm + self.eps)


class _LBSGD(_ByNorms):
    def factor(self, weight: float, grad: float) -> float:
        # MXNet takes the ratio of squared norms, with the gradient before rescaling.
        return min(max(math.sqrt(weight / (grad + self.wd * weight + 1e-18)), 0.01), 100.0)


_DOCS = {
    "lars": "LARS (You et al., 2017): {} with lr · eta · |w|/(|g| + wd · |w| + eps), or lr if a norm is 0.",
    "lbsgd": "Large-batch SGD: {} with lr · √(|w|²/(|g|² + wd · |w|²)), that factor within 0.01 and 100.",
}


def _register(kind: str, base: type[_ByNorms], plain: Rule) -> None:
    rule = plain._replace(
        name=f"_{kind}_{plain.name}",
        master=f"_mp_{kind}_{plain.name}",
        parameters={**plain.parameters, "eta": 0.001, "eps": 0.0},
        doc=_DOCS[kind].format(plain.doc[:-1]),
    )
    rule_base: Any = type(base.__name__, (base,), {"plain": plain, "__module__": __name__})
    for mixed in (False, True):
        register_rule(rule, mixed, hidden=True, base=rule_base)


for _plain in RULES:
    if _plain.name in ("sgd_update", "sgd_mom_update"):
        _register("lars", _LARS, _plain)
        _register("lbsgd", _LBSGD, _plain)
