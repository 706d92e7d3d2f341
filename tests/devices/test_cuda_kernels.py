"""The GPU's kernels, compiled for the host and run on the stand-in's arrays, give the results of the fallbacks."""

from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx.graph.compiler import compile_graph, graph_of
from flowmx.graph.graph import Options
from flowmx.graph.infer import infer_shapes, infer_types
from flowmx.graph.node import topological
from flowmx.ops.compiled.chain import Chain, Link
from flowmx.ops.kernels.cuda import formula_kernels
from flowmx.ops.kernels.cuda.formula_kernels import KERNELS
from flowmx.ops.kernels.cuda.source_kernels import Program
from flowmx.ops.optimizers.internal_rules import RULES as MORE_RULES
from flowmx.ops.optimizers.updates import RULES, WeightUpdate, update, update_many
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup
from tests.cupy_stand_in import compiled
from tests.cupy_stand_in.arrays import xp
from tests.graph_runs import device, run_case
from tests.op_cases import every_case

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="there is no g++ to compile kernels with")
CASES = every_case()


launched: list[str] = []
"""The sources of the kernels that were launched."""


def note_launches(monkeypatch):
    """Record the launches from now on."""
    launch = Program.launch

    def noting(self, *args):
        done = launch(self, *args)
        if done:
            launched.append(self.source)
        return done

    monkeypatch.setattr(Program, "launch", noting)
    launched.clear()


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch, caplog):
    monkeypatch.setattr(xp, "RawModule", compiled.RawModule, raising=False)
    note_launches(monkeypatch)
    yield
    assert "could not be compiled" not in caplog.text or "no compiler" in caplog.text


def by_kernel(op, run, inputs, outputs):
    """Run an operator as a GPU does."""
    fast = kernel_for("gpu", op.name)
    (op.forward if fast is None else lambda *arguments: fast.compute(op, *arguments))(run, inputs, outputs)


def close(ours, theirs, rtol=1e-5):
    assert ours.dtype == theirs.dtype
    size = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0) if theirs.dtype.kind == "f" else 1
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * size)


def compare(case, dtype=None, rtol=1e-5):
    expected, actual = run_case(case, np, dtype), run_case(case, xp, dtype, by_kernel, "gpu")
    for ours, theirs in zip(actual, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            close(one.astype("float32"), other.astype("float32"), rtol)


def rows(names, every):
    """Return the table's rows of some operators; only one of `every` rows is in the short tests."""
    cases = [case for case in CASES if lookup(case.op).name in names]
    return [
        pytest.param(case, id=case.id, marks=[pytest.mark.soak] if number % every else [])
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize("case", rows(KERNELS, 60))
def test_formulas(case):
    compare(case)


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-5)])
def test_elements_of_other_types(dtype, rtol):
    # The fallback rounds after each function, a kernel once.
    names = ["sigmoid"] if dtype != "float64" else ["smooth_l1"]
    for name in names:
        compare(next(case for case in CASES if case.op == name), dtype, rtol)
    assert "double* array0" in launched[-1] if dtype == "float64" else f"{dtype[:4]}" in launched[-1]


def chain():
    """Compute tanh(a * b) and relu(tanh(a * b) + c * 2) in one graph."""
    links = [
        Link(lookup("broadcast_mul").create(), (0, 1), "product"),
        Link(lookup("tanh").create(), (3,), "tanh"),
        Link(lookup("_mul_scalar").create(scalar=2.0), (2,), "twice"),
        Link(lookup("broadcast_add").create(), (4, 5), "sum"),
        Link(lookup("relu").create(), (6,), "relu"),
    ]
    return Chain.of(3, links, [4, 7])


LAYOUTS = [
    ("one shape", lambda r: [r(4, 3, 8), r(4, 3, 8), r(4, 3, 8)]),
    ("a bias", lambda r: [r(4, 3, 8), r(3, 1), r(8)]),
    ("rows that 16 bytes do not divide", lambda r: [r(4, 3, 5), r(4, 1, 5), r(5)]),
    ("an array off the grid", lambda r: [r(97)[1:].reshape(4, 3, 8), r(4, 3, 8), r(1)]),
    ("other orders of axes", lambda r: [r(8, 3, 4).transpose(2, 1, 0), r(4, 8, 3).transpose(0, 2, 1), r(4, 3, 8)]),
    ("steps and turns", lambda r: [r(4, 3, 16)[..., ::2], r(4, 3, 8)[:, :, ::-1], r(1, 3, 8)]),
    ("numbers", lambda r: [r(4, 3, 8), r(1), r()]),
]


@pytest.mark.parametrize("make", [row[1] for row in LAYOUTS], ids=[row[0] for row in LAYOUTS])
def test_chains(make):
    host, arrays = (make(numbers(space)) for space in (np, xp))
    shape = np.broadcast_shapes(*(each.shape for each in host))
    expected, actual = ([space.empty(shape, "float32") for _ in range(2)] for space in (np, xp))
    op = chain()
    op.forward(Run(device(np), False), host, expected)
    kernel_for("gpu", "_chain").compute(op, Run(device(xp, "gpu"), False), arrays, actual)
    assert len(launched) == 1
    for ours, theirs in zip(actual, expected, strict=True):
        close(ours.get(), theirs)


def numbers(space):
    """Return a function that makes equal arrays of normal numbers in each namespace."""
    rng = np.random.default_rng(0)
    return lambda *shape: space.asarray(np.asarray(rng.standard_normal(shape), "float32"))


def test_a_chain_writes_over_its_input():
    a, b, c = (xp.asarray(np.full((2, 8), n, "float32")) for n in (0.5, 2, 3))
    first = xp.empty((2, 8), "float32")
    kernel_for("gpu", "_chain").compute(chain(), Run(device(xp, "gpu"), False), [a, b, c], [first, c])
    np.testing.assert_allclose(c.get(), np.full((2, 8), np.tanh(1) + 6), rtol=1e-6)


def test_a_graph_for_a_gpu_has_chains():
    x = mx.sym.var("x")
    y = mx.sym.tanh(x * 2.0) + x
    options = Options(device_type="gpu")
    nodes = topological(y.entries)
    shapes = infer_shapes(nodes, {nodes[0]: (64, 64)})
    plan = compile_graph(graph_of(y.entries, (), shapes, infer_types(nodes, {}), False), options=options)
    assert [node.op.name for node in plan.forward] == ["_chain"]


def test_a_kernel_that_does_not_compile_falls_back(monkeypatch, caplog):
    class Broken:
        def __init__(self, code, options):
            raise RuntimeError("no compiler")

    monkeypatch.setattr(xp, "RawModule", Broken)
    monkeypatch.setattr(formula_kernels, "KERNELS", {})
    kernel = formula_kernels.FormulaKernel(KERNELS["sigmoid"]._of)
    x, out = xp.zeros((3,), "float32"), xp.empty((3,), "float32")
    for _ in range(2):
        kernel.compute(lookup("sigmoid").create(), Run(device(xp, "gpu"), False), [x], [out])
        assert out.get().tolist() == [0.5] * 3
    assert len(caplog.records) == 1
    assert "the fallback runs instead" in caplog.text


def weights(rng, count, dtypes=("float32",) * 4):
    """Return the arrays of some weights of one rule, of different sizes, some not aligned to 16 bytes."""
    groups = []
    for number in range(count):
        size = int(rng.integers(1, 40)) if number else 9000
        arrays = [rng.uniform(0.5, 1.5, size + 1).astype(dtype) for dtype in dtypes]
        groups.append([xp.asarray(each)[1:] if number % 3 == 2 else xp.asarray(each[1:].copy()) for each in arrays])
    return groups


def updates(rule, groups, mixed=False, **numbers):
    parameters = {"wd": 0.1, "rescale_grad": 0.5, "clip_gradient": 0.4, **rule.parameters, **numbers}
    owners = [SimpleNamespace(rule=rule, lr=0.1 * (n + 1), **parameters) for n in range(len(groups))]
    return [WeightUpdate(rule, p, mixed, group, group[0]) for p, group in zip(owners, groups, strict=True)]


RULE = {rule.name: rule for rule in (*RULES, *MORE_RULES)}


@pytest.mark.parametrize("name", ["adam_update", pytest.param("ftml_update", marks=pytest.mark.soak), "sgd_update"])
def test_many_weights_by_few_launches(name):
    rule, run = RULE[name], Run(device(xp, "gpu"), False)
    count = 2 + len(rule.states)
    one, other = (weights(np.random.default_rng(3), 70, ("float32",) * count) for _ in range(2))
    update_many(run, updates(rule, one))
    assert 0 < len(launched) <= 4
    for each in updates(rule, other):
        update(run, *each)
    for ours, theirs in zip(one, other, strict=True):
        for array, expected in zip(ours, theirs, strict=True):
            close(array.get(), expected.get())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_with_a_float32_copy(dtype):
    rule, run = RULE["sgd_mom_update"], Run(device(xp, "gpu"), False)
    dtypes = (as_dtype(dtype), as_dtype(dtype), "float32", "float32")
    one, other = (weights(np.random.default_rng(3), 5, dtypes) for _ in range(2))
    update_many(run, updates(rule, one, mixed=True))
    assert len(launched) == 1
    for each in updates(rule, other, mixed=True):
        update(run, *each)
    for ours, theirs in zip(one, other, strict=True):
        close(ours[2].get(), theirs[2].get())
        close(ours[3].get(), theirs[3].get())
        close(ours[0].get().astype("float32"), ours[3].get(), rtol=2e-2)


def test_a_weight_that_does_not_lie_densely_is_updated_by_itself():
    rule, run = RULE["sgd_update"], Run(device(xp, "gpu"), False)
    weight, grad = xp.ones((4, 6)).T, xp.ones((6, 4))
    update_many(run, updates(rule, [[weight, grad]]))
    assert len(launched) == 1
    np.testing.assert_allclose(weight.get(), np.full((6, 4), 1 - 0.1 * (0.4 + 0.1)))


NORMALIZED = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")


@pytest.mark.parametrize("case", rows(NORMALIZED, 6))
def test_batch_normalization(case):
    compare(case)
    assert any("partial" in source for source in launched) or not case.train


@pytest.mark.parametrize("last", [False, True], ids=["C", "channels last"])
@pytest.mark.parametrize("shape", [(4, 3, 20, 15), (3, 40, 5, 7)])
def test_batch_normalization_of_images(shape, last):
    rng = np.random.default_rng(0)
    params = {"fix_gamma": False, "momentum": 0.7, "eps": 1e-3}
    op, back = (lookup(name).create(**params) for name in ("BatchNorm", "_backward_BatchNorm"))
    data = rng.standard_normal(shape).astype("float32") * 3 + rng.uniform(50, 100, (1, shape[1], 1, 1)).astype(
        "float32"
    )
    vectors = [rng.uniform(0.5, 1.5, shape[1]).astype("float32") for _ in range(4)]
    spec = op.spec((shape, *[each.shape for each in vectors]), (data.dtype,) * 5)
    results = []
    for space, order, dtype in ((np, False, "float64"), (xp, last, "float32")):  # the reference has twice the precision
        run = Run(device(space, "gpu" if space is xp else ""), True)
        host = [each.astype(dtype) for each in (data, data[::-1] - 60, data * 0, data * 0)]
        x, head, out, grad = (images(space, each, order) for each in host)
        states = [space.asarray(each.astype(dtype)) for each in vectors]
        outputs = [out, *[space.empty(each, dtype) for each in spec.shapes[1:]]]
        grads = [grad, *[space.empty(shape[1], dtype) for _ in range(2)]]
        for each, operands, to in (
            (op, [x, *states], outputs),
            (back, [head, x, states[0], *outputs[1:]], grads),
        ):
            fast = kernel_for("gpu", each.name)
            (fast.compute(each, run, operands, to) if space is xp else each.forward(run, operands, to))
        results.append([getattr(each, "get", lambda each=each: each)() for each in (*outputs, *grads, *states)])
    for ours, theirs in zip(results[1], results[0], strict=True):
        close(ours, theirs.astype("float32"), rtol=5e-5)
    assert sum("partial" in source for source in launched) == 4


def images(space, host, last):
    """Images on a device, the channels innermost or not."""
    host = np.ascontiguousarray(host)
    if not last:
        return space.asarray(host)
    return space.asarray(np.ascontiguousarray(host.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("case", rows(["Pooling"], 12))
def test_pooling(case):
    compare(case)


POOLINGS = [
    {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)},
    {"kernel": (2, 3), "stride": (1, 2), "pool_type": "avg", "pad": (1, 1), "count_include_pad": False},
    {"kernel": (3, 3), "stride": (2, 2), "pool_type": "avg", "pooling_convention": "full"},
    {"global_pool": True, "pool_type": "avg"},
]


@pytest.mark.parametrize("last", [False, True], ids=["C", "channels last"])
@pytest.mark.parametrize("params", POOLINGS, ids=lambda params: "-".join(map(str, params.values())))
def test_pooling_of_images(params, last):
    rng = np.random.default_rng(0)
    op, back = (lookup(name).create(**params) for name in ("Pooling", "_backward_Pooling"))
    data = rng.integers(0, 5, (2, 3, 9, 8)).astype("float32")  # many are equal
    (shape,) = op.infer_shape([data.shape])[1]
    head = rng.standard_normal(shape).astype("float32")
    results = []
    for space, order in ((np, False), (xp, last)):
        run = Run(device(space, "gpu" if space is xp else ""), True)
        x, h, out, grad = (images(space, each, order) for each in (data, head, head * 0, data * 0))
        for each, operands, to in ((op, [x], [out]), (back, [h, x, out], [grad])):
            fast = kernel_for("gpu", each.name)
            (fast.compute(each, run, operands, to) if space is xp else each.forward(run, operands, to))
        results.append([getattr(each, "get", lambda each=each: each)() for each in (out, grad)])
    for ours, theirs in zip(results[1], results[0], strict=True):
        close(ours, theirs)
    assert len(launched) == 2


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("added", [False, True])
def test_operations_fused_into_a_product(flatten, added):
    rng = np.random.default_rng(0)
    op = lookup("_fused_FullyConnected").create(num_hidden=5, flatten=flatten, has_addend=added, activation="relu")
    shape = (2, 5) if flatten else (2, 3, 5)
    shapes = [(2, 3, 4), (5, 12 if flatten else 4), (5,), *([shape] if added else [])]
    inputs = [rng.standard_normal(each).astype("float32") for each in shapes]
    expected = np.zeros(shape, "float32")
    op.forward(Run(device(np), False), [each.copy() for each in inputs], [expected])
    operands = list(map(xp.asarray, inputs))
    out = operands[-1] if added else xp.empty(shape, "float32")  # over the addend, as plans do
    kernel_for("gpu", op.name).compute(op, Run(device(xp, "gpu"), False), operands, [out])
    close(out.get(), expected)
    assert len(launched) == 1


def test_numbers_are_not_brought_to_the_gpu_first():
    function, number = lookup("_mul_scalar").create(scalar=2.5).as_ufunc(xp, np.dtype("float32"))
    assert type(number) is np.float32
    out = xp.empty(3, "float32")
    function(xp.ones(3, "float32"), number, out=out)
    assert out.get().tolist() == [2.5] * 3
