"""Updates of weights, each as one pass over the weight, its gradient and its states."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from flowmx.ops.kernels.loops.elementwise import fused
from flowmx.ops.kernels.loops.expressions import Expr, Parameters, absolute, clip, maximum, sqrt, where

Rule = Callable[..., tuple[Expr, ...]]
"""``rule(p, w, g, *states)``: the new weight, then the new states; g is rescaled, clipped and decayed."""


def _average(rate: Expr, state: Expr, value: Expr) -> Expr:
    return rate * state + (1.0 - rate) * value


def _sgd(p: Parameters, w: Expr, g: Expr) -> tuple[Expr, ...]:
    return (w - p.lr * g,)


def _sgd_mom(p: Parameters, w: Expr, g: Expr, mom: Expr) -> tuple[Expr, ...]:
    mom = p.momentum * mom - p.lr * g
    return w + mom, mom


def _nag_mom(p: Parameters, w: Expr, g: Expr, mom: Expr) -> tuple[Expr, ...]:
    step = p.lr * g
    mom = p.momentum * mom - step
    return w + (p.momentum * mom - step), mom


def _adam(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    return w - p.lr * (mean / (sqrt(var) + p.epsilon)), mean, var


def _within(p: Parameters, w: Expr) -> Expr:
    return clip(w, -p.clip_weights, p.clip_weights) if p.op.clip_weights > 0 else w


def _rmsprop(p: Parameters, w: Expr, g: Expr, n: Expr) -> tuple[Expr, ...]:
    n = _average(p.gamma1, n, g * g)
    return _within(p, w - p.lr * g / sqrt(n + p.epsilon)), n


def _rmspropalex(p: Parameters, w: Expr, g: Expr, n: Expr, average: Expr, delta: Expr) -> tuple[Expr, ...]:
    n, average = _average(p.gamma1, n, g * g), _average(p.gamma1, average, g)
    delta = p.gamma2 * delta - p.lr * g / sqrt(n - average * average + p.epsilon)
    return _within(p, w + delta), n, average, delta


def _ftrl(p: Parameters, w: Expr, g: Expr, z: Expr, n: Expr) -> tuple[Expr, ...]:
    before, n = sqrt(n), n + g * g
    root = sqrt(n)
    z = z + g - (root - before) * w / p.lr
    step = (where(z < 0.0, -p.lamda1, p.lamda1) - z) / ((root + p.beta) / p.lr + p.wd)
    return where(absolute(z) > p.lamda1, step, 0.0), z, n


def _sign(x: Expr) -> Expr:
    return where(x > 0.0, 1.0, where(x < 0.0, -1.0, x))


def _signsgd(p: Parameters, w: Expr, g: Expr) -> tuple[Expr, ...]:
    return ((1.0 - p.lr * p.wd) * w - p.lr * _sign(g),)


def _signum(p: Parameters, w: Expr, g: Expr, mom: Expr) -> tuple[Expr, ...]:
    mom = p.momentum * mom - (1.0 - p.momentum) * g
    return (1.0 - p.lr * p.wd_lh) * w + p.lr * _sign(mom), mom


def _ftml(p: Parameters, w: Expr, g: Expr, d: Expr, v: Expr, z: Expr) -> tuple[Expr, ...]:
    v = _average(p.beta2, v, g * g)
    new = (1.0 - p.beta1**p.t) / p.lr * (sqrt(v / (1.0 - p.beta2**p.t)) + p.epsilon)
    z = _average(p.beta1, z, g) - (new - p.beta1 * d) * w
    return -z / new, new, v, z


def _adagrad(p: Parameters, w: Expr, g: Expr, history: Expr) -> tuple[Expr, ...]:
    history = history + g * g
    return w - p.lr * (g / sqrt(history + p.epsilon) + p.wd * w), history


def _adadelta(p: Parameters, w: Expr, g: Expr, squares: Expr, deltas: Expr) -> tuple[Expr, ...]:
    squares = _average(p.rho, squares, g * g)
    delta = sqrt(deltas + p.epsilon) / sqrt(squares + p.epsilon) * g
    return w - (delta + p.wd * w), squares, _average(p.rho, deltas, delta * delta)


def _adamax(p: Parameters, w: Expr, g: Expr, mean: Expr, norm: Expr) -> tuple[Expr, ...]:
    mean, norm = _average(p.beta1, mean, g), maximum(p.beta2 * norm, absolute(g))
    return w - p.lr * mean / norm, mean, norm


def _nadam(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    ahead = g * ((1.0 - p.momentum) / (1.0 - p.product)) + mean * (p.following / (1.0 - p.product * p.following))
    return w - p.lr * ahead / (sqrt(var / (1.0 - p.beta2**p.t)) + p.epsilon), mean, var


def _adabelief(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    mean = _average(p.beta1, mean, g)
    var = _average(p.beta2, var, (g - mean) * (g - mean)) + p.epsilon
    return w - p.lr * (mean / (sqrt(var) + p.epsilon)), mean, var


def _adamw(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    return (1.0 - p.eta * p.wd) * w - p.lr * p.eta * (mean / (sqrt(var) + p.epsilon)), mean, var


def _dcasgd(p: Parameters, w: Expr, g: Expr, previous: Expr) -> tuple[Expr, ...]:
    return w - p.lr * (g + p.lamda * ((w - previous) * g * g) + p.wd * w), w


def _dcasgd_mom(p: Parameters, w: Expr, g: Expr, mom: Expr, previous: Expr) -> tuple[Expr, ...]:
    mom = p.momentum * mom - p.lr * (g + p.lamda * ((w - previous) * g * g) + p.wd * w)
    return w + mom, mom, w


_RULES: dict[str, Rule] = {
    "sgd_update": _sgd,
    "sgd_mom_update": _sgd_mom,
    "nag_mom_update": _nag_mom,
    "adam_update": _adam,
    "rmsprop_update": _rmsprop,
    "rmspropalex_update": _rmspropalex,
    "ftrl_update": _ftrl,
    "signsgd_update": _signsgd,
    "signum_update": _signum,
    "ftml_update": _ftml,
    "_adagrad_update": _adagrad,
    "_adadelta_update": _adadelta,
    "_adamax_update": _adamax,
    "_nadam_update": _nadam,
    "_adabelief_update": _adabelief,
    "_adamw_step": _adamw,
    "_dcasgd_update": _dcasgd,
    "_dcasgd_mom_update": _dcasgd_mom,
}


def _shape(op: Any) -> Hashable:
    """The steps of an update that its parameters enable: clipping, decay, clipping of weights."""
    return op.clip_gradient > 0, bool(op.wd), getattr(op, "clip_weights", -1.0) > 0


def _formula(rule: Rule) -> Callable[..., tuple[Expr, ...]]:
    def formula(p: Parameters, w: Expr, grad: Expr, *states: Expr) -> tuple[Expr, ...]:
        decay = p.op.rule.decay if p.op.wd else "by the rule"
        g = grad * p.rescale_grad
        if decay == "before clipping":
            g = g + p.wd * w
        if p.op.clip_gradient > 0:
            g = clip(g, -p.clip_gradient, p.clip_gradient)
        if decay == "after clipping":
            g = g + p.wd * w
        return rule(p, w, g, *states)

    return formula


for _name, _rule in _RULES.items():
    fused(_name, _formula(_rule), variant=_shape, least=1)


def _lamb_direction(p: Parameters, w: Expr, grad: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    g = grad * p.rescale_grad
    if p.op.clip_gradient > 0:
        g = clip(g, -p.clip_gradient, p.clip_gradient)
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    fixed = (mean / (1.0 - p.beta1**p.t), var / (1.0 - p.beta2**p.t)) if p.op.bias_correction else (mean, var)
    return fixed[0] / (sqrt(fixed[1]) + p.epsilon) + p.wd * w, mean, var


fused(
    "lamb_update_phase1", _lamb_direction, variant=lambda op: (op.clip_gradient > 0, bool(op.bias_correction)), least=1
)
