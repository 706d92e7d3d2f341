"""Update rules of optimizers, each a row: a step on cache-sized blocks, in place, with two blocks to spare.

Called with ``out=weight`` the weight is updated in place; the states always are. Each rule starts from the
gradient times ``rescale_grad``, clipped to ``clip_gradient`` where that is above 0 (some clip after adding
the weight decay, as MXNet does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from flowmx.ops.dtypes import FLOAT32, DType
from flowmx.ops.nn_common import blocks, computing_dtype, scratch
from flowmx.ops.registry import Array, Operator, Run, described, kernel_for, operator, option, required

Step = Callable[..., None]


class Rule(NamedTuple):
    """One update rule."""

    name: str
    states: tuple[str, ...]
    parameters: dict[str, float]
    """The rule's own parameters and their defaults."""
    decay: Literal["before clipping", "after clipping", "by the rule"]
    """The point at which wd · weight is added to the gradient."""
    step: Step
    """``step(xp, parameters, w, g, t, states, out)``; g (the gradient) and t are free to overwrite."""
    doc: str
    master: str = ""
    """The name of the variant for 16-bit weights with a float32 master copy."""


def _sgd(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    g *= p.lr
    xp.subtract(w, g, out=out)


def _sgd_mom(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    (mom,) = states
    g *= p.lr
    mom *= p.momentum
    mom -= g
    xp.add(w, mom, out=out)


def _nag_mom(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    (mom,) = states
    g *= p.lr
    mom *= p.momentum
    mom -= g
    xp.multiply(mom, p.momentum, out=t)
    t -= g
    xp.add(w, t, out=out)


def average(xp: Any, state: Array, value: Array, rate: float, t: Array) -> None:
    """Update a running average: state = rate · state + (1 - rate) · value."""
    state *= rate
    xp.multiply(value, 1 - rate, out=t)
    state += t


def _adam(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    mean, var = states
    average(xp, mean, g, p.beta1, t)
    g *= g
    average(xp, var, g, p.beta2, t)
    xp.sqrt(var, out=t)
    t += p.epsilon
    xp.divide(mean, t, out=t)
    t *= p.lr
    xp.subtract(w, t, out=out)


def _adagrad(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    (history,) = states
    xp.multiply(g, g, out=t)
    history += t
    xp.add(history, p.epsilon, out=t)
    xp.sqrt(t, out=t)
    g *= p.lr
    g /= t
    xp.subtract(w, g, out=out)


def _clip_weights(xp: Any, p: Any, out: Array) -> None:
    if p.clip_weights > 0:
        xp.clip(out, -p.clip_weights, p.clip_weights, out=out)


def _rmsprop(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    (n,) = states
    squared = g * g
    average(xp, n, squared, p.gamma1, t)
    xp.add(n, p.epsilon, out=t)
    xp.sqrt(t, out=t)
    g *= p.lr
    g /= t
    xp.subtract(w, g, out=out)
    _clip_weights(xp, p, out)


def _rmspropalex(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    n, mean, delta = states
    squared = g * g
    average(xp, n, squared, p.gamma1, t)
    average(xp, mean, g, p.gamma1, t)
    xp.multiply(mean, mean, out=t)
    xp.subtract(n, t, out=t)
    t += p.epsilon
    xp.sqrt(t, out=t)
    g *= p.lr
    g /= t
    delta *= p.gamma2
    delta -= g
    xp.add(w, delta, out=out)
    _clip_weights(xp, p, out)


def _ftrl(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    z, n = states
    before = xp.sqrt(n)
    z += g
    g *= g
    n += g
    root = xp.sqrt(n)
    xp.subtract(root, before, out=t)
    t *= w
    t /= p.lr
    z -= t
    root += p.beta
    root /= p.lr
    root += p.wd
    xp.multiply(xp.sign(z), p.lamda1, out=t)
    t -= z
    t /= root
    t *= xp.abs(z) > p.lamda1
    xp.copyto(out, t)


def _signsgd(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    xp.sign(g, out=g)
    g *= p.lr
    xp.multiply(w, 1 - p.lr * p.wd, out=t)
    xp.subtract(t, g, out=out)


def _signum(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    (mom,) = states
    g *= 1 - p.momentum
    mom *= p.momentum
    mom -= g
    xp.sign(mom, out=g)
    g *= p.lr
    xp.multiply(w, 1 - p.lr * p.wd_lh, out=t)
    xp.add(t, g, out=out)


def _ftml(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    d, v, z = states
    squared = g * g
    average(xp, v, squared, p.beta2, t)
    xp.divide(v, 1 - p.beta2**p.t, out=t)
    xp.sqrt(t, out=t)
    t += p.epsilon
    t *= (1 - p.beta1**p.t) / p.lr
    average(xp, z, g, p.beta1, squared)
    d *= -p.beta1
    d += t
    d *= w
    z -= d
    xp.copyto(d, t)
    xp.divide(z, t, out=t)
    xp.negative(t, out=out)


_MOMENTUM = {"momentum": 0.0}
RULES = [
    Rule("sgd_update", (), {}, "after clipping", _sgd,
          "Gradient descent: w -= lr · (g + wd · w).", "mp_sgd_update"),
    Rule("sgd_mom_update", ("mom",), _MOMENTUM, "after clipping", _sgd_mom,
          "Gradient descent with momentum: m = momentum · m - lr · (g + wd · w); w += m.", "mp_sgd_mom_update"),
    Rule("nag_mom_update", ("mom",), _MOMENTUM, "after clipping", _nag_mom,
          "Nesterov's accelerated gradient: as sgd_mom_update, one momentum step ahead.", "mp_nag_mom_update"),
    Rule("adam_update", ("mean", "var"), {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}, "before clipping", _adam,
          "Adam (Kingma and Ba, 2014), the bias correction left to lr: w -= lr · mean/(√var + epsilon)."),
    Rule("rmsprop_update", ("n",), {"gamma1": 0.95, "epsilon": 1e-8, "clip_weights": -1.0}, "before clipping",
          _rmsprop, "RMSProp (Tieleman and Hinton, 2012): w -= lr · g/√(n + epsilon), n the average of g²."),
    Rule("rmspropalex_update", ("n", "g", "delta"),
          {"gamma1": 0.95, "gamma2": 0.9, "epsilon": 1e-8, "clip_weights": -1.0}, "before clipping", _rmspropalex,
          "RMSProp with centred variance and momentum (Graves, 2013)."),
    Rule("ftrl_update", ("z", "n"), {"lamda1": 0.01, "beta": 1.0}, "by the rule", _ftrl,
          "Follow the regularised leader (McMahan et al., 2013)."),
    Rule("signsgd_update", (), {}, "by the rule", _signsgd,
          "The gradient's sign (Bernstein et al., 2018): w = (1 - lr · wd) · w - lr · sign(g)."),
    Rule("signum_update", ("mom",), {"momentum": 0.0, "wd_lh": 0.0}, "after clipping", _signum,
          "The sign of the momentum (Bernstein et al., 2018); wd_lh decays the weight directly."),
    Rule("ftml_update", ("d", "v", "z"), {"beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8, "t": 1.0},
          "before clipping", _ftml, "Follow the moving leader (Zheng and Kwok, 2017), at step t."),
    Rule("_sparse_adagrad_update", ("history",), {"epsilon": 1e-7}, "before clipping", _adagrad,
          "AdaGrad (Duchi et al., 2011): w -= lr · g/√(history + epsilon), history the sum of g²; dense here."),
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
    for weight, grad, *states, target in blocks(*inputs, out):
        w = states.pop() if mixed else weight
        into = w if mixed else target
        g, t = (scratch(run, slot, w.shape, computing_dtype(into.dtype)) for slot in ("update g", "update t"))
        _scaled(run.xp, rule, p, w, grad, g, t)
        rule.step(run.xp, p, w, g, t, states, into)
        if mixed:
            run.xp.copyto(target, w, casting="unsafe")


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


def _scaled(xp: Any, rule: Rule, p: Any, w: Array, grad: Array, g: Array, t: Array) -> None:
    """The gradient, rescaled, clipped and with the weight decay, into g."""
    xp.multiply(grad, g.dtype.type(p.rescale_grad), out=g, casting="unsafe")
    decay = rule.decay if p.wd else "by the rule"
    if decay == "before clipping":
        g += xp.multiply(w, g.dtype.type(p.wd), out=t)
    if p.clip_gradient > 0:
        xp.clip(g, -p.clip_gradient, p.clip_gradient, out=g)
    if decay == "after clipping":
        g += xp.multiply(w, g.dtype.type(p.wd), out=t)


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


def register_rule(rule: Rule, mixed: bool = False, hidden: bool = False, base: type[Update] = Update) -> None:
    """Make the operator of a rule, or of its variant for 16-bit weights with a float32 copy."""
    states = (*rule.states, "weight32") if mixed else rule.states
    clip = "clip_grad" if rule.name == "ftml_update" else "clip_gradient"
    body: dict[str, Any] = {
        "__doc__": rule.doc,
        "__module__": __name__,
        "rule": rule,
        "mixed": mixed,
        "hidden": hidden,
        "arguments": ("weight", "grad", *(f"{name}_state" if name == "grad" else name for name in states)),
        "input_docs": state_docs(rule.states, mixed),
        "updates": tuple(range(2, 2 + len(states))),
        "in_place": ((0, 0),),
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
        body["lazy_update"] = option(True, "Ignored: it concerns sparse gradients.")
    name = rule.master if mixed else rule.name
    operator(name)(type(name, (base,), body))


for _rule in RULES:
    register_rule(_rule)
    if _rule.master:
        register_rule(_rule, mixed=True)
