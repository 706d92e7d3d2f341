"""Calls on sparse arrays, and the storage types that MXNet 1.9.1 gives them (``fixtures/sparse_calls.txt``).

In an expression ``c``, ``r`` and ``d`` are one matrix as csr, row_sparse and dense, ``C``, ``R`` and ``D`` another one.
``python -m tests.sparse_calls`` under MXNet rewrites the fixtures: ``expression -> storage type``, with ``!`` where
MXNet falls back to dense arrays; and for symbols (``fixtures/sparse_symbols.txt``) the storage types of the output and
of the gradients that ``simple_bind`` makes.
"""

from __future__ import annotations

import itertools
from pathlib import Path

FILE = Path(__file__).parent / "fixtures" / "sparse_calls.txt"
SYMBOLS_FILE = FILE.with_name("sparse_symbols.txt")

A = [[0, 0.5, 0], [0, 0, 0], [0.25, 0, 0.75], [0, 0, -0.5]]
B = [[0.5, 0, 0], [0, 0, 0], [0, 0.25, 0.5], [0, 0.1, 0]]


def _words(text: str) -> list[str]:
    return text.split()


_UNARY = _words("""
    relu sigmoid negative abs sign round rint ceil floor trunc fix exp log1p expm1 square sqrt cbrt sin cos tan
    arcsin arctan degrees radians sinh cosh tanh arcsinh arctanh zeros_like ones_like identity BlockGrad
    make_loss softmax transpose flatten
""")
_SYMBOLS = ["+", "-", "*", "/", "**", "==", "!=", ">", ">=", "<", "<="]
_SCALAR = [f"{{0}} {op} {number}" for op in _SYMBOLS for number in (0, 2)]
_SWAPPED = [f"{number} {op} {{0}}" for op in ["+", "-", "*", ">", "<"] for number in (0, 2)]
_BINARY = _words("""
    elemwise_add elemwise_sub elemwise_mul elemwise_div _internal._maximum _internal._minimum _internal._hypot
    _internal._power _internal._scatter_elemwise_div broadcast_add broadcast_sub broadcast_mul add_n
""")
_OTHER = """
    nd.sum({0}, axis=0); nd.sum({0}, axis=1); nd.mean({0}, axis=0); nd.mean({0}, axis=1); nd.norm({0}, axis=0)
    nd.norm({0}, axis=1); nd.max({0}, axis=0); nd.max({0}, axis=1); nd.sum({0}); nd.mean({0}); nd.norm({0}); nd.max({0})
    nd.sum({0}, axis=1, keepdims=True); nd.norm({0}, ord=1); nd.clip({0}, -0.3, 0.3); nd.slice({0}, begin=1, end=3)
    nd.slice({0}, begin=(1, 1), end=(4, 3)); nd.slice_axis({0}, axis=0, begin=1, end=3)
    nd.take({0}, nd.array([3, 0, 2])); nd.take({0}, nd.array([3, 0, -5]), mode='wrap'); nd.reshape({0}, shape=(3, 4))
    nd.contrib.quadratic({0}, a=1, b=2, c=0); nd.contrib.quadratic({0}, a=1, b=2, c=1); nd.cast({0}, dtype='float64')
    {0}.astype('float64'); {0}.tostype('default'); {0}.copy(); nd.where({0}, d, D); nd.concat({0}, {0}, dim=0)
    nd.concat({0}, {0}, dim=1); nd.concat({0}, D, dim=0); nd.add_n({0}, {0}, {0}); nd.add_n({0}, {0}, {0}, D, {0})
    nd.stack({0}, {0}); nd.broadcast_mul({0}, nd.array([[1, 2, 3]])); nd.broadcast_div({0}, nd.array([[1, 2, 3]]))
    nd.broadcast_add({0}, nd.array([[1, 2, 3]])); nd.broadcast_sub(nd.array([[1, 2, 3]]), {0})
    nd.FullyConnected({0}, D, num_hidden=4, no_bias=True)
"""
_FORMS = [form.strip() for form in _OTHER.replace("\n", ";").split(";") if form.strip()]
_DOT = [
    f"nd.dot({a}, {b}, transpose_a={ta}, transpose_b={tb}, forward_stype={stype!r})"
    for (a, b), (ta, tb) in itertools.product(
        itertools.product(("c", "r", "d"), ("C", "R", "D")), [(True, False), (False, True)]
    )
    for stype in (None, "default", "csr", "row_sparse")
    if (a, b) != ("d", "D")
]
EXPRESSIONS = [
    *(f"nd.{name}({each})" for name in _UNARY for each in "cr"),
    *(form.format(each) for form in (*_SCALAR, *_SWAPPED) for each in "cr"),
    *(f"nd.{name}({a}, {b})" for name in _BINARY for a in "crd" for b in "CRD" if a + b != "dD"),
    *(form.format(each) for form in _FORMS for each in "cr"),
    *_DOT,
]


_OF_SYMBOLS = """
    nd._internal._square_sum(r, axis=1, keepdims=True); nd._internal._square_sum(r, axis=1)
    nd._internal._square_sum(r, axis=0); nd.dot(c, W); nd.dot(c, WR); nd.dot(c, T, transpose_a=True)
    nd.dot(c, TR, transpose_a=True); nd.dot(d, C2); nd.dot(d, C2, forward_stype='default')
    nd.dot(d, C, transpose_b=True, forward_stype='default'); nd.Embedding(i, W, input_dim=3, output_dim=2)
    nd.Embedding(i, W, input_dim=3, output_dim=2, sparse_grad=True); nd.Embedding(i, WR, input_dim=3, output_dim=2)
    nd.Embedding(i, WR, input_dim=3, output_dim=2, sparse_grad=True)
    nd.contrib.SparseEmbedding(i, WR, input_dim=3, output_dim=2)
    nd.contrib.SparseEmbedding(i, W, input_dim=3, output_dim=2)
    nd.LinearRegressionOutput(nd.dot(c, WR), l); nd.LinearRegressionOutput(d, C); nd.LinearRegressionOutput(d, c)
    nd.LogisticRegressionOutput(d, c); nd.MAERegressionOutput(d, c); nd.LinearRegressionOutput(c, d)
    nd.cast_storage(d, stype='csr'); nd.cast_storage(d, stype='row_sparse'); nd.cast_storage(c, stype='default')
    nd.cast_storage(r, stype='default'); nd.cast_storage(r, stype='row_sparse'); nd.elemwise_add(r, nd.square(r))
    nd.elemwise_mul(d, nd.cast_storage(D, stype='row_sparse')); nd.broadcast_add(nd.dot(c, WR), b)
    nd.dot(nd.square(c), nd._internal._square_sum(WR, axis=1, keepdims=True))
    nd.elemwise_add(nd.dot(c, WR), nd.dot(nd.square(c), WR)); nd.FullyConnected(c, F, num_hidden=2, no_bias=True)
    nd.FullyConnected(d, FR, num_hidden=2, no_bias=True); nd.FullyConnected(c, FR, b, num_hidden=2); nd.take(WR, i)
    nd.take(W, i); nd.sum(nd.square(c)); nd.make_loss(c); nd.make_loss(r); nd.SoftmaxOutput(nd.dot(c, WR), l1)
    nd.Activation(r, act_type='relu'); nd.clip(r, a_min=0, a_max=1); nd.add_n(r, R, d); nd.add_n(c, C)
    nd.tanh(nd.elemwise_mul(d, r)); nd.Dropout(c, p=0.5); nd.batch_dot(nd.expand_dims(c, 0), nd.expand_dims(W, 0))
"""
SYMBOLS = [*EXPRESSIONS, *(form.strip() for form in _OF_SYMBOLS.replace("\n", ";").split(";") if form.strip())]
_VARIABLES = {
    "c": ("csr", (4, 3)), "C": ("csr", (4, 3)), "r": ("row_sparse", (4, 3)), "R": ("row_sparse", (4, 3)),
    "d": (None, (4, 3)), "D": (None, (4, 3)), "C2": ("csr", (3, 5)), "W": (None, (3, 2)), "WR": ("row_sparse", (3, 2)),
    "T": (None, (4, 2)), "TR": ("row_sparse", (4, 2)), "F": (None, (2, 3)), "FR": ("row_sparse", (2, 3)),
    "i": (None, (4,)), "l": (None, (4, 2)), "l1": (None, (4,)), "b": (None, (2,)),
}  # fmt: skip


def bound(mx, expression):
    """Bind an expression on symbols; None if its value is not a symbol."""
    kinds = {name: {"stype": stype} if stype else {} for name, (stype, _) in _VARIABLES.items()}
    space = {name: mx.sym.Variable(name, **kind) for name, kind in kinds.items()}
    value = eval(expression, {"nd": mx.sym, **space})
    if not isinstance(value, mx.sym.Symbol):
        return None
    shapes = {name: _VARIABLES[name][1] for name in value.list_arguments()}
    return value.simple_bind(ctx=mx.cpu(), **shapes)


def found_in(executor):
    """Return the storage types of the output and of the gradients, as text."""
    gradients = " ".join(f"{name}:{array.stype}" for name, array in executor.grad_dict.items())
    return f"{executor.outputs[0].stype} {gradients}"


def recorded_symbols() -> dict[str, str]:
    """Return MXNet's result of :func:`found_in` for each expression."""
    rows = (line.rpartition(" -> ") for line in SYMBOLS_FILE.read_text("utf-8").splitlines())
    return {expression: results for expression, _, results in rows}


def names(mx):
    """Return the names in expressions."""
    d, D = mx.nd.array(A), mx.nd.array(B)
    return {
        "nd": mx.nd, "d": d, "D": D, "c": d.tostype("csr"), "C": D.tostype("csr"), "r": d.tostype("row_sparse"),
        "R": D.tostype("row_sparse"),
    }  # fmt: skip


def recorded() -> dict[str, tuple[str, bool]]:
    """Return the result's storage type for each expression, and whether MXNet falls back."""
    rows = (line.rpartition(" -> ") for line in FILE.read_text("utf-8").splitlines())
    return {expression: (results.rstrip("!"), results.endswith("!")) for expression, _, results in rows}


def _record() -> None:
    import os
    import tempfile

    os.environ["MXNET_STORAGE_FALLBACK_LOG_VERBOSE"] = "1"
    import mxnet as mx  # type: ignore[import-not-found]

    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - MXNet writes to it until the end
    os.dup2(log.fileno(), 2)  # MXNet's own log
    results = []
    for expression in EXPRESSIONS:
        before = log.tell() if log.seek(0, 2) is None else log.seek(0, 2)
        try:
            value = eval(expression, names(mx))
            value.wait_to_read()
        except Exception:
            continue
        log.seek(before)
        falls = "fallback" in log.read()
        results.append(f"{expression} -> {value.stype}{'!' if falls else ''}\n")
    FILE.write_text("".join(results), "utf-8")
    _record_symbols(mx)


def _record_symbols(mx) -> None:
    results = []
    for expression in SYMBOLS:
        if "nd.array" in expression:
            continue
        try:
            executor = bound(mx, expression)
        except Exception:
            continue
        if executor is not None:
            results.append(f"{expression} -> {found_in(executor)}\n")
    SYMBOLS_FILE.write_text("".join(results), "utf-8")


if __name__ == "__main__":
    _record()
