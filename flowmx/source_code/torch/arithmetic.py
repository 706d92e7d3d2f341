"""PyTorch's code of arithmetic, activations, comparisons, reductions and products of matrices."""

from __future__ import annotations

from flowmx.ops.registry.dtypes import name_of
from flowmx.source_code.description import Layer, Unsupported
from flowmx.source_code.reading import Code, Row, Site

__all__ = ["ROWS", "cast", "dtype_name"]


def dtype_name(dtype: object) -> str:
    """Return PyTorch's name of a dtype."""
    return f"torch.{name_of(dtype)}"  # type: ignore[arg-type]  # NumPy's dtype


def cast(text: str, dtype: object) -> str:
    """Return the conversion of an expression to a dtype."""
    short = {"float32": "float", "int64": "long", "int32": "int", "float16": "half", "float64": "double"}
    name = name_of(dtype)  # type: ignore[arg-type]  # NumPy's dtype
    return f"{text}.{short[name]}()" if name in short else f"{text}.to(torch.{name})"


# -- two operands ----------------------------------------------------------------------------------------------------

_OPERATORS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "power": "{0} ** {1}",
    "maximum": "torch.maximum({0}, {1})", "minimum": "torch.minimum({0}, {1})", "hypot": "torch.hypot({0}, {1})",
    "mod": "torch.remainder({0}, {1})",
}  # fmt: skip
_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "greater": ">", "greater_equal": ">=", "lesser": "<", "lesser_equal": "<=",
}  # fmt: skip
_LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
_WITH_NUMBER = {
    "_plus_scalar": "{0} + {scalar}", "_minus_scalar": "{0} - {scalar}", "_rminus_scalar": "{scalar} - {0}",
    "_mul_scalar": "{0} * {scalar}", "_div_scalar": "{0} / {scalar}", "_rdiv_scalar": "{scalar} / {0}",
    "_mod_scalar": "{0} % {scalar}", "_rmod_scalar": "torch.remainder({scalar}, {0})",
    "_power_scalar": "{0} ** {scalar}",
    "_rpower_scalar": "{scalar} ** {0}", "_maximum_scalar": "{0}.clamp(min={scalar})",
    "_minimum_scalar": "{0}.clamp(max={scalar})", "_scatter_plus_scalar": "{0} + {scalar}",
    "_scatter_minus_scalar": "{0} - {scalar}", "_hypot_scalar": "({0}.square() + {scalar} ** 2).sqrt()",
}  # fmt: skip


def _binary(template: str) -> Row:
    def row(n: Site) -> str:
        if n.out_dtype().kind in "iu" and " / " in template:
            return cast(f"({template})", n.out_dtype())
        return template

    return row


def _with_number(template: str) -> Row:
    def row(n: Site) -> Code:
        number = float(n.op.scalar)
        is_whole = n.out_dtype().kind in "iu" and number.is_integer()
        constant = int(number) if is_whole else number
        text = template
        if n.out_dtype().kind in "iu" and " / " in template:
            text = cast(f"({template})", n.out_dtype())
        elif n.out_dtype().kind == "f" and n.dtype().kind in "iu":
            text = template.replace("{0}", cast("{0}", n.out_dtype()))
        return Code(text, constants={"scalar": constant})

    return row


def _comparison(sign: str, with_number: bool) -> Row:
    def row(n: Site) -> Code:
        other = "{scalar}" if with_number else "{1}"
        constants = {"scalar": float(n.op.scalar)} if with_number else {}
        return Code(cast(f"({{0}} {sign} {other})", n.out_dtype()), constants=constants)

    return row


def _logic(sign: str, with_number: bool) -> Row:
    def row(n: Site) -> Code:
        other = "({scalar} != 0)" if with_number else "({1} != 0)"
        constants = {"scalar": float(n.op.scalar)} if with_number else {}
        return Code(cast(f"(({{0}} != 0) {sign} {other})", n.out_dtype()), constants=constants)

    return row


def _two_operands() -> dict[str, Row]:
    rows: dict[str, Row] = {name: _with_number(text) for name, text in _WITH_NUMBER.items()}
    for name, text in _OPERATORS.items():
        rows |= {f"{prefix}{name}": _binary(text) for prefix in ("broadcast_", "elemwise_", "_")}
    for name, sign in _COMPARISONS.items():
        rows |= {f"{prefix}{name}": _comparison(sign, False) for prefix in ("broadcast_", "_")}
        rows[f"_{name}_scalar"] = _comparison(sign, True)
    for name, sign in _LOGIC.items():
        rows |= {f"{prefix}{name}": _logic(sign, False) for prefix in ("broadcast_", "_")}
        rows[f"_{name}_scalar"] = _logic(sign, True)
    return rows


# -- one operand -----------------------------------------------------------------------------------------------------

_UNARY = {
    "negative": "-{0}", "abs": "{0}.abs()", "sign": "{0}.sign()", "rint": "({0} - 0.5).ceil()", "ceil": "{0}.ceil()",
    "floor": "{0}.floor()", "trunc": "{0}.trunc()", "fix": "{0}.trunc()",
    "round": "{0}.sign() * ({0}.abs() + 0.5).floor()", "square": "{0}.square()", "sqrt": "{0}.sqrt()",
    "rsqrt": "{0}.rsqrt()", "cbrt": "{0}.sign() * {0}.abs() ** (1 / 3)",
    "rcbrt": "{0}.sign() * {0}.abs() ** (-1 / 3)", "exp": "{0}.exp()", "expm1": "{0}.expm1()", "log": "{0}.log()",
    "log10": "{0}.log10()", "log2": "{0}.log2()", "log1p": "{0}.log1p()", "sin": "{0}.sin()", "cos": "{0}.cos()",
    "tan": "{0}.tan()", "arcsin": "{0}.asin()", "arccos": "{0}.acos()", "arctan": "{0}.atan()", "sinh": "{0}.sinh()",
    "cosh": "{0}.cosh()", "tanh": "{0}.tanh()", "arcsinh": "{0}.asinh()", "arccosh": "{0}.acosh()",
    "arctanh": "{0}.atanh()", "degrees": "torch.rad2deg({0})", "radians": "torch.deg2rad({0})",
    "reciprocal": "{0}.reciprocal()", "relu": "F.relu({0})", "sigmoid": "{0}.sigmoid()", "silu": "F.silu({0})",
    "gelu_tanh": 'F.gelu({0}, approximate="tanh")', "softsign": "F.softsign({0})", "_softrelu": "F.softplus({0})",
    "erf": "{0}.erf()", "erfinv": "{0}.erfinv()", "gamma": "{0}.lgamma().exp()", "gammaln": "{0}.lgamma()",
    "hard_sigmoid": "({alpha} * {0} + {beta}).clamp(0, 1)", "_contrib_div_sqrt_dim": "{0} / {0}.shape[-1] ** 0.5",
    "_contrib_quadratic": "{a} * {0}.square() + {b} * {0} + {c}", "_copy": "{0}", "BlockGrad": "{0}.detach()",
    "_identity_with_attr_like_rhs": "{0}", "_copyto": "{0}", "cast_storage": "{0}",
    "_contrib_gradientmultiplier": "{0}",
    "zeros_like": "torch.zeros_like({0})", "ones_like": "torch.ones_like({0})", "IdentityAttachKLSparseReg": "{0}",
    "_contrib_round_ste": "{0} + ({0}.sign() * ({0}.abs() + 0.5).floor() - {0}).detach()",
    "_contrib_sign_ste": "{0} + ({0}.sign() - {0}).detach()",
}  # fmt: skip


def _logical_not(n: Site) -> str:
    return cast("({0} == 0)", n.out_dtype())


def _cast(n: Site) -> str:
    return "{0}" if n.dtype() == n.out_dtype() else cast("{0}", n.out_dtype())


def _clip(n: Site) -> str:
    return "F.relu6({0})" if (n.op.a_min, n.op.a_max) == (0, 6) else "{0}.clamp({a_min}, {a_max})"


def _smooth_l1(n: Site) -> str:
    square = float(n.op.scalar) ** 2
    return (
        f"torch.where({{0}}.abs() < {1 / square!r}, {0.5 * square!r} * {{0}}.square(), {{0}}.abs() - {0.5 / square!r})"
    )


def _multicast(n: Site) -> Code:
    parts = ", ".join(cast(f"{{{i}}}", n.out_dtype(i)) for i in range(n.count))
    return Code(f"({parts},)", outputs=tuple(range(n.count)))


# -- activations -----------------------------------------------------------------------------------------------------

_ACTIVATIONS = {
    "relu": "F.relu({0})", "sigmoid": "{0}.sigmoid()", "tanh": "{0}.tanh()", "softrelu": "F.softplus({0})",
    "softsign": "F.softsign({0})",
}  # fmt: skip


def _activation(n: Site) -> str:
    return _ACTIVATIONS[n.op.act_type]


def _leaky(n: Site) -> Code | str:
    op = n.op
    if op.act_type == "prelu":
        if n.owns(1) and n.array(1).ndim == 1:
            layer = Layer("nn.PReLU", {"num_parameters": n.array(1).size}, 1, {}, n.state(weight=1), title="act")
            return Code("{layer}({0})", {"layer": layer})
        return "F.prelu({0}, {1}.flatten())"
    if op.act_type == "leaky":
        return Code("F.leaky_relu({0}, {slope})", constants={"slope": float(op.slope)})
    if op.act_type == "elu":
        return Code("F.elu({0}, {slope})", constants={"slope": float(op.slope)})
    if op.act_type == "rrelu":
        return f"F.rrelu({{0}}, {float(op.lower_bound)}, {float(op.upper_bound)}, self.training)"
    return {"selu": "F.selu({0})", "gelu": "F.gelu({0})"}[op.act_type]


def _softmax(n: Site) -> Code | str:
    op = n.op
    function = "F.log_softmax" if op.name == "log_softmax" else "F.softmax"
    data = "-{0}" if op.name == "softmin" else "{0}"
    if op.temperature not in (None, 1.0):
        data = f"{data} / {float(op.temperature)}"
    if getattr(op, "use_length", False):
        return Code(f"masked_softmax({data}, {{1}}, {n.axis(op.axis)})", helpers=("masked_softmax",))
    text = f"{function}({data}, dim={op.axis})"
    return text if n.out_dtype() == n.dtype() else cast(text, n.out_dtype())


def _softmax_activation(n: Site) -> str:
    return "F.softmax({0}, dim=1)" if n.op.mode == "channel" or n.rank() == 2 else (
        "F.softmax({0}.flatten(1), dim=1).reshape({0}.shape)"
    )  # fmt: skip


def _softmax_output(n: Site) -> Code:
    if n.op.preserve_shape:
        text = "F.softmax({0}, dim=-1)"
    elif n.op.multi_output or n.rank() == 2:
        text = "F.softmax({0}, dim=1)"
    else:
        text = "F.softmax({0}.flatten(1), dim=1).reshape({0}.shape)"
    return Code(text, comment="to train, pass the input of softmax to F.cross_entropy")


# -- reductions ------------------------------------------------------------------------------------------------------


def _axes(n: Site) -> tuple[int, ...]:
    axes = n.op.axis if n.op.axis is not None else ()
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    chosen = tuple(sorted(n.axis(axis) for axis in axes)) if axes else tuple(range(n.rank()))
    if getattr(n.op, "exclude", False) and axes:
        chosen = tuple(axis for axis in range(n.rank()) if axis not in chosen)
    return chosen


def _dims(axes: tuple[int, ...], keepdims: bool) -> str:
    where = str(axes[0]) if len(axes) == 1 else str(axes)
    return f"{where}, keepdim=True" if keepdims else where


def _one_axis(n: Site, text: str) -> str:
    """Return a reduction over all axes as an array of one element, as MXNet has it."""
    is_all = not n.op.keepdims and len(_axes(n)) == n.rank() and len(n.out_dims()) == 1
    return f"{text}.reshape(1)" if is_all else text


def _reduction(function: str) -> Row:
    def row(n: Site) -> str:
        axes = _axes(n)
        if not axes:
            return "{0}"
        if not n.op.keepdims and len(axes) == n.rank() and function not in ("amax", "amin"):
            return _one_axis(n, f"{{0}}.{function}()")
        return _one_axis(n, f"{{0}}.{function}({_dims(axes, n.op.keepdims)})")

    return row


def _product(n: Site) -> str:
    text = "{0}"
    for axis in reversed(_axes(n)):
        text += f".prod({axis}{', keepdim=True' if n.op.keepdims else ''})"
    return _one_axis(n, text)


def _norm(n: Site) -> str:
    axes = _axes(n)
    inner = "{0}.abs().sum" if n.op.ord == 1 else "{0}.square().sum"
    root = "" if n.op.ord == 1 else ".sqrt()"
    return _one_axis(n, f"{inner}({_dims(axes, n.op.keepdims)}){root}")


def _search(n: Site) -> str:
    axis = 1 if n.op.name == "argmax_channel" else n.op.axis
    function = "argmin" if n.op.name == "argmin" else "argmax"
    keep = ", keepdim=True" if getattr(n.op, "keepdims", False) and axis is not None else ""
    text = f"{{0}}.{function}({'' if axis is None else axis}{keep})"
    return cast(text + (".reshape(1)" if axis is None else ""), n.out_dtype())


def _moments(n: Site) -> Code:
    axes = tuple(n.axis(axis) for axis in n.op.axes) if n.op.axes else tuple(range(n.rank()))
    where = _dims(axes, n.op.keepdims)
    return Code(f"({{0}}.mean({where}), {{0}}.var({axes}, unbiased=False, keepdim={n.op.keepdims}))", outputs=(0, 1))


def _cumulative(n: Site) -> str:
    return "{0}.flatten().cumsum(0)" if n.op.axis is None else f"{{0}}.cumsum({n.op.axis})"


# -- products --------------------------------------------------------------------------------------------------------


def _batch_dot(n: Site) -> str:
    left = "{0}.transpose(1, 2)" if n.op.transpose_a else "{0}"
    right = "{1}.transpose(1, 2)" if n.op.transpose_b else "{1}"
    return f"torch.bmm({left}, {right})"


def _dot(n: Site) -> str:
    ranks = n.rank(0), n.rank(1)
    left = "{0}.T" if n.op.transpose_a and ranks[0] == 2 else "{0}"
    right = "{1}.T" if n.op.transpose_b and ranks[1] == 2 else "{1}"
    if ranks == (1, 1):
        return "({0} * {1}).sum().reshape(1)"
    if ranks == (2, 2):
        return f"{left} @ {right}"
    if (n.op.transpose_a and ranks[0] > 2) or (n.op.transpose_b and ranks[1] > 2):
        raise Unsupported("it transposes an input of more than two axes")
    return f"torch.tensordot({left}, {right}, 1)"


def _gemm2(n: Site) -> str:
    left = "{0}.mT" if n.op.transpose_a else "{0}"
    right = "{1}.mT" if n.op.transpose_b else "{1}"
    if n.op.axis not in (-2, n.rank() - 2):
        raise Unsupported(f"its axis is {n.op.axis}, expected -2")
    alpha = "" if n.op.alpha == 1 else f"{float(n.op.alpha)} * "
    product = f"{left} @ {right}"
    return f"{alpha}({product})" if alpha else product


def _gemm(n: Site) -> str:
    beta = "" if n.op.beta == 1 else f"{float(n.op.beta)} * "
    return f"{_gemm2(n)} + {beta}{{2}}"


def _add_n(n: Site) -> str:
    return " + ".join(f"{{{index}}}" for index in range(n.count))


def _where(n: Site) -> str:
    if n.rank(0) == 1 and n.rank(1) > 1:
        raise Unsupported("its condition selects rows, expected the shape of the data")
    return "torch.where({0} != 0, {1}, {2})"


ROWS: dict[str, Row] = {
    **_two_operands(),
    **_UNARY,
    "logical_not": _logical_not,
    "Cast": _cast,
    "amp_cast": _cast,
    "_cast_like": _cast,
    "amp_multicast": _multicast,
    "smooth_l1": _smooth_l1,
    "clip": _clip,
    "_scatter_elemwise_div": "{0} / {1}",
    "Activation": _activation,
    "LeakyReLU": _leaky,
    "softmax": _softmax,
    "softmin": _softmax,
    "log_softmax": _softmax,
    "SoftmaxActivation": _softmax_activation,
    "SoftmaxOutput": _softmax_output,
    "LinearRegressionOutput": "{0}",
    "MAERegressionOutput": "{0}",
    "LogisticRegressionOutput": "{0}.sigmoid()",
    "SVMOutput": "{0}",
    "MakeLoss": "{0}",
    "make_loss": "{0}",
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "max": _reduction("amax"),
    "min": _reduction("amin"),
    "nansum": _reduction("nansum"),
    "prod": _product,
    "norm": _norm,
    "argmax": _search,
    "argmin": _search,
    "argmax_channel": _search,
    "moments": _moments,
    "_np_cumsum": _cumulative,
    "batch_dot": _batch_dot,
    "dot": _dot,
    "_linalg_gemm2": _gemm2,
    "_linalg_gemm": _gemm,
    "add_n": _add_n,
    "where": _where,
}
"""Elementwise operators, reductions and products."""
