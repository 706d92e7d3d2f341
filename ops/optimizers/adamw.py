"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

The last input is the gradient's factor. If it is 0, infinite or NaN (the loss scale was too large), nothing is
updated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from flowmx.ops.formulas import update_rules as updates
from flowmx.ops.optimizers.multi_weight import CLIP, Group
from flowmx.ops.optimizers.updates import Rule, Update, state_docs, update
from flowmx.ops.registry.operators import Array, Run, operator, option, required

_DOC = "AdamW: w -= eta · (lr · mean/(√var + epsilon) + wd · w)"
RULE = Rule(
    "_adamw_update",
    ("mean", "var"),
    {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "by the rule",
    updates.adamw,
    _DOC,
)


class _AdamW(Group):
    extra_inputs = 1
    extra_inputs_doc = "; then rescale_grad, (1,), float32"
    states = ("mean", "var")

    def rates(self) -> list[tuple[float, float, float]]:
        """Return the learning rate, weight decay and eta of each weight."""
        raise NotImplementedError

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        groups, (factor,) = self.parts(inputs)
        scale = float(factor.reshape(-1)[0])
        shared = {name: getattr(self, name) for name in ("clip_gradient", *RULE.parameters)}
        for group, out, (lr, wd, eta) in zip(groups, outputs, self.rates(), strict=True):
            if scale == 0 or not math.isfinite(scale):
                run.xp.copyto(out, group[0])
                continue
            p = SimpleNamespace(lr=lr, wd=wd, eta=eta, rescale_grad=scale, **shared)
            update(run, RULE, p, self.mixed, group, out)


class _One(_AdamW):
    count = 1  # no parameter counts the weights
    output_doc = "The new weight: the shape and dtype of weight"
    lr: float
    wd: float
    eta: float

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def outputs(self) -> tuple[str, ...]:
        return ("output",)

    def rates(self) -> list[tuple[float, float, float]]:
        return [(self.lr, self.wd, self.eta)]


class _Many(_AdamW):
    variadic = "num_weights"
    each = ("lrs", "wds", "etas")
    lrs: tuple[float, ...]
    wds: tuple[float, ...]
    etas: tuple[float, ...]

    def rates(self) -> list[tuple[float, float, float]]:
        return list(zip(self.lrs, self.wds, self.etas, strict=True))


_OWN: dict[str, Any] = {
    "beta1": option(0.9, "Decay of the mean."),
    "beta2": option(0.999, "Decay of the variance."),
    "epsilon": option(1e-8, "Added to the root of the variance."),
}


def _register(base: type[Group], mixed: bool) -> None:
    many = base is _Many
    if many:
        fields = {
            "lrs": required("Learning rates."), **_OWN, "wds": required("Weight decays."),
            "etas": required("Factors of the whole step."), "clip_gradient": CLIP,
            "num_weights": option(1, "The number of weights.", low=1),
        }  # fmt: skip
    else:
        fields = {
            "lr": required("Learning rate."), **_OWN, "wd": option(0.0, "Weight decay."),
            "eta": required("Factor of the whole step."), "clip_gradient": CLIP,
        }  # fmt: skip
    kinds: dict[str, object] = dict.fromkeys(fields, float)
    kinds.update({key: tuple[float, ...] for key in ("lrs", "wds", "etas") if key in fields})
    if many:
        kinds["num_weights"] = int
    name = f"_{'multi_' if many else ''}{'mp_' if mixed else ''}adamw_update"
    master: tuple[str, ...] = ("weight32",) if mixed else ()
    body = {
        "__doc__": f"{_DOC}{', for many weights' if many else ''}{', in mixed precision' if mixed else ''}.",
        "__module__": __name__,
        "__annotations__": kinds,
        "arguments": () if many else ("weight", "grad", "mean", "var", *master, "rescale_grad"),
        "mixed": mixed,
        "input_docs": {**Update.input_docs, **state_docs(_AdamW.states, mixed), "rescale_grad": "(1,), float32"},
        **fields,
    }
    operator(name)(type(name, (base,), body))


for _base in (_One, _Many):
    for _mixed in (False, True):
        _register(_base, _mixed)
