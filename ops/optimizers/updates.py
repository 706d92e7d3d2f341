"""The table of update rules of optimizers; their formulas are in :mod:`flowmx.ops.formulas.update_rules`.

With ``out=weight`` the weight is updated in place; the states always are. Each rule starts from the gradient times
``rescale_grad``, clipped to ±``clip_gradient`` if that is above 0 (some rules clip after adding the weight decay, as
in MXNet).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from flowmx.ops.formulas import update_rules as updates
from flowmx.ops.formulas.array_formula import ArrayFormula
from flowmx.ops.nn.common import blocks, computing_dtype
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Array, Operator, Run, describe, operator, option, required
from flowmx.ops.registry.tensors import ArrayNamespace


class Rule(NamedTuple):
    """One update rule."""

    name: str
    states: tuple[str, ...]
    parameters: dict[str, float]
    """The rule's parameters and their defaults, without the common ones."""
    decay: updates.Decay
    """The point at which wd · weight is added to the gradient."""
    update: updates.Update
    """``update(p, w, g, *states)``: the new weight, then the new states."""
    doc: str
    master: str = ""
    """The name of the variant for 16-bit weights with a float32 master copy."""

    @property
    def formula(self) -> updates.Update:
        """The update computed from the raw gradient, including rescaling, clipping and weight decay."""
        return updates.with_preprocessing(self.update, self.decay)


_MOMENTUM = {"momentum": 0.0}
RULES = [
    Rule("sgd_update", (), {}, "after clipping", updates.sgd,
          "Gradient descent: w -= lr · (g + wd · w).", "mp_sgd_update"),
    Rule("sgd_mom_update", ("mom",), _MOMENTUM, "after clipping", updates.sgd_mom,
          "Gradient descent with momentum: m = momentum · m - lr · (g + wd · w); w += m.", "mp_sgd_mom_update"),
    Rule("nag_mom_update", ("mom",), _MOMENTUM, "after clipping", updates.nag_mom,
          "Nesterov's accelerated gradient: as sgd_mom_update, one momentum step ahead.", "mp_nag_mom_update"),
    Rule("adam_update", ("mean", "var"), {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}, "before clipping",
          updates.adam, "Adam (Kingma and Ba, 2014), the bias correction left to lr: w -= lr · mean/(√var + epsilon)."),
    Rule("rmsprop_update", ("n",), {"gamma1": 0.95, "epsilon": 1e-8, "clip_weights": -1.0}, "before clipping",
          updates.rmsprop, "RMSProp (Tieleman and Hinton, 2012): w -= lr · g/√(n + epsilon), n the average of g²."),
    Rule("rmspropalex_update", ("n", "g", "delta"),
          {"gamma1": 0.95, "gamma2": 0.9, "epsilon": 1e-8, "clip_weights": -1.0}, "before clipping",
          updates.rmspropalex, "RMSProp with centred variance and momentum (Graves, 2013)."),
    Rule("ftrl_update", ("z", "n"), {"lamda1": 0.01, "beta": 1.0}, "by the rule", updates.ftrl,
          "Follow the regularized leader (McMahan et al., 2013)."),
    Rule("signsgd_update", (), {}, "by the rule", updates.signsgd,
          "The gradient's sign (Bernstein et al., 2018): w = (1 - lr · wd) · w - lr · sign(g)."),
    Rule("signum_update", ("mom",), {"momentum": 0.0, "wd_lh": 0.0}, "after clipping", updates.signum,
          "The sign of the momentum (Bernstein et al., 2018); wd_lh decays the weight directly."),
    Rule("ftml_update", ("d", "v", "z"), {"beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8, "t": 1.0},
          "before clipping", updates.ftml, "Follow the moving leader (Zheng and Kwok, 2017), at step t."),
    Rule("_sparse_adagrad_update", ("history",), {"epsilon": 1e-7}, "before clipping", updates.sparse_adagrad,
          "AdaGrad (Duchi et al., 2011): w -= lr · g/√(history + epsilon), history the sum of g²; of stored rows."),
]  # fmt: skip


def state_docs(states: Sequence[str], mixed: bool) -> dict[str, str]:
    """Return the documentation of an update's states, which are float32 in mixed precision."""
    dtype = "float32" if mixed else "its dtype"
    return dict.fromkeys(states, f"the shape of weight, {dtype}; a state, updated in place")


def update(run: Run, rule: Rule, p: object, mixed: bool, inputs: Sequence[Array], out: Array) -> None:
    """Update one weight.

    Args:
        run: the context of the forward.
        rule: the rule.
        p: an object with the parameters lr, wd, rescale_grad, clip_gradient and those of the rule.
        mixed: whether the last state is a float32 copy of the weight.
        inputs: the weight, the gradient and the states, which are updated in place.
        out: the new weight.
    """
    fast = _mixed.get(run.device.kernels) if mixed else None
    if fast is not None and fast(rule, p, inputs, out):
        return
    formula = _on_arrays(rule, p, len(inputs) - mixed)
    numbers = formula.numbers(p, computing_dtype((inputs[-1] if mixed else out).dtype))
    for weight, grad, *states, target in blocks(*inputs, out):
        w = states.pop() if mixed else weight
        destination = w if mixed else target
        formula.run(run.xp, numbers, (w, grad, *states), (destination, *states))
        if mixed:
            run.xp.copyto(target, w, casting="unsafe")


Mixed = Callable[[Rule, Any, Sequence[Array], Array], bool]
X = TypeVar("X", bound=Mixed)
_mixed: dict[str, Mixed] = {}


def mixed_update(device_type: str) -> Callable[[X], X]:
    """Register a function that updates a float32 copy and rounds it to the weight in one pass.

    It returns False if it cannot.
    """

    def register(function: X) -> X:
        _mixed[device_type] = function
        return function

    return register


_formulas: dict[Hashable, ArrayFormula] = {}


def _on_arrays(rule: Rule, p: object, count: int) -> ArrayFormula:
    key = (rule.name, updates.variant_key(p))
    if key not in _formulas:
        _formulas[key] = ArrayFormula(rule.formula, count, p)
    return _formulas[key]


class WeightUpdate(NamedTuple):
    """The update of one weight; see :func:`update`."""

    rule: Rule
    p: Any
    mixed: bool
    inputs: Sequence[Array]
    out: Array


BatchedUpdate = Callable[[Run, Sequence[WeightUpdate]], list[WeightUpdate]]
M = TypeVar("M", bound=BatchedUpdate)
_batched: dict[str, BatchedUpdate] = {}


def batched_update(device_type: str) -> Callable[[M], M]:
    """Register a function that updates many weights at once on a device type and returns those it did not update."""

    def register(function: M) -> M:
        _batched[device_type] = function
        return function

    return register


def has_batched_update(device_type: str) -> bool:
    """Return whether a device type has a kernel that updates many weights at once."""
    return device_type in _batched


def update_many(run: Run, weight_updates: Sequence[WeightUpdate]) -> None:
    """Update weights, all at once if the device can."""
    batched = _batched.get(run.device.kernels)
    for rule, p, mixed, inputs, out in weight_updates if batched is None else batched(run, weight_updates):
        kernel = None if mixed else kernel_for(run.device.kernels, rule.name)
        try_compute = None if kernel is None else kernel.try_compute
        if try_compute is None or not try_compute(run.xp, p, inputs, (out,)):
            update(run, rule, p, mixed, inputs, out)


def update_fast(run: Run, rule: Rule, p: object, mixed: bool, inputs: Sequence[Array], out: Array) -> None:
    """Compute :func:`update` by the rule's kernel if there is one; ``p`` also has the attribute ``rule``."""
    update_many(run, [WeightUpdate(rule, p, mixed, inputs, out)])


def sum_of_squares(xp: ArrayNamespace, array: Array) -> float:
    """Return the square of an array's norm, summed in at least float32."""
    flat = array.reshape(-1)
    if flat.dtype.itemsize < 4:
        flat = flat.astype(FLOAT32)
    return float(xp.dot(flat, flat))


class Update(Operator):
    """Base of all update rules; the inputs have the same shape."""

    input_docs = describe(
        weight="any shape, float",
        grad="the shape and dtype of weight",
        weight32="the shape of weight, float32; the master copy, updated in place",
    )
    output_doc = "The new weight: the shape and dtype of weight"

    rule: Rule
    mixed = False
    lr: float
    wd: float
    rescale_grad: float
    clip_gradient: float

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        if not self.mixed:
            return super().infer_type(dtypes)
        small = dtypes[0] or dtypes[1]
        return [small, small, *[FLOAT32] * (len(dtypes) - 2)], [small]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        update(run, self.rule, self, self.mixed, inputs, outputs[0])


REGISTERED: dict[str, Rule] = {}
"""Rules by operator name, for operators that apply only the rule."""


def register_rule(rule: Rule, mixed: bool = False, hidden: bool = False, base: type[Update] = Update) -> None:
    """Register the operator of a rule, or of its variant for 16-bit weights with a float32 copy."""
    states = (*rule.states, "weight32") if mixed else rule.states
    clip = "clip_grad" if rule.name == "ftml_update" else "clip_gradient"
    body: dict[str, Any] = {
        "__doc__": rule.doc,
        "__module__": __name__,
        "rule": rule,
        "mixed": mixed,
        "arguments": ("weight", "grad", *(f"{name}_state" if name == "grad" else name for name in states)),
        "input_docs": state_docs(rule.states, mixed),
        "updates": tuple(range(2, 2 + len(states))),
        "__annotations__": {"lr": float},
        "lr": required("Learning rate."),
    }
    tail = {"wd": (0.0, "Weight decay."), "rescale_grad": (1.0, "The gradient's factor."),
            clip: (-1.0, "Clip the gradient to ± this value if above 0.")}  # fmt: skip
    # These come last in MXNet's signatures, the other parameters before the common ones.
    late = ("clip_weights", "wd_lh")
    parameters = {name: (default, "") for name, default in rule.parameters.items()}
    first = {name: field for name, field in parameters.items() if name not in late}
    for name, (default, doc) in {**first, **tail, **parameters}.items():
        body["__annotations__"][name] = float
        body[name] = option(default, doc)
    if clip != "clip_gradient":
        body["clip_gradient"] = property(lambda self: getattr(self, clip))
    if rule.name in ("sgd_update", "sgd_mom_update", "adam_update"):
        body["__annotations__"]["lazy_update"] = bool
        body["lazy_update"] = option(True, "With a row_sparse gradient, update only its rows.")
    name = rule.master if mixed else rule.name
    operator(name)(type(name, (base,), body, hidden=hidden, in_place=((0, 0),)))
    if base is Update and not mixed:
        REGISTERED[name] = rule


for _rule in RULES:
    register_rule(_rule)
    if _rule.master:
        register_rule(_rule, mixed=True)
