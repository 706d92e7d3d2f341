"""The update rules of optimizers; the inputs are weight, gradient, states."""

from typing import Any

from tests.op_cases.case import Case, fixed, positive

_COMMON: dict[str, Any] = {"lr": 0.1, "wd": 0.05, "rescale_grad": 0.5, "clip_gradient": 0.4}
W = (7, 3)

_TABLE: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("sgd_update", [], {}),
    ("sgd_mom_update", [W], {"momentum": 0.9}),
    ("nag_mom_update", [W], {"momentum": 0.9}),
    ("adam_update", [W, positive(*W)], {"beta1": 0.8}),
    ("rmsprop_update", [positive(*W)], {"gamma1": 0.9, "clip_weights": 1.0}),
    ("rmspropalex_update", [lambda rng: rng.uniform(2.0, 3.0, W), W, W], {}),
    ("ftrl_update", [W, positive(*W)], {"lamda1": 0.3, "beta": 0.5}),
    ("signsgd_update", [], {}),
    ("signum_update", [W], {"momentum": 0.9, "wd_lh": 0.02}),
]

CASES = [
    Case(name, [W, W, *states], {**common, **own}, gradient=False)
    for name, states, own in _TABLE
    for common in (_COMMON, {"lr": 0.1})
] + [
    Case("ftml_update", [W, W, positive(*W), positive(*W), W],
         {"lr": 0.1, "wd": 0.05, "rescale_grad": 0.5, "clip_grad": 0.4, "t": 3}, gradient=False),
    Case("lamb_update_phase1", [W, W, W, positive(*W)], {"wd": 0.1, "t": 2, "clip_gradient": 0.5}, gradient=False),
    Case("lamb_update_phase2", [W, W, positive(1), positive(1)], {"lr": 0.1, "upper_bound": 0.8}, gradient=False),
    Case("_contrib_group_adagrad_update", [W, W, positive(7, 1)],
         {"lr": 0.1, "rescale_grad": 0.5, "clip_gradient": 0.4}, recorded=False, gradient=False),
    Case("_sparse_adagrad_update", [W, W, positive(*W)], {"lr": 0.1, "rescale_grad": 0.5, "clip_gradient": 0.4},
         recorded=False, gradient=False),
    Case("multi_lars", [positive(4), positive(4), fixed([0.5, 0.0, 2.0, 1.0]), positive(4)],
         {"eta": 0.1, "eps": 1e-3, "rescale_grad": 0.5}, gradient=False),
]  # fmt: skip

V = (5,)
_RATES: dict[str, Any] = {"lrs": (0.1, 0.2), "wds": (0.05, 0.0), "num_weights": 2}
_GRADIENT: dict[str, Any] = {"rescale_grad": 0.5, "clip_gradient": 0.4}
_AVERAGES: list[Any] = [W, positive(*W)]
_SMALL: list[Any] = [V, positive(*V)]
_FACTOR = fixed([0.5])


def _updated(op: str, inputs: list[Any], params: dict[str, Any]) -> Case:
    """Return an update of two weights in place; in mixed precision weights and gradients are float16."""
    second = inputs.index(V)
    small = (0, 1, second, second + 1) if "mp_" in op else ()
    return Case(op, inputs, params, gradient=False, out=(0, second), dtypes=dict.fromkeys(small, "float16"))


CASES += [
    _updated("multi_sgd_update", [W, W, V, V], {**_RATES, **_GRADIENT}),
    _updated("multi_sgd_mom_update", [W, W, W, V, V, V], {**_RATES, **_GRADIENT, "momentum": 0.9}),
    _updated("multi_mp_sgd_update", [W, W, W, V, V, V], {**_RATES, **_GRADIENT}),
    _updated("multi_mp_sgd_mom_update", [W, W, W, W, V, V, V, V], {**_RATES, "momentum": 0.9}),
    _updated("preloaded_multi_sgd_update", [W, W, V, V, positive(2), positive(2)], {**_GRADIENT, "num_weights": 2}),
    _updated("preloaded_multi_sgd_mom_update", [W, W, W, V, V, V, positive(2), positive(2)],
         {**_GRADIENT, "num_weights": 2, "momentum": 0.9}),
    _updated("preloaded_multi_mp_sgd_update", [W, W, W, V, V, V, positive(2), positive(2)],
         {**_GRADIENT, "num_weights": 2}),
    _updated("preloaded_multi_mp_sgd_mom_update", [W, W, W, W, V, V, V, V, positive(2), positive(2)],
         {"num_weights": 2, "momentum": 0.9}),
    Case("_adamw_update", [W, W, *_AVERAGES, fixed([1.0])], {"lr": 0.1, "eta": 0.5, "wd": 0.1}, gradient=False),
    Case("_mp_adamw_update", [W, W, *_AVERAGES, W, _FACTOR], {"lr": 0.1, "eta": 0.5, "wd": 0.1, "clip_gradient": 0.4},
         gradient=False, dtypes={0: "float16", 1: "float16"}),
    _updated("_multi_adamw_update", [W, W, *_AVERAGES, V, V, *_SMALL, _FACTOR],
         {**_RATES, "etas": (0.5, 1.0), "clip_gradient": 0.4, "beta1": 0.8}),
    _updated("_multi_mp_adamw_update", [W, W, *_AVERAGES, W, V, V, *_SMALL, V, _FACTOR],
         {**_RATES, "etas": (0.5, 1.0)}),
    Case("mp_lamb_update_phase1", [W, W, *_AVERAGES, W], {"wd": 0.1, "t": 2, "clip_gradient": 0.5}, gradient=False,
         dtypes={0: "float16", 1: "float16"}),
    # MXNet does not update the float32 copy, contrary to its documentation.
    Case("mp_lamb_update_phase2", [W, W, positive(1), positive(1), W], {"lr": 0.1, "lower_bound": 1.2},
         gradient=False, recorded=False),
] + [
    _updated(f"_multi_{mixed}lamb_update",
         [W, W, *_AVERAGES, *([W] if mixed else []), V, V, *_SMALL, *([V] if mixed else [])],
         {"learning_rates": (0.1, 0.2), "wds": (0.05, 0.0), "step_count": (1, 3), "num_tensors": 2, **more})
    for mixed in ("", "mp_")
    for more in ({}, {"rescale_grad": 0.5, "clip_gradient": 0.4, "bias_correction": False, "lower_bound": 5.0},
                 {"upper_bound": 0.5})
]  # fmt: skip
