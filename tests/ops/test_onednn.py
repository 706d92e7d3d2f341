"""The kernels by oneDNN against the fallbacks, on every row of the tables and in every memory order."""

import ctypes
import threading
from functools import partial

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.ops.kernels.onednn import convolution, work
from flowmx.ops.kernels.onednn import library as onednn
from flowmx.ops.kernels.onednn import matmul as products
from flowmx.ops.kernels.onednn.layouts import geometry
from flowmx.ops.kernels.onednn.matmul import multiply
from flowmx.ops.math.matmul import matmul
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup
from tests.op_cases import every_case
from tests.rows import label, operator, rows

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

KERNELS = ["Convolution", "Deconvolution", "Pooling", "BatchNorm", "FullyConnected", "Concat", "LRN", "transpose"]

needs_onednn = pytest.mark.skipif(onednn.library() is None, reason="the oneDNN library is not installed")


def in_order(array, order):
    """Return the array with its channels last in memory, or unchanged."""
    if order == "C" or array.ndim < 3:
        return array
    axes = (0, *range(2, array.ndim), 1)
    return np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))


def test_large_batches_are_split_into_equal_parts():
    def of(*shape):
        return geometry(np.empty(shape, np.float32))

    for batch, parts in ((4, 1), (6, 2), (7, 7), (16, 4)):  # samples of 1 MiB, and memory for 4
        count, (data, out) = convolution._part(of(batch, 2, 256, 512), of(batch, 3, 1, 1))
        assert (count, data.shape, out.shape) == (parts, (batch // parts, 2, 256, 512), (batch // parts, 3, 1, 1))
    assert convolution._part(of(2, 2, 1024, 1024))[0] == 2  # single samples, if not even one fits


def both(op, inputs, shapes, order, train=True):
    """Return the outputs of the fallback and of the kernel."""
    run = Run(devices.get(mx.cpu()), train)
    plain = [np.zeros(shape, np.float32) for shape in shapes]
    op.forward(run, [each.copy() for each in inputs], plain)
    laid = order if op.traits.keeps_layout or op.traits.makes_channels_last else "C"
    fast = [in_order(np.full(shape, 7, np.float32), laid) for shape in shapes]
    kernel_for("cpu", op.name).compute(op, run, [in_order(each.copy(), order) for each in inputs], fast)
    return plain, fast


def assert_close(plain, fast):
    for index, (expected, actual) in enumerate(zip(plain, fast, strict=True)):
        size = np.abs(expected).max(initial=1)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * size, err_msg=f"output {index}")


def shapes_of(op, inputs):
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    return spec.shapes


@needs_onednn
@pytest.mark.parametrize("order", ["C", "channels last"])
@rows("case", [case for case in every_case() if lookup(case.op).name in KERNELS], of=operator, name=label)
def test_kernels_match_the_plain_forward(case, order):
    cls = lookup(case.op)
    inputs = [each.astype(np.float32) for each in case.arrays()]
    parameters = dict(case.params) | ({cls.variadic: len(inputs)} if cls.variadic else {})
    op = cls.create(**parameters)
    assert_close(*both(op, inputs, shapes_of(op, inputs), order, case.train))


CONVOLUTIONS = [
    ((2, 16, 14, 14), {"kernel": (3, 3), "num_filter": 32, "pad": (1, 1)}),
    ((2, 16, 15, 13), {"kernel": (3, 3), "num_filter": 32, "stride": (2, 2), "num_group": 4}),
    ((4, 3, 20), {"kernel": (5,), "num_filter": 7, "dilate": (2,)}),
    ((2, 4, 6, 7, 8), {"kernel": (3, 2, 3), "num_filter": 8, "stride": (1, 2, 1), "pad": (1, 0, 2)}),
    ((2, 16, 9, 9), {"kernel": (3, 3), "num_filter": 16, "num_group": 16, "pad": (1, 1)}),
    ((1, 1, 1, 1), {"kernel": (1, 1), "num_filter": 1}),
    ((3, 1, 28, 28), {"kernel": (5, 5), "num_filter": 20}),
    ((2, 2, 8, 8), {"kernel": (1, 1), "num_filter": 8, "stride": (2, 2)}),
    ((2, 4, 8, 8), {"kernel": (1, 1), "num_filter": 8, "stride": (2, 2)}),
    ((2, 8, 8, 8), {"kernel": (1, 1), "num_filter": 2, "stride": (2, 2)}),
]


@needs_onednn
@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("name", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize(("shape", "parameters"), CONVOLUTIONS)
def test_convolutions(name, shape, parameters, order):
    rng = np.random.default_rng(0)
    op = lookup(name).create(**parameters, no_bias=False)
    completed, outputs = op.infer_shape([shape, None, None])
    data, weight, bias = (rng.standard_normal(each).astype(np.float32) for each in completed)
    head = rng.standard_normal(outputs[0]).astype(np.float32)
    assert_close(*both(op, [data, weight, bias], outputs, order))
    for kind, inputs, shapes in (
        ("data", [head, weight, data], [data.shape]),
        ("weight", [head, data], [weight.shape]),
    ):
        back = lookup(f"_backward_{name}_{kind}").create(**parameters, no_bias=True)
        assert_close(*both(back, inputs, shapes, order))


@needs_onednn
@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("shape", [(2, 16, 5, 5), (1, 3, 2, 2), (2, 40, 7, 3)])
def test_response_normalization(shape, order):
    rng = np.random.default_rng(0)
    parameters = {"nsize": 5, "alpha": 0.3, "beta": 0.6, "knorm": 1.5}
    head, data = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    assert_close(*both(lookup("LRN").create(**parameters), [data], [shape], order))
    assert_close(*both(lookup("_backward_LRN").create(**parameters), [head, data], [shape], order))


@needs_onednn
def test_bias_gradient_computed_with_the_weight_gradient():
    rng = np.random.default_rng(0)
    op = lookup("_backward_Convolution_weight_bias").create(kernel=(3, 3), num_filter=8, no_bias=True)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 8, 5, 5), (2, 4, 7, 7))]
    assert_close(*both(op, inputs, [(8, 4, 3, 3), (8,)], "C"))


POOLINGS = [
    {"kernel": (2, 2), "stride": (2, 2)},
    {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)},
    {"kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full"},
    {"global_pool": True},
    {"kernel": (3, 2), "stride": (1, 2), "pool_type": "avg", "pad": (1, 0)},
    {"kernel": (3, 3), "stride": (2, 2), "pool_type": "avg", "pad": (1, 1), "count_include_pad": False},
    {"kernel": (3, 3), "stride": (2, 2), "pool_type": "avg", "pooling_convention": "full"},
    {"kernel": (2, 2), "pool_type": "sum"},
    {"kernel": (2, 2), "pool_type": "lp", "p_value": 2},
]


@needs_onednn
@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("memo", [None, {}], ids=["alone", "in a graph"])
@pytest.mark.parametrize("parameters", POOLINGS)
def test_poolings(parameters, memo, order):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 16, 10, 10)).astype(np.float32)
    op, back = (lookup(name).create(**parameters) for name in ("Pooling", "_backward_Pooling"))
    shape = shapes_of(op, [data])[0]
    run = Run(devices.get(mx.cpu()), True, memo)
    plain, fast = np.zeros(shape, np.float32), in_order(np.full(shape, 7, np.float32), order)
    op.forward(run, [data], [plain])
    laid = in_order(data, order)
    kernel_for("cpu", "Pooling").compute(op, run, [laid], [fast])
    assert_close([plain], [fast])
    head = rng.standard_normal(shape).astype(np.float32)
    expected, grad = np.zeros_like(data), in_order(np.full_like(data, 7), order)
    back.forward(run, [head, data, plain], [expected])
    kernel_for("cpu", "_backward_Pooling").compute(back, run, [in_order(head, order), laid, fast], [grad])
    assert_close([expected], [grad])


@needs_onednn
@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("fix_gamma", [False, True])
@pytest.mark.parametrize("global_stats", [False, True])
@pytest.mark.parametrize("shape", [(6, 16), (4, 16, 5), (4, 16, 5, 5), (2, 16, 3, 4, 5)])
def test_batch_norm(shape, global_stats, fix_gamma, order):
    rng = np.random.default_rng(0)
    parameters = {"fix_gamma": fix_gamma, "use_global_stats": global_stats}
    op, back = (lookup(name).create(**parameters) for name in ("BatchNorm", "_backward_BatchNorm"))
    data = (rng.standard_normal(shape) * 3 + 1).astype(np.float32)
    gamma, beta, mean, var = (rng.uniform(0.5, 1.5, shape[1]).astype(np.float32) for _ in range(4))
    inputs = [data, gamma, beta, mean, var]
    outputs, results = both(op, inputs, shapes_of(op, inputs), order)
    assert_close(outputs, results)
    head = rng.standard_normal(shape).astype(np.float32)
    inputs = [head, data, gamma, *outputs[1:]]
    assert_close(*both(back, inputs, shapes_of(back, inputs), order))


@pytest.mark.parametrize(("plain", "order"), [(True, "C"), (False, "C"), (False, "channels last")])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("shape", [(6, 16), (4, 16, 5, 5), (8, 32, 9, 9)])
def test_batch_norm_in_place(shape, plain, train, order):
    rng = np.random.default_rng(0)
    run = Run(devices.get(mx.cpu()), train)
    data, head = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    parameters = [rng.uniform(0.5, 1.5, shape[1]).astype(np.float32) for _ in range(4)]

    def compute(name, inputs, target):
        op = lookup(name).create(fix_gamma=False)
        outputs = [target, *(np.zeros(each, np.float32) for each in shapes_of(op, inputs)[1:])]
        if plain:
            op.forward(run, inputs, outputs)
        else:
            kernel_for("cpu", name).compute(op, run, inputs, outputs)
        return outputs

    results = []
    for in_place in (False, True):
        x, g = in_order(data.copy(), order), in_order(head.copy(), order)
        copies = [each.copy() for each in parameters]
        out, *rest = compute("BatchNorm", [x, *copies], x if in_place else in_order(np.zeros_like(x), order))
        inputs = [g, in_order(data.copy(), order), copies[0], *rest]
        back = compute("_backward_BatchNorm", inputs, g if in_place else in_order(np.zeros_like(g), order))
        results.append([out, *rest, *back])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def from_few_multiplications(monkeypatch):
    monkeypatch.setattr(products, "SMALL", 1 << 18)


@needs_onednn
@pytest.mark.usefixtures("from_few_multiplications")
@pytest.mark.parametrize(("m", "n", "k"), [(64, 96, 64), (1, 600, 500), (600, 1, 500), (33, 65, 129)])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_products(m, n, k, transposed, batch):
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((*batch, *shape[:: -1 if t else 1])).astype(np.float32).swapaxes(-1, -2 if t else -1)
        for shape, t in zip(((m, k), (k, n)), transposed, strict=True)
    )
    out = np.full((*batch, m, n), 7, np.float32)
    assert multiply(a, b, out)
    assert_close([a @ b], [out])


@needs_onednn
@pytest.mark.parametrize("rest", [{}, {"no_bias": True}])
@pytest.mark.parametrize("follows", ["", "relu", "tanh", "residual"])
def test_a_single_row(rest, follows, monkeypatch):
    data = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(data, num_hidden=300, name="fc", **rest)
    if follows == "residual":
        net = mx.sym.relu(net + mx.sym.Variable("other", shape=(1, 300)))
    elif follows:
        net = mx.sym.Activation(net, act_type=follows)

    def run():
        bound = net.simple_bind(mx.cpu(), data=(1, 20, 10))
        rng = np.random.default_rng(0)
        for name in sorted(bound.arg_dict):
            bound.arg_dict[name][:] = rng.standard_normal(bound.arg_dict[name].shape)
        results = []
        for train in (False, True):
            results.append(bound.forward(is_train=train)[0].asnumpy())
        bound.backward()
        return [*results, *(each.asnumpy() for each in bound.grad_dict.values())]

    results = run()
    monkeypatch.setattr("flowmx.ops.registry.kernels._kernels", {})
    monkeypatch.setattr("flowmx.ops.math.matmul._products", {})
    assert_close(run(), results)


@needs_onednn
@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize(
    ("shape", "flatten"), [((33, 64), True), ((1, 700), True), ((6, 8, 5, 7), True), ((2, 9, 64), False)]
)
def test_fully_connected_and_its_gradients(shape, flatten, order):
    rng = np.random.default_rng(0)
    parameters = {"num_hidden": 256, "flatten": flatten}
    op = lookup("FullyConnected").create(**parameters)
    completed, (out,) = op.infer_shape([shape, None, None])
    data, weight, bias = (rng.standard_normal(each).astype(np.float32) for each in completed)
    head = rng.standard_normal(out).astype(np.float32)
    assert_close(*both(op, [data, weight, bias], [out], order))
    for kind, inputs, out_shape in (("data", [head, weight, data], shape), ("weight", [head, data], weight.shape)):
        back = lookup(f"_backward_FullyConnected_{kind}").create(**parameters, no_bias=True)
        assert_close(*both(back, inputs, [out_shape], order))


@needs_onednn
def test_products_of_array_views():
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((80, 90)).astype(np.float32)
    out = np.full((60, 120), 7, np.float32)
    matmul(Run(devices.get(mx.cpu()), True), whole[5:65, 10:50], whole[20:60, 3:63], out[:, 30:90])
    assert_close([whole[5:65, 10:50] @ whole[20:60, 3:63]], [out[:, 30:90]])
    assert (out[:, :30] == 7).all()
    assert (out[:, 90:] == 7).all()


@needs_onednn
@pytest.mark.usefixtures("from_few_multiplications")
def test_threads_share_a_primitive():
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(4)]
    wrong = []

    def work(x):
        for _ in range(50):
            out = np.empty((64, 64), np.float32)
            if not multiply(x, x, out) or not np.allclose(out, x @ x, atol=1e-3):
                wrong.append(out)

    threads = [threading.Thread(target=work, args=(x,)) for x in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(onednn, "_loaded", [None])
    monkeypatch.setattr(work, "_plans", {})
    x = mx.nd.random.normal(shape=(2, 4, 12, 12))
    weight, bias = mx.nd.random.normal(shape=(8, 4, 3, 3)), mx.nd.zeros((8,))
    y = mx.nd.Convolution(x, weight, bias, kernel=(3, 3), num_filter=8)
    y = mx.nd.Pooling(y, kernel=(2, 2), stride=(2, 2))
    assert np.isfinite(
        mx.nd.FullyConnected(y, mx.nd.ones((500, 200)), mx.nd.zeros((500,)), num_hidden=500).asnumpy()
    ).all()
    assert not work._plans or all(each is None for each in work._plans.values())


def test_a_failed_call_is_named_in_the_error():
    with pytest.raises(onednn.Unsupported, match="unimplemented"):
        onednn.check("primitive_create", 3)
    with pytest.raises(onednn.OneDNNError, match="primitive_create failed: invalid arguments"):
        onednn.check("primitive_create", 2)


@needs_onednn
@pytest.mark.parametrize("tied", [False, True], ids=["called", "tied"])
def test_scratch_memory_is_separate_for_each_number_of_threads(monkeypatch, tied):
    """Scratch memory is sized for the threads at the primitive's creation; more threads would write beyond its end."""
    op = lookup("_backward_Convolution_data").create(
        kernel=(3, 3), stride=(2, 2), dilate=(2, 2), pad=(2, 2), num_filter=54
    )
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 54, 3, 2), (54, 6, 3, 3), (2, 6, 6, 4))]
    run, expected = Run(devices.get(mx.cpu()), True), [np.zeros_like(inputs[2])]
    op.forward(run, inputs, expected)
    monkeypatch.setattr(work, "_plans", {})
    kernel, results, out = kernel_for("cpu", "_backward_Convolution_data"), [], np.empty_like(inputs[2])
    scratch = []

    def guarded(nbytes):
        scratch.append(np.full(nbytes + 4096, 7, np.uint8))
        return scratch[-1][:nbytes]

    monkeypatch.setattr(work, "workspace_memory", guarded)

    def with_threads(count, plans_alone):
        openmp.omp_set_num_threads(count)
        kernel._chosen.clear()
        compute = kernel.tie(op, False) if tied else partial(kernel.compute, op)
        for _ in range(20):
            if plans_alone:
                work._plans.clear()
                kernel.work(op, inputs, [out])
            else:
                out.fill(7)
                compute(run, inputs, [out])
                results.append(out.copy())

    openmp = ctypes.CDLL("libgomp.so.1")
    for arguments in ((4, False), (1, True), (4, False), (2, True), (4, False), (2, False), (1, False)):
        thread = threading.Thread(target=with_threads, args=arguments)
        thread.start()
        thread.join()
    assert len(results) == 100
    for each in results:
        assert_close(expected, [each])
    for each in scratch:
        assert (each[-4096:] == 7).all(), "a kernel has written beyond its scratch memory"
