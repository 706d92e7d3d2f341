"""``mx.sym.np``: symbols saved by MXNet, symbols composed here, and compiled and exported blocks."""

import json

import numpy as onp
import pytest

import flowmx as mx
from flowmx import autograd, gluon, np, npx
from flowmx.numpy import mxnet_names
from flowmx.numpy.arrays import ndarray
from flowmx.numpy.graph_values import NumPyValue
from flowmx.ops.registry.operators import lookup
from tests.fixtures import record_np_symbols as recorded

RECORDED = json.loads(recorded.FILE.read_text())


@pytest.fixture(autouse=True)
def _np_mode():
    npx.set_np()
    yield
    npx.reset_np()


def _evaluate(symbol):
    names = symbol.list_inputs()
    block = gluon.SymbolBlock(symbol, [mx.sym.var(name) for name in names])
    results = block(*[np.array(recorded.INPUTS[name]) for name in names])
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _compare(text, results):
    for (dtype, value), result in zip(RECORDED[text][1], results, strict=True):
        assert isinstance(result, ndarray), f"{text}: {type(result)}"
        assert str(result.dtype) == dtype, f"{text}: {result.dtype}, expected {dtype}"
        onp.testing.assert_allclose(result.asnumpy(), onp.array(value, dtype), rtol=2e-5, atol=2e-6, err_msg=text)


def _check_all(check):
    failures = []
    for text in RECORDED:
        try:
            check(text)
        except Exception as error:
            failures.append(f"{text}: {type(error).__name__}: {str(error)[:300]}")
    assert not failures, f"{len(failures)} of {len(RECORDED)}:\n" + "\n".join(failures)


def test_symbols_saved_by_mxnet_compute_its_results():
    _check_all(lambda text: _compare(text, _evaluate(mx.sym.load_json(json.dumps(RECORDED[text][0])))))


def _group(text):
    symbols = recorded.composed(mx, text)
    return mx.sym.Group(symbols) if isinstance(symbols, list) else symbols


def test_symbols_composed_here_compute_the_same_results():
    _check_all(lambda text: _compare(text, _evaluate(_group(text))))


def test_symbols_composed_here_use_operators_of_mxnet():
    """MXNet must be able to read exported symbols; it does not have ``_np_call``."""
    for text in RECORDED:
        ops = {node.op.name for node in _group(text).nodes() if node.op is not None}
        assert not {"_np_call", "_np_waiting", "_np_random"} & ops or "unique" in text or "nonzero" in text, (text, ops)


def test_saved_symbols_are_read():
    for text in RECORDED:
        symbol = _group(text)
        again = mx.sym.load_json(symbol.tojson())
        assert again.tojson() == symbol.tojson()
    x = mx.sym.var("x").as_np_ndarray()
    y = mx.sym.np.logaddexp(x, mx.sym.np.median(x, axis=0))  # MXNet does not have them
    result = _evaluate(mx.sym.load_json(y.tojson()))[0]
    host = onp.array(recorded.INPUTS["x"], onp.float32)
    onp.testing.assert_allclose(result.asnumpy(), onp.logaddexp(host, onp.median(host, axis=0)), rtol=1e-5)


class _Network(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.hidden = gluon.nn.Dense(4, flatten=False)
            self.norm = gluon.nn.BatchNorm(axis=-1)
            self.weight = self.params.get("weight", shape=(4, 2), init=mx.init.Normal(1.0))

    def hybrid_forward(self, F, x, weight):
        h = F.npx.relu(self.norm(self.hidden(x)))
        h = F.np.dot(h, weight) + F.np.mean(x, axis=-1, keepdims=True)
        h = h * 2 - F.np.exp(-h).sum(axis=0)
        left, right = F.np.split(h, 2, axis=1)
        parts = F.np.stack([left, right]).T.reshape(-1, 2)
        return F.np.where(h > 0, h, 0), h[:, 0].std() + F.np.linalg.norm(h), parts, F.np.logaddexp(h, 1)


def test_a_user_block_computes_the_same_compiled_exported_and_imported(tmp_path):
    mx.random.seed(3)
    block = _Network()
    block.initialize()
    x = np.random.normal(size=(3, 5))
    x.attach_grad()
    runs = []
    for hybrid in (False, True):
        block.hybridize(hybrid)
        with autograd.record():
            results = block(x)
            total = sum((result * result).sum() for result in results)
        total.backward()
        runs.append([*results, x.grad.copy(), block.weight.grad().copy()])
    assert all(isinstance(array, ndarray) for run in runs for array in run)
    for one, other in zip(*runs, strict=True):
        onp.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-4, atol=1e-4)
    symbol, params = block.export(tmp_path / "net")
    again = gluon.SymbolBlock.imports(symbol, ["data"], params)
    for one, other in zip(block(x), again(x), strict=True):
        onp.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)


def test_random_numbers_of_symbols():
    x = mx.sym.var("x").as_np_ndarray()
    F = mx.sym
    for symbol, shape in (
        (F.np.random.normal(0, 1, size=(50, 2)) + x, (50, 2)),
        (F.np.random.uniform(x, 3.0), (2,)),
        (F.np.random.randint(0, 5, size=(4, 2)) + x, (4, 2)),
        (F.npx.random.bernoulli(prob=0.5, size=(3, 2)) * x, (3, 2)),
        (F.np.random.gamma(x, 2.0, size=(3, 2)), (3, 2)),
        (F.np.random.poisson(x, size=(3, 2)), (3, 2)),
    ):
        for version in (symbol, mx.sym.load_json(symbol.tojson())):
            block = gluon.SymbolBlock(version, [mx.sym.var("x")])
            assert block(np.array([1.0, 2.0])).shape == shape


def test_gradients_of_calls_are_the_same_in_graphs():
    """Differentiate each expression with a gradient as a graph, and operator by operator."""
    failures, compared = [], 0
    for text in RECORDED:
        names = _group(text).list_inputs()
        outcomes = []
        for hybrid in (False, True):
            arrays = [np.array(recorded.INPUTS[name]) for name in names]
            for array in arrays:
                array.attach_grad()
            block = _Expression(text, names)
            block.hybridize(hybrid)
            try:
                with autograd.record():
                    results = block(*arrays)
                    results = results if isinstance(results, (list, tuple)) else [results]
                    total = sum((result * result).sum() for result in results)
                total.backward()
                outcomes.append([array.grad.asnumpy() for array in arrays])
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {str(error)[:200]}")
        if isinstance(outcomes[0], str) and (isinstance(outcomes[1], str) or "was not computed inside" in outcomes[0]):
            continue
        if isinstance(outcomes[0], str) or isinstance(outcomes[1], str):
            failures.append(f"{text}: {outcomes}")
            continue
        compared += 1
        for one, other in zip(*outcomes, strict=True):
            if not onp.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
                failures.append(f"{text}: {one} is not {other}")
    assert not failures, "\n".join(failures)
    assert compared > 150


class _Expression(gluon.HybridBlock):
    def __init__(self, text, names):
        super().__init__()
        self._text, self._names = text, names

    def hybrid_forward(self, F, *args):
        return eval(self._text, {"np": F.np, "npx": F.npx, **dict(zip(self._names, args, strict=True))})


def test_errors_for_unsupported_calls():
    x = mx.sym.var("x").as_np_ndarray()
    with pytest.raises(AttributeError, match="did you mean"):
        mx.sym.np.concatenatee([x, x])
    with pytest.raises(NotImplementedError, match="number of results"):
        mx.sym.np.unstack(x)
    with pytest.raises(NotImplementedError, match="is an array"):
        mx.sym.np.add(x, np.ones(3))
    with pytest.raises(TypeError, match="iterated"):
        list(x)
    with pytest.raises(mx.MXNetError, match="unknown parameter"):
        lookup("_npi_mean").create(axes="1")
    assert {lookup(name).__name__ for name in ("_npi_normal", "_npi_bernoulli")} == {"_npi_normal", "_npi_bernoulli"}
    assert {row.name for row in mxnet_names.ROWS} <= {row.name for row in mxnet_names.ROWS if lookup(row.name)}


def test_the_parameters_select_the_row_of_an_operator():
    rows = [row for row in mxnet_names.ROWS if row.name == "_npi_percentile"]
    assert [row.fits({"q_scalar": 50, "axis": None}) for row in rows] == [True, False]
    assert [row.fits({"axis": 0}) for row in rows] == [False, True]


def test_values_have_no_dict():
    assert NumPyValue.__dictoffset__ == 0, "gradients of graphs create very many of them"
