"""The update rules of optimizers: the new weight and states from the weight, its gradient and its states.

The arguments of a rule are the parameters, the weight, the gradient (rescaled, clipped, and with the weight decay added
unless the rule adds it) and the states. It returns the new weight, then the new states.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal

from flowmx.ops.formulas.expressions import Expr, Parameters, absolute, clip, maximum, sqrt, where

Update = Callable[..., tuple[Expr, ...]]
Decay = Literal["before clipping", "after clipping", "by the rule"]


def with_preprocessing(update: Update, decay: Decay) -> Update:
    """Return the formula of an update from the raw gradient: rescale it, clip it, and add the weight decay.

    Args:
        update: the rule's formula.
        decay: when wd · weight is added to the gradient.
    """

    def formula(p: Parameters, w: Expr, grad: Expr, *states: Expr) -> tuple[Expr, ...]:
        decays = decay if p.op.wd else "by the rule"
        g = grad * p.rescale_grad
        if decays == "before clipping":
            g = g + p.wd * w
        g = _clip_gradient(p, g)
        if decays == "after clipping":
            g = g + p.wd * w
        return update(p, w, g, *states)

    return formula


def variant_key(p: Any) -> Hashable:
    """Return the parameters that select the form of an update: clipping, decay, clipping of weights."""
    return p.clip_gradient > 0, bool(p.wd), getattr(p, "clip_weights", -1.0) > 0


def _clip_gradient(p: Parameters, g: Expr) -> Expr:
    return clip(g, -p.clip_gradient, p.clip_gradient) if p.op.clip_gradient > 0 else g


def _average(rate: Expr, state: Expr, value: Expr) -> Expr:
    return rate * state + (1.0 - rate) * value


def sgd(p: Parameters, w: Expr, g: Expr) -> tuple[Expr, ...]:
    """Gradient descent."""
    return (w - p.lr * g,)


def sgd_mom(p: Parameters, w: Expr, g: Expr, mom: Expr) -> tuple[Expr, ...]:
    """Gradient descent with momentum."""
    mom = p.momentum * mom - p.lr * g
    return w + mom, mom


def nag_mom(p: Parameters, w: Expr, g: Expr, mom: Expr) -> tuple[Expr, ...]:
    """Nesterov's accelerated gradient."""
    step = p.lr * g
    mom = p.momentum * mom - step
    return w + (p.momentum * mom - step), mom


def adam(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    """Adam."""
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    return w - p.lr * (mean / (sqrt(var) + p.epsilon)), mean, var


def _clip_weight(p: Parameters, w: Expr) -> Expr:
    return clip(w, -p.clip_weights, p.clip_weights) if p.op.clip_weights > 0 else w


def rmsprop(p: Parameters, w: Expr, g: Expr, n: Expr) -> tuple[Expr, ...]:
    """RMSProp."""
    n = _average(p.gamma1, n, g * g)
    return _clip_weight(p, w - p.lr * g / sqrt(n + p.epsilon)), n


def rmspropalex(p: Parameters, w: Expr, g: Expr, n: Expr, mean: Expr, delta: Expr) -> tuple[Expr, ...]:
    """RMSProp with centred variance and momentum."""
    n, mean = _average(p.gamma1, n, g * g), _average(p.gamma1, mean, g)
    delta = p.gamma2 * delta - p.lr * g / sqrt(n - mean * mean + p.epsilon)
    return _clip_weight(p, w + delta), n, mean, delta


def ftrl(p: Parameters, w: Expr, g: Expr, z: Expr, n: Expr) -> tuple[Expr, ...]:
    """Follow the regularized leader."""
    before, n = sqrt(n), n + g * g
    root = sqrt(n)
    z = z + g - (root - before) * w / p.lr
    step = (where(z < 0.0, -p.lamda1, p.lamda1) - z) / ((root + p.beta) / p.lr + p.wd)
    return where(absolute(z) > p.lamda1, step, 0.0), z, n


def _sign(x: Expr) -> Expr:
    return where(x > 0.0, 1.0, where(x < 0.0, -1.0, x))


def signsgd(p: Parameters, w: Expr, g: Expr) -> tuple[Expr, ...]:
    """A step along the gradient's sign."""
    return ((1.0 - p.lr * p.wd) * w - p.lr * _sign(g),)


def signum(p: Parameters, w: Expr, g: Expr, mom: Expr) -> tuple[Expr, ...]:
    """A step along the momentum's sign."""
    mom = p.momentum * mom - (1.0 - p.momentum) * g
    return (1.0 - p.lr * p.wd_lh) * w + p.lr * _sign(mom), mom


def ftml(p: Parameters, w: Expr, g: Expr, d: Expr, v: Expr, z: Expr) -> tuple[Expr, ...]:
    """Follow the moving leader."""
    v = _average(p.beta2, v, g * g)
    new = (1.0 - p.beta1**p.t) / p.lr * (sqrt(v / (1.0 - p.beta2**p.t)) + p.epsilon)
    z = _average(p.beta1, z, g) - (new - p.beta1 * d) * w
    return -z / new, new, v, z


def sparse_adagrad(p: Parameters, w: Expr, g: Expr, history: Expr) -> tuple[Expr, ...]:
    """AdaGrad."""
    history = history + g * g
    return w - p.lr * g / sqrt(history + p.epsilon), history


def adagrad(p: Parameters, w: Expr, g: Expr, history: Expr) -> tuple[Expr, ...]:
    """AdaGrad with decoupled weight decay."""
    history = history + g * g
    return w - p.lr * (g / sqrt(history + p.epsilon) + p.wd * w), history


def adadelta(p: Parameters, w: Expr, g: Expr, squares: Expr, deltas: Expr) -> tuple[Expr, ...]:
    """AdaDelta."""
    squares = _average(p.rho, squares, g * g)
    delta = sqrt(deltas + p.epsilon) / sqrt(squares + p.epsilon) * g
    return w - (delta + p.wd * w), squares, _average(p.rho, deltas, delta * delta)


def adamax(p: Parameters, w: Expr, g: Expr, mean: Expr, norm: Expr) -> tuple[Expr, ...]:
    """Adam with the infinity norm."""
    mean, norm = _average(p.beta1, mean, g), maximum(p.beta2 * norm, absolute(g))
    return w - p.lr * mean / norm, mean, norm


def nadam(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    """Adam with Nesterov's momentum."""
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    ahead = g * ((1.0 - p.momentum) / (1.0 - p.product)) + mean * (p.following / (1.0 - p.product * p.following))
    return w - p.lr * ahead / (sqrt(var / (1.0 - p.beta2**p.t)) + p.epsilon), mean, var


def adabelief(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    """AdaBelief."""
    mean = _average(p.beta1, mean, g)
    var = _average(p.beta2, var, (g - mean) * (g - mean)) + p.epsilon
    return w - p.lr * (mean / (sqrt(var) + p.epsilon)), mean, var


def adamw(p: Parameters, w: Expr, g: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    """Adam with decoupled weight decay."""
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    return (1.0 - p.eta * p.wd) * w - p.lr * p.eta * (mean / (sqrt(var) + p.epsilon)), mean, var


def dcasgd(p: Parameters, w: Expr, g: Expr, previous: Expr) -> tuple[Expr, ...]:
    """Delay-compensated gradient descent."""
    return w - p.lr * (g + p.lamda * ((w - previous) * g * g) + p.wd * w), w


def dcasgd_mom(p: Parameters, w: Expr, g: Expr, mom: Expr, previous: Expr) -> tuple[Expr, ...]:
    """Delay-compensated gradient descent with momentum."""
    mom = p.momentum * mom - p.lr * (g + p.lamda * ((w - previous) * g * g) + p.wd * w)
    return w + mom, mom, w


def lamb_direction(p: Parameters, w: Expr, grad: Expr, mean: Expr, var: Expr) -> tuple[Expr, ...]:
    """The direction of LAMB's step from the raw gradient, then the new mean and variance."""
    g = _clip_gradient(p, grad * p.rescale_grad)
    mean, var = _average(p.beta1, mean, g), _average(p.beta2, var, g * g)
    averages = (mean / (1.0 - p.beta1**p.t), var / (1.0 - p.beta2**p.t)) if p.op.bias_correction else (mean, var)
    return averages[0] / (sqrt(averages[1]) + p.epsilon) + p.wd * w, mean, var


def lamb_variant_key(p: Any) -> Hashable:
    """Return the parameters that select the form of LAMB's direction: clipping, bias correction."""
    return p.clip_gradient > 0, bool(p.bias_correction)
