"""Update rules of optimizers, each a row; their formulas stand in :mod:`flowmx.ops.formulas.updates`.

Called with ``out=weight`` the weight is updated in place; the states always are. Each rule starts from the
gradient times ``rescale_grad``, clipped to ``clip_gradient`` where that is above 0 (some clip after adding
the weight decay, as MXNet does).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from flowmx.ops.formulas import updates
from flowmx.ops.formulas.arrays import OnArrays
from flowmx.ops.nn.common import blocks, computing_dtype
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, described, kernel_for, operator, option, required


class Rule(NamedTuple):
    """One update rule."""

    name: str
    states: tuple[str, ...]
    parameters: dict[str, float]
    """The rule's own parameters and their defaults."""
    decay: updates.Decay
    """The point at which wd · weight is added to the gradient."""
    update: updates.Update
    """``update(p, w, g, *states)``: the new weight, then the new states."""
    doc: str
    master: str = ""
    """The name of the variant for 16-bit weights with a float32 master copy."""

    @property
    def formula(self) -> updates.Update:
        """The same, from the gradient as it comes."""
        return updates.whole(self.update, self.decay)


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
          "Follow the regularised leader (McMahan et al., 2013)."),
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
    """The documentation of an update's states, which are float32 in mixed precision."""
    dtype = "float32" if mixed else "its dtype"
    return dict.fromkeys(states, f"the shape of weight, {dtype}; a state, updated in place")


def update(run: Run, rule: Rule, p: Any, mixed: bool, inputs: Sequence[Array], out: Array) -> None:
    """Update one weight.

    Args:
        run: what a forward may ask for.
        rule: the rule.
        p: its parameters as attributes: lr, wd, rescale_grad, clip_gradient, and the rule's own.
        mixed: whether the last state is a float32 copy of the weight.
        inputs: the weight, the gradient and the states, which are updated.
        out: the new weight.
    """
    fast = _mixed.get(run.device.kernels) if mixed else None
    if fast is not None and fast(rule, p, inputs, out):
        return
    formula = _on_arrays(rule, p, len(inputs) - mixed)
    numbers = formula.numbers(p, computing_dtype((inputs[-1] if mixed else out).dtype))
    for weight, grad, *states, target in blocks(*inputs, out):
        w = states.pop() if mixed else weight
        into = w if mixed else target
        formula.run(run.xp, numbers, (w, grad, *states), (into, *states))
        if mixed:
            run.xp.copyto(target, w, casting="unsafe")


Mixed = Callable[[Rule, Any, Sequence[Array], Array], bool]
X = TypeVar("X", bound=Mixed)
_mixed: dict[str, Mixed] = {}


def mixed_update(device_type: str) -> Callable[[X], X]:
    """Register what updates a float32 copy and rounds it to the weight in one pass; False where it can not."""

    def register(function: X) -> X:
        _mixed[device_type] = function
        return function

    return register


_made: dict[Hashable, OnArrays] = {}


def _on_arrays(rule: Rule, p: Any, count: int) -> OnArrays:
    key = (rule.name, updates.form(p))
    if key not in _made:
        _made[key] = OnArrays(rule.formula, count, p)
    return _made[key]


class One(NamedTuple):
    """The update of one weight; see :func:`update`."""

    rule: Rule
    p: Any
    mixed: bool
    inputs: Sequence[Array]
    out: Array


Many = Callable[[Run, Sequence[One]], list[One]]
M = TypeVar("M", bound=Many)
_together: dict[str, Many] = {}


def together(device_type: str) -> Callable[[M], M]:
    """Register what updates many weights at once on a device type; it gives back those that it has left alone."""

    def register(function: M) -> M:
        _together[device_type] = function
        return function

    return register


def updates_together(device_type: str) -> bool:
    """Tell whether a device type has a kernel that updates many weights at once."""
    return device_type in _together


def update_many(run: Run, ones: Sequence[One]) -> None:
    """Update weights, all at once where the device can."""
    many = _together.get(run.device.kernels)
    for rule, p, mixed, inputs, out in ones if many is None else many(run, ones):
        compute = None if mixed else getattr(kernel_for(run.device.kernels, rule.name), "compute", None)
        if compute is None or not compute(run.xp, p, inputs, (out,)):
            update(run, rule, p, mixed, inputs, out)


def update_fast(run: Run, rule: Rule, p: Any, mixed: bool, inputs: Sequence[Array], out: Array) -> None:
    """Do the same as :func:`update`, by the rule's kernel where there is one; ``p`` has the rule too."""
    update_many(run, [One(rule, p, mixed, inputs, out)])


def sum_of_squares(xp: Any, array: Array) -> float:
    """The square of an array's norm, summed in at least float32."""
    flat = array.reshape(-1)
    if flat.dtype.itemsize < 4:
        flat = flat.astype(FLOAT32)
    return float(xp.dot(flat, flat))


class Update(Operator):
    """The base of all update rules; its inputs have one shape."""

    input_docs = described(
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
"""The rules of operators that update by nothing but the rule, by the operators' names."""


def register_rule(rule: Rule, mixed: bool = False, hidden: bool = False, base: type[Update] = Update) -> None:
    """Make the operator of a rule, or of its variant for 16-bit weights with a float32 copy."""
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
            clip: (-1.0, "Clip the gradient to ± this where it is above 0.")}  # fmt: skip
    # These come last in MXNet's signatures, the rest before the common ones.
    late = ("clip_weights", "wd_lh")
    own = {name: (default, "") for name, default in rule.parameters.items()}
    first = {name: given for name, given in own.items() if name not in late}
    for name, (default, doc) in {**first, **tail, **own}.items():
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
