"""LAMB: Adam's direction, with a step proportional to the weight's norm (You et al., 2019).

It runs in two phases, with the norms computed between them, or for many weights at once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from flowmx.ops.formulas import update_rules as updates
from flowmx.ops.formulas.array_formula import ArrayFormula
from flowmx.ops.nn.common import blocks, computing_dtype, expect_shape, scratch
from flowmx.ops.optimizers.multi_weight import CLIP, RESCALE, Group
from flowmx.ops.optimizers.updates import Update, state_docs, sum_of_squares
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    operator,
    option,
    required,
    same_shape,
)
from flowmx.ops.registry.tensors import ArrayNamespace

Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]

_OWN: dict[str, Any] = {
    "beta1": option(0.9, "Decay of the mean."),
    "beta2": option(0.999, "Decay of the variance."),
    "epsilon": option(1e-6, "Added to the root of the variance."),
}
_BOUNDS: dict[str, Any] = {
    "lower_bound": option(-1.0, "The minimum norm of the weight, if above 0."),
    "upper_bound": option(-1.0, "The maximum norm of the weight, if above 0."),
}
_CORRECTION = option(True, "Correct the bias of the averages, which start at 0.")


_formulas: dict[Hashable, ArrayFormula] = {}


def direction(run: Run, p: object, inputs: Sequence[Array], out: Array) -> None:
    """Compute the direction of the step from weight, gradient, mean and variance; update mean and variance."""
    form = updates.lamb_variant_key(p)
    if form not in _formulas:
        _formulas[form] = ArrayFormula(updates.lamb_direction, 4, p)
    numbers = _formulas[form].numbers(p, computing_dtype(out.dtype))
    for w, grad, mean, var, target in blocks(*inputs, out):
        _formulas[form].run(run.xp, numbers, (w, grad, mean, var), (target, mean, var))


def direction_fast(run: Run, p: object, inputs: Sequence[Array], out: Array) -> None:
    """Compute :func:`direction` by the kernel if there is one."""
    kernel = kernel_for(run.device.kernels, "lamb_update_phase1")
    try_compute = None if kernel is None else kernel.try_compute
    if try_compute is None or not try_compute(run.xp, p, inputs, (out,)):
        direction(run, p, inputs, out)


_OF_DIRECTION = ("beta1", "beta2", "epsilon", "bias_correction", "rescale_grad", "clip_gradient")


def _step(xp: ArrayNamespace, p: Any, lr: float, w: Array, g: Array, norms: tuple[float, float], out: Array) -> None:
    """Compute the step along a direction, which is overwritten, from the norms of weight and direction."""
    weight_norm, direction_norm = norms
    if p.lower_bound > 0:
        weight_norm = max(weight_norm, p.lower_bound)
    if p.upper_bound > 0:
        weight_norm = min(weight_norm, p.upper_bound)
    ratio = weight_norm / direction_norm if weight_norm and direction_norm else 1.0
    g *= w.dtype.type(lr * ratio)
    xp.subtract(w, g, out=out)


class _Phase1(Operator):
    input_docs: ClassVar[dict[str, str]] = {
        **Update.input_docs,
        "weight32": "the shape of weight, float32; the master copy",
    }
    output_doc = "The direction: the shape of weight, its dtype, or float32 in mixed precision"
    updates = (2, 3)
    mixed: ClassVar[bool] = False
    t: int
    wd: float

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        if not self.mixed:
            return super().infer_type(dtypes)
        small = dtypes[0] or dtypes[1]
        return [small, small, FLOAT32, FLOAT32, FLOAT32], [FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight, grad, mean, var = inputs[:4]
        w = inputs[4] if self.mixed else weight
        direction(run, self, (w, grad, mean, var), outputs[0])


class _Phase2(Operator, in_place=((0, 0),)):
    input_docs: ClassVar[dict[str, str]] = {
        **Update.input_docs,
        "g": "the shape of weight, its dtype, or float32 in mixed precision; the direction",
        "r1": "(1,), the dtype of g; the norm of the weight",
        "r2": "(1,), the dtype of g; the norm of the direction",
    }
    output_doc = "The new weight: the shape and dtype of weight"
    mixed: ClassVar[bool] = False
    lr: float

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight, g, r1, r2, *master = shapes
        shape = same_shape(self, [weight, g, *master])
        norms = [expect_shape(self, n, s, (1,)) for n, s in (("r1", r1), ("r2", r2))]
        return [shape, shape, *norms, *([shape] if master else [])], [shape]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        if not self.mixed:
            return super().infer_type(dtypes)
        return [dtypes[0], *[FLOAT32] * 4], [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight, g, (r1,), (r2,) = inputs[:4]
        w = inputs[4] if self.mixed else weight
        _step(run.xp, self, self.lr, w, g.copy(), (float(r1), float(r2)), w if self.mixed else outputs[0])
        if self.mixed:
            run.xp.copyto(outputs[0], w, casting="unsafe")


class _Many(Group):
    variadic = "num_tensors"
    states = ("mean", "var")
    each = ("learning_rates", "wds", "step_count")
    learning_rates: tuple[float, ...]
    wds: tuple[float, ...]
    step_count: Shape
    _each: list[SimpleNamespace]
    """The parameters of each weight's direction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shared = {name: getattr(self, name) for name in _OF_DIRECTION}
        parameters = [SimpleNamespace(t=t, wd=wd, **shared) for t, wd in zip(self.step_count, self.wds, strict=True)]
        object.__setattr__(self, "_each", parameters)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        groups, _ = self.parts(inputs)
        for group, out, lr, p in zip(groups, outputs, self.learning_rates, self._each, strict=True):
            weight, grad, mean, var = group[:4]
            w = group[4] if self.mixed else weight
            g = scratch(run, "lamb direction", w.shape, mean.dtype)
            norm = _norm(xp, weight)
            direction_fast(run, p, (w, grad, mean, var), g)
            _step(xp, self, lr, w, g, (norm, _norm(xp, g)), w if self.mixed else out)
            if self.mixed:
                xp.copyto(out, w, casting="unsafe")


def _norm(xp: ArrayNamespace, array: Array) -> float:
    return math.sqrt(sum_of_squares(xp, array))


_RATE = {"lr": (required("Learning rate."), float)}
_COMMON = {"rescale_grad": (RESCALE, float), "clip_gradient": (CLIP, float)}
_AVERAGES = {name: (field, float) for name, field in _OWN.items()}
_LIMITS = {name: (field, float) for name, field in _BOUNDS.items()}
_KINDS: dict[str, tuple[type[Operator], tuple[str, ...], dict[str, tuple[Any, Any]], str]] = {
    "lamb_update_phase1": (
        _Phase1, ("weight", "grad", "mean", "var"),
        {**_AVERAGES, "t": (required("Number of the update, from 1.", low=1), int),
         "bias_correction": (_CORRECTION, bool), "wd": (required("Weight decay."), float), **_COMMON},
        "The direction of LAMB: Adam's step plus wd · w, for phase 2",
    ),
    "lamb_update_phase2": (
        _Phase2, ("weight", "g", "r1", "r2"), {**_RATE, **_LIMITS},
        "LAMB's step: w -= lr · r1/r2 · g, with the norms r1 of the weight and r2 of the direction",
    ),
    "lamb_update": (
        _Many, (),
        {"learning_rates": (required("Learning rates."), tuple[float, ...]), **_AVERAGES,
         "wds": (required("Weight decays."), tuple[float, ...]), "rescale_grad": _COMMON["rescale_grad"], **_LIMITS,
         "clip_gradient": _COMMON["clip_gradient"], "bias_correction": (_CORRECTION, bool),
         "step_count": (required("Numbers of the updates, from 1.", low=1), Shape),
         "num_tensors": (option(1, "The number of weights.", low=1), int)},
        "LAMB for many weights: both phases at once",
    ),
}  # fmt: skip


def _register(kind: str, mixed: bool) -> None:
    base, arguments, fields, doc = _KINDS[kind]
    name = ("_multi_" if base is _Many else "") + ("mp_" if mixed else "") + kind
    body: dict[str, object] = {
        "__doc__": f"{doc}{', in mixed precision' if mixed else ''}.",
        "__module__": __name__,
        "__annotations__": {key: annotation for key, (_, annotation) in fields.items()},
        "arguments": (*arguments, "weight32") if mixed and arguments else arguments,
        "mixed": mixed,
        **{key: field for key, (field, _) in fields.items()},
    }
    if base is _Phase1:
        body["input_docs"] = state_docs(("mean", "var"), mixed)
    if base is _Phase2 and mixed:
        body["updates"] = (4,)
    operator(name)(type(name, (base,), body))


for _kind in _KINDS:
    for _mixed in (False, True):
        _register(_kind, _mixed)
