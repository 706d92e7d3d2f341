"""bfloat16 on the CPU: correctly rounded everywhere, with special kernels where the processor multiplies bfloat16."""

import json
import os
import subprocess
import sys
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import flowmx as mx
from flowmx import amp, devices
from flowmx.gluon import nn
from flowmx.ops.kernels.onednn import library
from flowmx.ops.kernels.onednn.layouts import native_16bit_dtypes
from flowmx.ops.math.matmul import fixed_factor_product, matmul_mixed
from flowmx.ops.optimizers.updates import RULES, update
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup
from tests.graph.test_weight_packing import packing
from tests.op_cases import every_case
from tests.ops.test_onednn import in_order
from tests.rows import label, operator, rows

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
__all__ = ["packing"]
UNIT = 2.0**-8
"""Half the distance from 1 to the next number."""
multiplies = pytest.mark.skipif(not native_16bit_dtypes(), reason="the processor does not multiply bfloat16")


def run(train=False):
    return Run(devices.get(mx.cpu()), train)


def assert_rounded(result, expected, roundings=1, added=0.0):
    """Assert equality with an exact result, up to the final rounding and to sums in float32.

    ``added`` is the greatest number that is added in bfloat16.
    """
    greatest = float(ml_dtypes.finfo(BFLOAT16).max)
    expected = np.clip(np.asarray(expected, np.float64), -greatest, greatest)  # empty windows give the lowest number
    bound = roundings * UNIT * (np.abs(expected) + added) + 1e-5 * np.abs(expected).max(initial=1e-30)
    error = np.abs(result.astype(np.float64) - expected)
    assert (error <= bound).all(), f"off by {error.max()} of {np.abs(expected).max()}"


# -- kernels ----------------------------------------------------------------------------------------------

KERNELS = [
    "Convolution",
    "Deconvolution",
    "FullyConnected",
    "Pooling",
    "LRN",
    "Concat",
    "transpose",
    "dot",
    "batch_dot",
]
CASES = [case for case in every_case() if lookup(case.op).name in KERNELS]


def computed(op, inputs, train, order):
    """Return the results of an operator's bfloat16 kernel, and the exact results."""
    narrow = [each.astype(BFLOAT16) for each in inputs]
    exact = [each.astype(np.float64) for each in narrow]
    spec = op.spec(tuple(each.shape for each in narrow), (BFLOAT16,) * len(narrow))
    expected = [np.zeros(shape) for shape in spec.shapes]
    op.forward(run(train), exact, expected)
    out_order = order if op.traits.keeps_layout or op.traits.makes_channels_last else "C"
    outputs = [
        in_order(np.full(*form), out_order) for form in zip(spec.shapes, [7] * len(expected), spec.dtypes, strict=True)
    ]
    kernel = kernel_for("cpu", op.name)
    ordered_inputs = [in_order(each, order) for each in narrow]
    if kernel is None:
        op.forward(run(train), ordered_inputs, outputs)
    else:
        kernel.compute(op, run(train), ordered_inputs, outputs)
    return outputs, expected


@pytest.mark.parametrize("order", ["C", "channels last"])
@rows("case", CASES, of=operator, name=label)
def test_kernels_round_once(case, order):
    cls = lookup(case.op)
    inputs = case.arrays()
    op = cls.create(**dict(case.params) | ({cls.variadic: len(inputs)} if cls.variadic else {}))
    added = np.abs(inputs[2]).max() if len(inputs) > 2 and "bias" in op.inputs() else 0.0
    for result, expected in zip(*computed(op, inputs, case.train, order), strict=True):
        assert_rounded(result, expected, 2, added)  # a bias may be added after rounding


CONVOLUTIONS = [
    # kernel, stride, pad, dilate, groups, data
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, (2, 16, 9, 9)),
    ((1, 1), (2, 2), (0, 0), (1, 1), 1, (2, 24, 8, 8)),
    ((3, 3), (1, 1), (1, 1), (1, 1), 32, (2, 32, 9, 9)),
    ((3, 2), (2, 1), (0, 1), (1, 2), 2, (3, 34, 8, 7)),
    # Data shorter than a window or a stride, and padded: oneDNN computes wrong gradients of such filters.
    ((3,), (2,), (1,), (1,), 1, (3, 17, 1)),
    ((2, 3), (2, 2), (0, 2), (1, 1), 1, (3, 32, 5, 1)),
    ((4, 2), (3, 3), (0, 1), (1, 1), 1, (2, 32, 10, 2)),
    ((2, 2), (1, 3), (1, 1), (1, 1), 1, (3, 34, 6, 2)),
    ((3, 1, 1), (1, 1, 1), (1, 0, 0), (1, 1, 1), 2, (3, 16, 2, 2, 6)),
    ((4, 1, 2), (1, 1, 1), (1, 0, 0), (1, 1, 1), 1, (2, 8, 3, 5, 4)),
    # All data lies between two positions of a window: oneDNN crashes.
    ((2, 4, 3), (1, 1, 1), (1, 1, 2), (2, 1, 2), 1, (3, 16, 1, 5, 2)),
    ((2, 2, 3), (3, 3, 1), (0, 1, 3), (1, 2, 2), 1, (4, 3, 5, 1, 4)),
    ((2, 3), (1, 1), (1, 3), (2, 2), 2, (2, 128, 1, 8)),
]


@pytest.mark.parametrize("order", ["C", "channels last"])
@rows(("kernel", "stride", "pad", "dilate", "groups", "data"), CONVOLUTIONS, name=str)
def test_convolutions_are_exact_on_small_integers(kernel, stride, pad, dilate, groups, data, order):
    random = np.random.default_rng(0)
    parameters = {
        "kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate, "num_group": groups, "num_filter": 32,
    }  # fmt: skip
    layer = lookup("Convolution").create(**parameters)
    shapes, outputs = layer.infer_shape([data, None, None])

    def numbers(shape):
        return random.integers(-2, 3, shape).astype(np.float64)

    x, weight, head = (numbers(shape) for shape in (data, shapes[1], outputs[0]))
    for name, inputs in (
        ("_backward_Convolution_weight", [head, x]), ("_wide_backward_Convolution_weight", [head, x]),
        ("_backward_Convolution_data", [head, weight, x]), ("Convolution", [x, weight]),
    ):  # fmt: skip
        op = lookup(name).create(**parameters, no_bias=True)
        for result, expected in zip(*computed(op, inputs, False, order), strict=True):
            assert_rounded(result, expected)


ROWS = [
    ("softmax", {}, 1, (64, 96)), ("log_softmax", {}, 1, (64, 96)), ("softmax", {"axis": 1}, 1, (8, 20, 40)),
    ("LayerNorm", {}, 3, (64, 96)), ("L2Normalization", {}, 1, (64, 96)), ("sum", {"axis": 1}, 1, (64, 1024)),
    ("mean", {"axis": 1}, 1, (64, 1024)), ("norm", {"axis": 1}, 1, (64, 1024)),
]  # fmt: skip


@rows(("name", "parameters", "count", "shape"), ROWS, name=str)
def test_rows_are_computed_in_float32(name, parameters, count, shape):
    random = np.random.default_rng(1)
    vectors = [random.normal(1, 0.2, shape[-1:]) for _ in range(count - 1)]
    op = lookup(name).create(**parameters)
    narrow = [each.astype(BFLOAT16) for each in (random.normal(1, 2, shape), *vectors)]
    spec = op.spec(tuple(each.shape for each in narrow), tuple(each.dtype for each in narrow))
    outputs = [np.empty(*form) for form in zip(spec.shapes, spec.dtypes, strict=True)]
    expected = [np.empty(form) for form in spec.shapes]
    op.forward(run(), [each.astype(np.float64) for each in narrow], expected)
    kernel_for("cpu", name).compute(op, run(), narrow, outputs)
    for one, other in zip(outputs, expected, strict=True):
        assert_rounded(one, other, 2)  # softmax stores the exponentials, rounded, in the output


@pytest.mark.parametrize("axis_last", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_batch_norm_moves_statistics_of_either_type(axis_last, dtype):
    random = np.random.default_rng(2)
    shape = (8, 12, 10, 10)
    x = in_order(random.normal(2, 3, shape).astype(BFLOAT16), "channels last" if axis_last else "C")
    op = lookup("BatchNorm").create(fix_gamma=False, momentum=0.5)
    vectors = [random.normal(1, 0.1, 12).astype(dtype) for _ in range(2)]
    moving = [np.zeros(12, dtype), np.ones(12, dtype)]
    out, (mean, inverse, batch) = np.empty_like(x), [np.empty(size, np.float32) for size in (12, 12, 1)]
    kernel_for("cpu", "BatchNorm").compute(op, run(True), [x, *vectors, *moving], [out, mean, inverse, batch])
    wide = x.astype(np.float64)
    centre = wide.mean((0, 2, 3))
    np.testing.assert_allclose(mean, centre, rtol=1e-4)
    np.testing.assert_allclose(moving[0].astype(np.float64), centre / 2, rtol=2 * UNIT)
    scaled = (wide - centre[:, None, None]) / np.sqrt(wide.var((0, 2, 3)) + op.eps)[:, None, None]
    gamma, beta = (each.astype(np.float64)[:, None, None] for each in vectors)
    assert_rounded(out, scaled * gamma + beta, 1)


@pytest.mark.parametrize("shapes", [((1, 300), (300, 500)), ((20, 300), (300, 500)), ((3, 5), (5, 7))])
def test_products_sum_in_float32(shapes):
    random = np.random.default_rng(3)
    a, b = (random.normal(size=shape).astype(BFLOAT16) for shape in shapes)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    out = np.empty(expected.shape, np.float32)
    matmul_mixed(run(), a, b, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)
    wide = a.astype(np.float32)
    for right in (b, np.asfortranarray(b), b.astype(np.float32)):
        again = fixed_factor_product(run(), right, len(a), np.dtype(np.float32), 8)
        for _ in range(2):
            out[...] = 0
            again(wide, out)
            np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)


@rows(
    "rule",
    [rule for rule in RULES if rule.name != "_sparse_adagrad_update"],
    of=lambda rule: rule.name,
    name=lambda rule: rule.name,
)
def test_master_weights_are_updated_and_rounded_in_one_pass(rule):
    random = np.random.default_rng(4)
    p = type("Parameters", (), {"lr": 0.1, "wd": 0.01, "rescale_grad": 0.5, "clip_gradient": 1.0, **rule.parameters})()
    master = random.normal(size=(40, 50)).astype(np.float32)
    grad = random.normal(size=master.shape).astype(BFLOAT16)
    # The first one may be an average of squares, which is larger than the square of an average.
    states = [(np.abs(random.normal(size=master.shape)) + (index == 0)).astype(np.float32) * 0.1**index
              for index in range(len(rule.states))]  # fmt: skip
    plain = [master.copy(), *(each.copy() for each in states)]
    update(run(), rule, p, False, [plain[0], grad.astype(np.float32), *plain[1:]], plain[0])
    weight = np.empty(master.shape, BFLOAT16)
    update(run(), rule, p, True, [weight, grad, *states, master], weight)
    for result, expected in zip([master, *states], plain, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(weight, master.astype(BFLOAT16))


# -- networks ---------------------------------------------------------------------------------------------


def convnet():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(32, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(32, 3, groups=4, padding=1),
        nn.MaxPool2D(2), nn.Conv2DTranspose(16, 2, strides=2), nn.Activation("sigmoid"), nn.AvgPool2D(2),
        nn.GlobalAvgPool2D(), nn.Dense(64, activation="tanh"), nn.Dense(10),
    )  # fmt: skip
    return net, (4, 16, 16, 16)


class Attending(mx.gluon.HybridBlock):
    """Self-attention of 4 heads, a norm and a residual."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.q, self.k, self.v = (nn.Dense(64, flatten=False) for _ in range(3))
            self.norm, self.act = nn.LayerNorm(), nn.GELU()

    def hybrid_forward(self, F, x):
        def apart(x):
            return F.reshape(F.transpose(F.reshape(x, shape=(0, 0, 4, -1)), axes=(0, 2, 1, 3)), shape=(-3, 0, -1))

        q, k, v = (apart(each(x)) for each in (self.q, self.k, self.v))
        mixed = F.batch_dot(F.softmax(F.batch_dot(q, k, transpose_b=True) / 4), v)
        mixed = F.transpose(F.reshape(mixed, shape=(-4, -1, 4, 0, 0)), axes=(0, 2, 1, 3))
        return self.norm(self.act(x + F.reshape(mixed, shape=(0, 0, -1))))


def recurrent(kind):
    return kind(72, 2, bidirectional=True), (9, 6, 40)


NETWORKS = {
    "convolutions": convnet,
    "attention": lambda: (Attending(), (4, 32, 64)),
    "LSTM": partial(recurrent, mx.gluon.rnn.LSTM),
    "GRU": partial(recurrent, mx.gluon.rnn.GRU),
    "RNN": partial(recurrent, mx.gluon.rnn.RNN),
}


def with_parameters(name):
    """Return a network with parameters and data that bfloat16 represents exactly."""
    mx.random.seed(5)
    net, shape = NETWORKS[name]()
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.normal(shape=shape).astype("bfloat16")
    net(x.astype("float32"))
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            parameter.set_data(parameter.data().astype("bfloat16").astype("float32"))
    return net, x


def of_step(net, x):
    """Return the output and gradients of a training step, and the prediction before it."""
    prediction = net(x)
    x.attach_grad()
    with mx.autograd.record():
        out = net(x)
    out.backward(mx.nd.sin(mx.nd.arange(out.size)).reshape(out.shape).astype(out.dtype))
    grads = [each.grad() for each in net.collect_params().values() if each.grad_req != "null"]
    return [each.astype("float32").asnumpy() for each in (prediction, out, x.grad, *grads)]


DISTANCE = np.sqrt(20 * 20) * UNIT
"""The expected distance after 20 roundings in sequence, of half a unit each, whose gradients depend on 20 others."""


def assert_near(result, expected):
    """Assert that outputs and gradients match float32, up to rounding between layers."""
    sizes = [np.linalg.norm(each) for each in expected]
    for one, other, size in zip(result, expected, sizes, strict=True):
        # The gradient of a bias before a norm is 0, so only rounding errors of its terms remain.
        assert np.linalg.norm(one - other) <= DISTANCE * (size + max(sizes) / 20)


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_as_in_float32(name, hybridized):
    net, x = with_parameters(name)
    expected = of_step(net, x.astype("float32"))
    net.cast("bfloat16")
    if hybridized:
        net.hybridize(static_alloc=True)
    assert_near(of_step(net, x), expected)


def plan_of(name, train=False):
    """Return the plan of a network in bfloat16."""
    net, x = with_parameters(name)
    data = mx.sym.var("data")
    output = net(data)
    symbol = output[0] if isinstance(output, (list, tuple)) else output
    arrays = {key: each.data().astype("bfloat16") for key, each in net.collect_params().items()}
    arguments = {key: arrays[key] for key in symbol.list_arguments() if key in arrays} | {"data": x}
    states = {key: net.collect_params()[key].data() for key in symbol.list_auxiliary_states()}
    for key in list(arguments):
        if "gamma" in key or "beta" in key:
            arguments[key] = arguments[key].astype("float32") if "batchnorm" in key else arguments[key]
    grads = {key: mx.nd.zeros_like(each) for key, each in arguments.items()} if train else None
    return symbol.bind(mx.cpu(), arguments, grads, aux_states=states)._mode(train).plan


def dtypes_of(plan, nodes):
    """Return each node's operator name, and the dtypes of its first input and output."""
    graph = plan.graph
    return [
        (node.op.name, *[str(graph.dtypes[each]) for each in (node.inputs[0], type(node.inputs[0])(node, 0))])
        for node in nodes
        if node.inputs and node.op is not None
    ]


@multiplies
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["convolutions", "attention"])
@pytest.mark.usefixtures("packing")
def test_plans_hold_kernels_of_bfloat16_and_no_casts(name, train):
    plan = plan_of(name, train)
    dtypes = dtypes_of(plan, [*plan.forward, *plan.backward])
    assert {kind for name, *kinds in dtypes for kind in kinds if "sigmoid" not in name} == {"bfloat16"}
    assert not [each for each in dtypes if "ast" in each[0] or "widened" in each[0]]
    names = [each[0] for each in dtypes]
    assert ("_fused_Convolution" in names) == (name == "convolutions" and not train)
    if not train:
        packed = [each for each in dtypes_of(plan, plan.once) if each[0].startswith("_pack_")]
        assert packed
        assert {kind for _, *kinds in packed for kind in kinds} == {"bfloat16"}


@multiplies
@pytest.mark.usefixtures("packing")
def test_only_operators_without_a_kernel_are_widened():
    data = mx.sym.var("data")
    output = mx.sym.FullyConnected(mx.sym.cumsum(mx.sym.FullyConnected(data, num_hidden=64), axis=1), num_hidden=64)
    arrays = {
        each: mx.nd.ones(shape).astype("bfloat16")
        for each, shape in zip(output.list_arguments(), output.infer_shape(data=(64, 64))[0], strict=True)
    }
    plan = output.bind(mx.cpu(), arrays)._mode(False).plan
    assert [(name, kind) for name, kind, _ in dtypes_of(plan, plan.forward)] == [
        ("_fused_FullyConnected", "bfloat16"), ("Cast", "bfloat16"), ("_np_cumsum", "float32"), ("Cast", "float32"),
        ("_fused_FullyConnected", "bfloat16"),
    ]  # fmt: skip


@multiplies
def test_parameters_of_mixed_precision_are_cast_once():
    net, x = with_parameters("convolutions")
    net.hybridize()
    expected = net(x.astype("float32"))
    actual = amp.convert_hybrid_block(net, target_dtype="bfloat16")(x.astype("float32"))
    np.testing.assert_allclose(
        actual.astype("float32").asnumpy(), expected.asnumpy(), atol=0.05 * np.abs(expected.asnumpy()).max()
    )
    symbol = amp.convert_symbol(net(mx.sym.var("data")), target_dtype="bfloat16")
    arrays = {key: each.data() for key, each in net.collect_params().items()}
    bound = symbol.bind(
        mx.cpu(), {key: arrays.get(key, x.astype("float32")) for key in symbol.list_arguments()},
        aux_states={key: arrays[key] for key in symbol.list_auxiliary_states()},
    )  # fmt: skip
    plan = bound._mode(False).plan
    casts = [node for node in plan.forward if node.op.traits.casts]
    assert all(not node.inputs[0].node.is_variable or node.inputs[0].node.name == "data" for node in casts)


@multiplies
def test_gradients_of_mixed_precision_are_summed_and_stay_in_float32():
    """The plan has no cast of a weight's gradient."""
    data = mx.sym.var("data")
    x = mx.sym.Convolution(data, kernel=(3, 3), num_filter=16, no_bias=True, name="conv")
    output = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="relu"), num_hidden=32, name="fc")
    symbol = amp.convert_symbol(output, target_dtype="bfloat16")
    bound = symbol.simple_bind(mx.cpu(), grad_req={"conv_weight": "write", "fc_weight": "write"}, data=(4, 8, 9, 9))
    random = np.random.default_rng(0)
    for array in bound.arg_dict.values():
        array[:] = random.normal(size=array.shape).astype(BFLOAT16).astype(np.float32)
    head = mx.nd.array(random.normal(size=(4, 32))).astype(bound.forward(is_train=True)[0].dtype)
    bound.backward(head)
    plan = bound._mode(True).plan
    names = [node.op.name for node in plan.backward]
    assert {"_wide_backward_Convolution_weight", "_wide_backward_FullyConnected_weight"} <= set(names)
    casts = [node for node in plan.backward if node.op.traits.casts]
    assert not [node for node in casts if "_weight" in node.inputs[0].node.name]
    plain = output.simple_bind(mx.cpu(), grad_req={"conv_weight": "write", "fc_weight": "write"}, data=(4, 8, 9, 9))
    for name, array in plain.arg_dict.items():
        array[:] = bound.arg_dict[name]
    plain.forward(is_train=True)
    plain.backward(head.astype("float32"))
    pairs = [(bound.grad_dict[name], plain.grad_dict[name]) for name in ("conv_weight", "fc_weight")]
    assert_near(*([each.asnumpy() for each in side] for side in zip(*pairs, strict=True)))


@pytest.mark.parametrize("model", ["resnet18_v1", "mobilenet_v2_0_25", "mobilenet0_25"])
def test_models_of_the_zoo(model):
    mx.random.seed(0)
    net = getattr(mx.gluon.model_zoo.vision, model)(classes=10)
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.normal(shape=(2, 3, 64, 64))
    expected = net(x).asnumpy()
    net.cast("bfloat16")
    net.hybridize(static_alloc=True, static_shape=True)
    actual = net(x.astype("bfloat16")).astype("float32").asnumpy()
    assert np.linalg.norm(actual - expected) <= 0.05 * np.linalg.norm(expected)


def test_statistics_of_batch_norm_stay_float32():
    layer = nn.BatchNorm(in_channels=3)
    layer.initialize()
    layer.cast("bfloat16")
    assert {str(np.dtype(each.dtype)) for each in layer.collect_params().values()} == {"float32"}
    assert str(np.dtype(layer(mx.nd.ones((2, 3, 4, 4), dtype="bfloat16")).dtype)) == "bfloat16"


# -- training ---------------------------------------------------------------------------------------------


def losses(dtype, images, labels, steps=100):
    """Return the losses of a small network on digits."""
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(32, 3, strides=2),
        nn.Activation("relu"), nn.Dense(10),
    )  # fmt: skip
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(images[:1]))
    net.cast(dtype)
    net.hybridize(static_alloc=True)
    options = {"learning_rate": 0.05, "momentum": 0.9, "multi_precision": dtype != "float32"}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options)
    loss_of, result = mx.gluon.loss.SoftmaxCrossEntropyLoss(), []
    order = np.random.default_rng(0).permutation(len(images))
    for step in range(steps):
        rows_of_batch = order[(32 * step) % (len(order) - 32) :][:32]
        x, y = mx.nd.array(images[rows_of_batch]).astype(dtype), mx.nd.array(labels[rows_of_batch])
        with mx.autograd.record():
            loss = loss_of(net(x).astype("float32"), y).mean()
        loss.backward()
        trainer.step(1)
        result.append(loss.asscalar())
    return np.array(result)


def test_training_follows_the_losses_of_float32():
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_digits()
    images, labels = bunch.images.astype(np.float32)[:, None] / 16, bunch.target.astype(np.float32)
    with mx.engine.using(cpu_kernel_nthreads=1):
        wide, narrow = (losses(dtype, images, labels) for dtype in ("float32", "bfloat16"))
    # The mean of each part of the curve matches float32, up to the variation between batches.
    for part in np.split(np.arange(len(wide)), 5):
        noise = wide[part].std() / np.sqrt(len(part)) + 0.01
        assert abs(wide[part].mean() - narrow[part].mean()) < 2 * noise


# -- processors without the instructions ------------------------------------------------------------------

HIDDEN = """
import numpy as np, flowmx as mx
from flowmx.ops.kernels.onednn.layouts import native_16bit_dtypes
from tests.ops.test_bfloat16 import assert_near, dtypes_of, of_step, plan_of, with_parameters
assert not native_16bit_dtypes()
for name in ("convolutions", "LSTM"):
    net, x = with_parameters(name)
    expected = of_step(net, x.astype("float32"))
    net.cast("bfloat16")
    net.hybridize(static_alloc=True)
    assert_near(of_step(net, x), expected)
plan = plan_of("convolutions")
layers = [each for each in dtypes_of(plan, plan.forward) if "Convolution" in each[0] or "Connected" in each[0]]
assert layers and {kind for _, *kinds in layers for kind in kinds} == {"float32"}, layers
"""


@pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed")
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_results_are_right_without_the_instructions(variable):
    environment = {**os.environ, variable: "AVX2"}
    subprocess.run([sys.executable, "-c", HIDDEN], env=environment, check=True, timeout=120)


def test_info_reports_the_kernels_in_use():
    hidden = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    for environment, used in ((dict(os.environ), bool(native_16bit_dtypes())), (hidden, False)):
        command = [sys.executable, "-m", "flowmx", "info", "--json"]
        process = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        numbers = json.loads(process.stdout)["numbers"]
        assert set(numbers) == {"bfloat16", "float16", "int8"}
        assert numbers["bfloat16"]["computed in"].startswith("bfloat16") == used
