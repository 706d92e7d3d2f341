"""The elementwise operators of ops/math/unary.py, ops/math/binary.py and ops/math/select.py."""

from tests.op_cases.case import Case, apart, fixed, positive, ties


def between(low, high, *shape):
    return lambda rng: rng.uniform(low, high, shape)


_INSIDE = between(-0.9, 0.9, 3, 4)
_ABOVE_ONE = between(1.1, 3.0, 3, 4)

# A range in which each function is smooth.
_DOMAINS = {
    **dict.fromkeys(["negative", "square", "exp", "expm1", "sin", "cos", "tanh", "sinh", "cosh", "arctan", "arcsinh",
                     "sigmoid", "degrees", "radians", "erf", "_copy"], (3, 4)),
    **dict.fromkeys(["abs", "relu", "softsign", "reciprocal", "cbrt", "rcbrt", "sign"], apart(3, 4)),
    **dict.fromkeys(["sqrt", "rsqrt", "log", "log10", "log2", "log1p"], positive(3, 4)),
    **dict.fromkeys(["arcsin", "arccos", "arctanh", "tan"], _INSIDE),
    "arccosh": _ABOVE_ONE,
    **dict.fromkeys(["round", "rint", "ceil", "floor", "trunc", "fix"], between(0.1, 0.4, 3, 4)),
}  # fmt: skip

_PAIRS = ["add", "sub", "mul", "div", "mod", "power", "maximum", "minimum", "hypot"]
_COMPARISONS = ["equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal", "logical_and",
                "logical_or", "logical_xor"]  # fmt: skip
_SCALAR = ["_plus", "_minus", "_rminus", "_mul", "_div", "_rdiv", "_mod", "_rmod", "_power", "_rpower", "_maximum",
           "_minimum", "_hypot"]  # fmt: skip


def _elementwise(name):
    return f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"


CASES = [
    *(Case(name, [domain], second=name != "sign") for name, domain in _DOMAINS.items()),
    Case("_softrelu", [(3, 4)], recorded=False),
    Case("silu", [(3, 4)], recorded=False, second=True),
    Case("gelu_tanh", [(3, 4)], recorded=False, second=True),
    Case("logical_not", [ties(3, 4)], numeric=False),
    Case("round", [fixed([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])], numeric=False, note="halves"),
    Case("BlockGrad", [(3, 4)], numeric=False),
    *(
        Case(f"broadcast_{name}", [positive(*one), positive(*other)], second=True)
        for name in _PAIRS
        for one, other in [((3, 4), (3, 4)), ((2, 1, 4), (1, 3, 1))]
    ),
    *(Case(_elementwise(name), [positive(3, 4), positive(3, 4)], second=True) for name in _PAIRS),
    *(Case(f"broadcast_{name}", [ties(3, 4), ties(1, 4)], gradient=False) for name in _COMPARISONS),
    *(Case(f"_{name}", [ties(3, 4), ties(3, 4)], gradient=False) for name in _COMPARISONS),
    *(Case(f"_{name}_scalar", [ties(3, 4)], {"scalar": 1.0}, gradient=False) for name in _COMPARISONS),
    *(Case(f"{name}_scalar", [positive(3, 4)], {"scalar": 1.7}, second=True) for name in _SCALAR),
    Case("smooth_l1", [apart(3, 4)], {"scalar": 1.3}),
    Case("where", [ties(3, 4), (3, 4), (3, 4)], wrt=(1, 2), second=True),
    Case("where", [ties(3), (3, 4), (3, 4)], wrt=(1, 2), note="rows"),
    Case("clip", [apart(4, 5)], {"a_min": -1.0, "a_max": 1.2}, second=True),
    Case("add_n", [(3, 4), (3, 4), (3, 4)], second=True),
    Case("add_n", [(3, 4)]),
]
