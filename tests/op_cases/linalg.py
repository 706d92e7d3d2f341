"""MXNet's linalg operators. tests/ops/test_linalg.py checks the gradients by symmetric matrices."""

from typing import Any

import numpy as np

from tests.op_cases.case import Case


def definite(*shape):
    """Return symmetric positive definite matrices."""

    def make(rng):
        a = rng.standard_normal(shape)
        return a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])

    return make


def regular(*shape):
    """Return matrices far from singular."""
    return lambda rng: rng.standard_normal(shape) + 2 * np.eye(shape[-1])


def flipped(*shape):
    """Return matrices far from singular with negative determinants."""
    return lambda rng: regular(*shape)(rng) * ([-1.0] + [1.0] * (shape[-1] - 1))


_WAYS: list[dict[str, Any]] = [
    {},
    {"transpose": True, "alpha": 1.5},
    {"rightside": True, "lower": False},
    {"rightside": True, "transpose": True, "alpha": -0.5},
    {"transpose": True, "lower": False},
]

CASES = [
    *(
        Case(name, [regular(2, side, side), (2, 3, 4)], ways, second=True)
        for name in ("_linalg_trmm", "_linalg_trsm")
        for ways in _WAYS
        for side in [4 if "rightside" in ways else 3]
    ),
    Case("_linalg_trsm", [regular(3, 3), (3, 2)]),
    Case("_linalg_potrf", [definite(2, 3, 3)], numeric=False),
    Case("_linalg_potrf", [definite(4, 4)], numeric=False, note="single"),
    Case("_linalg_potri", [regular(2, 3, 3)], second=True),
    Case("_linalg_gelqf", [(2, 3, 4)]),
    Case("_linalg_gelqf", [regular(3, 3)], note="square"),
    Case("_linalg_syevd", [definite(2, 4, 4)], numeric=False),
    Case("_linalg_inverse", [regular(2, 3, 3)], second=True),
    Case("_linalg_det", [flipped(2, 3, 3)], second=True),
    Case("_linalg_det", [regular(3, 3)], note="single"),
    Case("_linalg_slogdet", [flipped(2, 3, 3)]),
    *(Case("_linalg_extractdiag", [(2, 4, 4)], {"offset": k}, second=True) for k in (0, 1, -2)),
    *(Case("_linalg_makediag", [(2, 3)], {"offset": k}, second=True) for k in (0, 1, -2)),
    *(
        Case(name, [shape], {"offset": k, "lower": lower}, second=True)
        for name, shape in [("_linalg_extracttrian", (2, 4, 4)), ("_linalg_maketrian", (2, 6))]
        for k, lower in [(0, True), (0, False), (1, True), (-1, True)]
    ),
    Case("_linalg_gemm2", [(3, 2, 4), (4, 2, 5)], {"axis": 0, "alpha": 0.5}, second=True),
    Case("_linalg_gemm2", [(2, 4, 3, 2), (2, 5, 3, 4)],
         {"axis": -3, "transpose_a": True, "transpose_b": True}, second=True),
    Case("_linalg_gemm", [(3, 2, 4), (4, 2, 5), (3, 2, 5)], {"axis": 0, "beta": 2.0}, second=True),
    Case("_linalg_sumlogdiag", [definite(3, 3)], second=True),
    Case("_linalg_triangle", [(2, 3, 3)], {"lower": False}, second=True, recorded=False),
    Case("_linalg_mirror", [(2, 3, 3)], second=True, recorded=False),
    Case("_linalg_gaps", [lambda rng: np.array([[-1.0, 0.5, 2.0], [0.1, 0.4, 3.0]])], second=True, recorded=False),
    Case("_linalg_inverse_or_zero", [regular(2, 3, 3)], recorded=False),
]  # fmt: skip
