"""Update rules of optimizers that MXNet computes operator by operator: here each is one pass too.

They have no public function; :mod:`flowmx.optimizer` calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.optimizer_adamw import RULE as ADAMW
from flowmx.ops.optimizer_ops import Rule, average, register_rule
from flowmx.ops.registry import Array


def _adagrad(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    (history,) = states
    xp.multiply(g, g, out=t)
    history += t
    xp.add(history, p.epsilon, out=t)
    xp.sqrt(t, out=t)
    g /= t
    xp.multiply(w, p.wd, out=t)
    g += t
    g *= p.lr
    xp.subtract(w, g, out=out)


def _adadelta(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    squares, deltas = states
    average(xp, squares, g * g, p.rho, t)
    xp.add(squares, p.epsilon, out=t)
    xp.sqrt(t, out=t)
    delta = xp.sqrt(deltas + g.dtype.type(p.epsilon))
    delta /= t
    delta *= g
    xp.multiply(delta, delta, out=g)
    average(xp, deltas, g, p.rho, t)
    xp.multiply(w, p.wd, out=t)
    delta += t
    xp.subtract(w, delta, out=out)


def _adamax(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    mean, norm = states
    average(xp, mean, g, p.beta1, t)
    xp.abs(g, out=g)
    norm *= p.beta2
    xp.maximum(norm, g, out=norm)
    xp.multiply(mean, p.lr, out=t)
    t /= norm
    xp.subtract(w, t, out=out)


def _nadam(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    mean, var = states
    average(xp, mean, g, p.beta1, t)
    average(xp, var, g * g, p.beta2, t)
    xp.divide(var, 1 - p.beta2**p.t, out=t)
    xp.sqrt(t, out=t)
    t += p.epsilon
    g *= (1 - p.momentum) / (1 - p.product)
    g += mean * g.dtype.type(p.following / (1 - p.product * p.following))
    g *= p.lr
    g /= t
    xp.subtract(w, g, out=out)


def _adabelief(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    mean, var = states
    average(xp, mean, g, p.beta1, t)
    g -= mean
    g *= g
    average(xp, var, g, p.beta2, t)
    var += p.epsilon
    xp.sqrt(var, out=t)
    t += p.epsilon
    xp.divide(mean, t, out=t)
    t *= p.lr
    xp.subtract(w, t, out=out)


def _delayed(xp: Any, p: Any, w: Array, g: Array, t: Array, previous: Array) -> None:
    """The step of DCASGD, into g; the weight is kept as the previous one."""
    xp.subtract(w, previous, out=t)
    t *= g
    t *= g
    t *= p.lamda
    g += t
    xp.multiply(w, p.wd, out=t)
    g += t
    g *= p.lr
    xp.copyto(previous, w)


def _dcasgd(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    _delayed(xp, p, w, g, t, states[0])
    xp.subtract(w, g, out=out)


def _dcasgd_mom(xp: Any, p: Any, w: Array, g: Array, t: Array, states: Sequence[Array], out: Array) -> None:
    mom, previous = states
    _delayed(xp, p, w, g, t, previous)
    mom *= p.momentum
    mom -= g
    xp.add(w, mom, out=out)


_MOMENTS = {"beta1": 0.9, "beta2": 0.999}
RULES = [
    Rule("_adagrad_update", ("history",), {"epsilon": 1e-7}, "by the rule", _adagrad,
         "AdaGrad (Duchi et al., 2011): w -= lr · (g/√(history + epsilon) + wd · w), history the sum of g²."),
    Rule("_adadelta_update", ("squares", "deltas"), {"rho": 0.9, "epsilon": 1e-5}, "by the rule", _adadelta,
         "AdaDelta (Zeiler, 2012)."),
    Rule("_adamax_update", ("mean", "norm"), _MOMENTS, "before clipping", _adamax,
         "Adam with the infinity norm (Kingma and Ba, 2014): w -= lr · mean/norm."),
    Rule("_nadam_update", ("mean", "var"),
         {**_MOMENTS, "epsilon": 1e-8, "momentum": 0.9, "following": 0.9, "product": 0.9, "t": 1.0},
         "before clipping", _nadam,
         "Adam with Nesterov's momentum (Dozat, 2015): momentum and following are those of this step and the next, "
         "product is that of all momentums so far."),
    Rule("_adabelief_update", ("mean", "var"), {**_MOMENTS, "epsilon": 1e-6}, "before clipping", _adabelief,
         "AdaBelief (Zhuang et al., 2020): as Adam, var the average of (g - mean)²."),
    Rule("_dcasgd_update", ("previous",), {"lamda": 0.04}, "by the rule", _dcasgd,
         "Delay-compensated SGD (Zheng et al., 2017): w -= lr · (g + wd · w + lamda · g² · (w - previous))."),
    Rule("_dcasgd_mom_update", ("mom", "previous"), {"momentum": 0.0, "lamda": 0.04}, "by the rule", _dcasgd_mom,
         "Delay-compensated SGD with momentum."),
    ADAMW._replace(name="_adamw_step", parameters={**ADAMW.parameters, "eta": 1.0}),
]  # fmt: skip

for _rule in RULES:
    register_rule(_rule, hidden=True)
