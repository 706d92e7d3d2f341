"""The optimizers' update rules: inputs weight, gradient, states."""

from typing import Any

from tests.op_cases.case import Case, positive

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
]  # fmt: skip
