"""Update rules of optimizers, each a row: a step on cache-sized blocks, in place, with two blocks to spare.

Called with ``out=weight`` the weight is updated in place; the states always are. Each rule starts from the
gradient times ``rescale_grad``, clipped to ``clip_gradient`` where that is above 0 (some clip after adding
the weight decay, as MXNet does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from flowmx.ops.dtypes import FLOAT32, DType
from flowmx.ops.nn_common import blocks, computing_dtype, expect_shape, scratch
from flowmx.ops.registry import Array, Operator, Run, ShapeOrNone, operator, option, required, same_shape

Step = Callable[..., None]


class _Rule(NamedTuple):
    """One update rule."""

    name: str
    states: tuple[str, ...]
    parameters: dict[str, float]
    """The rule's own parameters and their defaults."""
    decay: Literal["before clipping", "after clipping", "by the rule"]
    """When wd · weight is added to the gradient."""
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


def _average(xp: Any, state: Array, value: Array, rate: float, t: Array) -> None:
    """Update a running average: state = rate · state + (1 - rate) · value."""
    state *= rate
    xp.multiply(value, 1 - rate, out=t)
    state += t


def _adam(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    mean, var = states
    _average(xp, mean, g, p.beta1, t)
    g *= g
    _average(xp, var, g, p.beta2, t)
    xp.sqrt(var, out=t)
    t += p.epsilon
    xp.divide(mean, t, out=t)
    t *= p.lr
    xp.subtract(w, t, out=out)


def _clip_weights(xp: Any, p: Any, out: Array) -> None:
    if p.clip_weights > 0:
        xp.clip(out, -p.clip_weights, p.clip_weights, out=out)


def _rmsprop(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    (n,) = states
    squared = g * g
    _average(xp, n, squared, p.gamma1, t)
    xp.add(n, p.epsilon, out=t)
    xp.sqrt(t, out=t)
    g *= p.lr
    g /= t
    xp.subtract(w, g, out=out)
    _clip_weights(xp, p, out)


def _rmspropalex(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    n, average, delta = states
    squared = g * g
    _average(xp, n, squared, p.gamma1, t)
    _average(xp, average, g, p.gamma1, t)
    xp.multiply(average, average, out=t)
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
    _average(xp, v, squared, p.beta2, t)
    xp.divide(v, 1 - p.beta2**p.t, out=t)
    xp.sqrt(t, out=t)
    t += p.epsilon
    t *= (1 - p.beta1**p.t) / p.lr
    _average(xp, z, g, p.beta1, squared)
    d *= -p.beta1
    d += t
    d *= w
    z -= d
    xp.copyto(d, t)
    xp.divide(z, t, out=t)
    xp.negative(t, out=out)


_MOMENTUM = {"momentum": 0.0}
_RULES = [
    _Rule("sgd_update", (), {}, "after clipping", _sgd,
          "Gradient descent: w -= lr · (g + wd · w).", "mp_sgd_update"),
    _Rule("sgd_mom_update", ("mom",), _MOMENTUM, "after clipping", _sgd_mom,
          "Gradient descent with momentum: m = momentum · m - lr · (g + wd · w); w += m.", "mp_sgd_mom_update"),
    _Rule("nag_mom_update", ("mom",), _MOMENTUM, "after clipping", _nag_mom,
          "Nesterov's accelerated gradient: as sgd_mom_update, one momentum step ahead.", "mp_nag_mom_update"),
    _Rule("adam_update", ("mean", "var"), {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}, "before clipping", _adam,
          "Adam (Kingma and Ba, 2014), the bias correction left to lr: w -= lr · mean/(√var + epsilon)."),
    _Rule("rmsprop_update", ("n",), {"gamma1": 0.95, "epsilon": 1e-8, "clip_weights": -1.0}, "before clipping",
          _rmsprop, "RMSProp (Tieleman and Hinton, 2012): w -= lr · g/√(n + epsilon), n the average of g²."),
    _Rule("rmspropalex_update", ("n", "g", "delta"),
          {"gamma1": 0.95, "gamma2": 0.9, "epsilon": 1e-8, "clip_weights": -1.0}, "before clipping", _rmspropalex,
          "RMSProp with centred variance and momentum (Graves, 2013)."),
    _Rule("ftrl_update", ("z", "n"), {"lamda1": 0.01, "beta": 1.0}, "by the rule", _ftrl,
          "Follow the regularised leader (McMahan et al., 2013)."),
    _Rule("signsgd_update", (), {}, "by the rule", _signsgd,
          "The gradient's sign (Bernstein et al., 2018): w = (1 - lr · wd) · w - lr · sign(g)."),
    _Rule("signum_update", ("mom",), {"momentum": 0.0, "wd_lh": 0.0}, "after clipping", _signum,
          "The sign of the momentum (Bernstein et al., 2018); wd_lh decays the weight directly."),
    _Rule("ftml_update", ("d", "v", "z"), {"beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8, "t": 1.0},
          "before clipping", _ftml, "Follow the moving leader (Zheng and Kwok, 2017), at step t."),
]  # fmt: skip


class _Update(Operator):
    """What all rules share: how the gradient comes in, and the walk over blocks."""

    rule: _Rule
    mixed = False
    no_gradient = True
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
        for weight, grad, *states, out in blocks(*inputs, outputs[0]):
            w = states.pop() if self.mixed else weight
            target = w if self.mixed else out
            dtype = computing_dtype(target.dtype)
            g, t = (scratch(run, slot, w.shape, dtype) for slot in ("update g", "update t"))
            self._scaled(run.xp, w, grad, g, t)
            self.rule.step(run.xp, self, w, g, t, states, target)
            if self.mixed:
                run.xp.copyto(out, w, casting="unsafe")

    def _scaled(self, xp: Any, w: Array, grad: Array, g: Array, t: Array) -> None:
        """The gradient, rescaled, clipped and with the weight decay, into g."""
        xp.multiply(grad, g.dtype.type(self.rescale_grad), out=g, casting="unsafe")
        decay = self.rule.decay if self.wd else "by the rule"
        if decay == "before clipping":
            g += xp.multiply(w, g.dtype.type(self.wd), out=t)
        if self.clip_gradient > 0:
            xp.clip(g, -self.clip_gradient, self.clip_gradient, out=g)
        if decay == "after clipping":
            g += xp.multiply(w, g.dtype.type(self.wd), out=t)


def _register(rule: _Rule, mixed: bool) -> None:
    states = (*rule.states, "weight32") if mixed else rule.states
    clip = "clip_grad" if rule.name == "ftml_update" else "clip_gradient"
    body: dict[str, Any] = {
        "__doc__": rule.doc,
        "__module__": __name__,
        "rule": rule,
        "mixed": mixed,
        "arguments": ("weight", "grad", *(f"{name}_state" if name == "grad" else name for name in states)),
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
    operator(name)(type(name, (_Update,), body))


for _rule in _RULES:
    _register(_rule, mixed=False)
    if _rule.master:
        _register(_rule, mixed=True)


@operator("lamb_update_phase1")
class LambPhase1(Operator):
    """The direction of LAMB (You et al., 2019): Adam's step plus wd · w, for lamb_update_phase2."""

    arguments = ("weight", "grad", "mean", "var")
    updates = (2, 3)
    no_gradient = True
    beta1: float = option(0.9, "Decay of the mean.")
    beta2: float = option(0.999, "Decay of the variance.")
    epsilon: float = option(1e-6, "Added to the root of the variance.")
    t: int = required("Number of the update, from 1.", low=1)
    bias_correction: bool = option(True, "Correct the averages for their start at 0.")
    wd: float = required("Weight decay.")
    rescale_grad: float = option(1.0, "The gradient's factor.")
    clip_gradient: float = option(-1.0, "Clip the gradient to ± this where it is above 0.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        for w, grad, mean, var, out in blocks(*inputs, outputs[0]):
            g, t = (scratch(run, slot, w.shape, w.dtype) for slot in ("update g", "update t"))
            xp.multiply(grad, w.dtype.type(self.rescale_grad), out=g)
            if self.clip_gradient > 0:
                xp.clip(g, -self.clip_gradient, self.clip_gradient, out=g)
            _average(xp, mean, g, self.beta1, t)
            g *= g
            _average(xp, var, g, self.beta2, t)
            corrected = self.bias_correction
            xp.divide(var, 1 - self.beta2**self.t if corrected else 1.0, out=t)
            xp.sqrt(t, out=t)
            t += self.epsilon
            xp.divide(mean, 1 - self.beta1**self.t if corrected else 1.0, out=g)
            g /= t
            xp.multiply(w, w.dtype.type(self.wd), out=t)
            xp.add(g, t, out=out)


@operator("lamb_update_phase2")
class LambPhase2(Operator):
    """LAMB's step: w -= lr · r1/r2 · g, with the norms r1 of the weight and r2 of the direction."""

    arguments = ("weight", "g", "r1", "r2")
    no_gradient = True
    in_place = ((0, 0),)
    lr: float = required("Learning rate.")
    lower_bound: float = option(-1.0, "Least r1, where above 0.")
    upper_bound: float = option(-1.0, "Greatest r1, where above 0.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        shape = same_shape(self, shapes[:2])
        norms = [expect_shape(self, n, s, (1,)) for n, s in zip(("r1", "r2"), shapes[2:], strict=True)]
        return [shape, shape, *norms], [shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        w, g, (r1,), (r2,) = inputs
        if self.lower_bound > 0:
            r1 = max(r1, self.lower_bound)
        if self.upper_bound > 0:
            r1 = min(r1, self.upper_bound)
        ratio = 1.0 if r1 == 0 or r2 == 0 else float(r1) / float(r2)
        run.xp.subtract(w, g * w.dtype.type(self.lr * ratio), out=outputs[0])
