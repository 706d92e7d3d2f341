"""The error functions and the gamma family."""

from tests.op_cases.case import Case, positive


def _between(low, high):
    return lambda rng: rng.uniform(low, high, (3, 4))


CASES = [
    Case("erf", [_between(-3.0, 3.0)], second=True),
    Case("erfinv", [_between(-0.9, 0.9)], second=True),
    Case("gamma", [positive(3, 4)], second=True),
    Case("gamma", [_between(8.1, 8.9)], note="far"),
    Case("gamma", [_between(-1.9, -1.1)], second=True, note="negative"),
    Case("gammaln", [positive(3, 4)], second=True),
    Case("gammaln", [_between(7.0, 30.0)], second=True, note="far"),
    Case("gammaln", [_between(-1.9, -1.1)], second=True, note="negative"),
    *(Case("_polygamma", [_between(0.5, 12.0)], {"order": order}, second=True, recorded=False) for order in (0, 1, 2)),
    Case("_polygamma", [_between(-1.9, -1.1)], {"order": 1}, second=True, recorded=False, note="negative"),
]
