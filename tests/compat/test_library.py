"""Extensions in Python files: ``mx.library.load``."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.control import custom
from flowmx.symbol.backends import backends

EXTENSION = '''
import flowmx as mx


class Scaled(mx.operator.CustomOp):
    def __init__(self, by):
        self.by = by

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * self.by)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * self.by)


@mx.operator.register("ext_scaled")
class ScaledProp(mx.operator.CustomOpProp):
    """Multiply by a number."""

    def __init__(self, by="FACTOR"):
        super().__init__()
        self.by = float(by)

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Scaled(self.by)


@mx.sym.register_partitioner("ext_exponentials")
class Exponentials(mx.sym.Partitioner):
    def select(self, node):
        return node.op == "exp"


@mx.sym.register_pass("ext_shifted")
def shifted(symbol, args, aux, options):
    args["shift"] = mx.nd.array([options["by"]])
    return mx.sym.broadcast_add(symbol, mx.sym.var("shift"))
'''


@pytest.fixture(autouse=True)
def as_before():
    tables = (custom.properties, backends)
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    for module in (mx.nd, mx.sym):
        vars(module).pop("ext_scaled", None)


def written(folder, text=EXTENSION, factor=3):
    path = folder / "extension_of_a_test.py"
    path.write_text(text.replace("FACTOR", str(factor)))
    return str(path)


def test_operators_are_functions(tmp_path, caplog):
    with caplog.at_level("INFO"):
        mx.library.load(written(tmp_path))
    assert "operators ext_scaled; backends ext_exponentials, ext_shifted" in caplog.text
    x = mx.nd.array([1, 2])
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.ext_scaled(x, by=2) + mx.nd.ext_scaled(x)
    y.backward()
    assert y.asnumpy().tolist() == [5, 10]
    assert x.grad.asnumpy().tolist() == [5, 5]
    net = mx.sym.load_json(mx.sym.ext_scaled(mx.sym.var("data"), by=4).tojson())
    assert net.name.startswith("ext_scaled")
    assert net.eval(data=x)[0].asnumpy().tolist() == [4, 8]
    assert mx.nd.ext_scaled.__doc__ == "Multiply by a number."
    mx.library.load(written(tmp_path, factor=5), verbose=False)  # again, after it was changed
    assert mx.nd.ext_scaled(x).asnumpy().tolist() == [5, 10]


def test_passes_and_partitioners_are_backends(tmp_path):
    mx.library.load(written(tmp_path))
    net = mx.sym.exp(mx.sym.var("data"))
    assert "_CachedOp" in net.optimize_for("ext_exponentials").tojson()
    args = {"data": mx.nd.zeros((1,))}
    result = net.optimize_for("ext_shifted", args, by=2)
    assert result.bind(mx.cpu(), args).forward()[0].asscalar() == 3
    with pytest.raises(ValueError, match=r"'ext_shifted' adds shift to args: pass args as a dict"):
        net.optimize_for("ext_shifted", by=2)
    block = mx.gluon.nn.HybridLambda("exp")
    block.hybridize(backend="ext_shifted", by=2)
    with pytest.raises(ValueError, match=r"the backend 'ext_shifted' adds the variables shift"):
        block(mx.nd.zeros((1,)))
    mx.sym.register_pass("ext_shifted")(lambda symbol, args, aux, options: 1)
    with pytest.raises(TypeError, match=r"'ext_shifted' returned 1, expected a symbol"):
        net.optimize_for("ext_shifted")


def test_a_pass_changes_blocks():
    @mx.sym.register_pass("ext_doubled")
    def doubled(symbol, args, aux, options):
        return symbol * options["by"]

    block = mx.gluon.nn.HybridLambda("exp")
    block.hybridize(backend="ext_doubled", by=2)
    np.testing.assert_array_equal(block(mx.nd.zeros((1,))).asnumpy(), [2])


def test_a_file_that_fails_registers_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        mx.library.load(written(tmp_path, EXTENSION + "\n1 / 0"))
    assert "ext_scaled" not in custom.properties
    assert "ext_shifted" not in backends
    with pytest.raises(mx.MXNetError, match=r"registers the operator 'exp', which is built in"):
        mx.library.load(written(tmp_path, EXTENSION.replace("ext_scaled", "exp")))
    assert "exp" not in custom.properties


def test_refusals(tmp_path):
    (tmp_path / "lib.so").touch()
    (tmp_path / "lib.txt").touch()
    for path, words in (
        ("lib.so", "libraries for MXNet's C API are not supported"),
        ("lib.txt", r"expected a \.py file"),
        ("none.py", "the file does not exist"),
    ):
        with pytest.raises(mx.MXNetError, match=words):
            mx.library.load(str(tmp_path / path))
    with pytest.raises(mx.MXNetError, match="expected an absolute path"):
        mx.library.load("pyproject.toml")
    with pytest.raises(TypeError, match="a function of a symbol"):
        mx.sym.register_pass("ext")(1)
    with pytest.raises(TypeError, match="expected a name"):
        mx.sym.register_pass("")
