"""Optimizers, compared with MXNet's weights; multipliers, updaters and saved states."""

import contextlib
import pickle

import numpy as np
import pytest

import flowmx as mx
from flowmx.optimizer import plain_data
from flowmx.optimizer.base_optimizer import from_config
from tests.fixtures import record_training as recorded


@pytest.fixture(scope="module")
def histories():
    with np.load(recorded.FOLDER / "optimizers.npz") as file:
        return dict(file)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("case", recorded.OPTIMIZERS)
def test_matches_the_recorded_weights(case, together, histories):
    for index, actual in recorded.run_optimizer(mx, case, together).items():
        expected = histories[f"{case}/{index}"]
        assert actual.dtype == expected.dtype
        # In float16 a different rounding is a difference in the last place.
        tolerance = 1e-6 if actual.dtype == np.float32 else 1e-3
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def moments(case):
    """Compute the updates of Adam's variants by their papers' formulas, in float64."""
    first, gradients = recorded.optimizer_arrays()
    w, m, v, lr, wd = first[0].astype(np.float64), 0.0, 0.0, 0.01, 0.1
    for t, grads in enumerate(gradients, 1):
        g = grads[0] * 0.5 + (wd * w if case == "adabelief" else 0)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * ((g - m) ** 2 if case == "adabelief" else g**2) + (1e-6 if case == "adabelief" else 0)
        rate = lr * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w = w - rate * (m / (np.sqrt(v) + 1e-6) + (wd * w if case == "adamw" else 0))
    return w


@pytest.mark.parametrize("multi_precision", [False, True])
@pytest.mark.parametrize("case", ["adamw", "adabelief"])
def test_follows_the_paper(case, multi_precision):
    dtype = "float16" if multi_precision else "float32"
    first, gradients = recorded.optimizer_arrays()
    optimizer = mx.optimizer.create(case, learning_rate=0.01, wd=0.1, rescale_grad=0.5, multi_precision=multi_precision)
    update, weight = mx.optimizer.get_updater(optimizer), mx.nd.array(first[0], dtype=dtype)
    for grads in gradients:
        update("a_weight", mx.nd.array(grads[0], dtype=dtype), weight)
    tolerance = 3e-3 if multi_precision else 2e-6
    np.testing.assert_allclose(weight.asnumpy(), moments(case), rtol=tolerance, atol=tolerance)


def test_delay_compensation_with_momentum():
    """MXNet fails here, since it uses an array as a condition."""
    first, gradients = recorded.optimizer_arrays()
    optimizer = mx.optimizer.DCASGD(momentum=0.9, lamda=0.5, learning_rate=0.1, wd=0.01)
    update, weight = mx.optimizer.get_updater(optimizer), mx.nd.array(first[0])
    w, momentum, previous = first[0].astype(np.float64), 0.0, first[0].astype(np.float64)
    for grads in gradients[:10]:
        g = grads[0].astype(np.float64)
        update(0, mx.nd.array(g), weight)
        momentum = 0.9 * momentum - 0.1 * (g + 0.01 * w + 0.5 * g * g * (w - previous))
        previous, w = w, w + momentum
    np.testing.assert_allclose(weight.asnumpy(), w, rtol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "lars"])
def test_bfloat16_weights_keep_a_float32_copy(name):
    first, gradients = recorded.optimizer_arrays()
    results = []
    for dtype in ("bfloat16", "float32"):
        optimizer = mx.optimizer.create(name, learning_rate=0.01, multi_precision=True)
        update, weight = mx.optimizer.get_updater(optimizer), mx.nd.array(first[0], dtype=dtype)
        for grads in gradients:
            update(0, mx.nd.array(grads[0], dtype=dtype), weight)
        results.append(weight.asnumpy().astype(np.float32))
    np.testing.assert_allclose(*results, rtol=2e-2, atol=1e-2)


def test_lists_may_hold_weights_of_any_dtype_and_a_weight_twice():
    weights = [mx.nd.array([1.0, 2.0]), mx.nd.array([1.0], dtype="float16"), mx.nd.array([3.0], dtype="float64")]
    grads = [mx.nd.ones(weight.shape, dtype=weight.dtype) for weight in weights]
    optimizer = mx.optimizer.SGD(learning_rate=0.5, momentum=0.5, multi_precision=True)
    mx.optimizer.get_updater(optimizer)([0, 1, 2, 0], [*grads, grads[0]], [*weights, weights[0]])
    assert [weight.asnumpy().tolist() for weight in weights] == [[-0.25, 0.75], [0.5], [2.5]]


def test_a_weight_may_be_its_own_gradient():
    weight = mx.nd.array([2.0, 4.0])
    mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))("w", weight, weight)
    assert weight.asnumpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("grad", "error", "message"),
    [
        (mx.nd.ones(3), mx.MXNetError, r"input grad has shape \(3,\), expected \(2,\)"),
        (mx.nd.ones(2, dtype="float64"), mx.MXNetError, "input grad has dtype float64, expected float32"),
        (mx.nd.ones(2, mx.sim(0)), mx.MXNetError, "bring them together with as_in_context"),
    ],
)
def test_refuses_a_gradient_that_does_not_match_its_weight(grad, error, message):
    update = mx.optimizer.get_updater(mx.optimizer.Adam())
    with pytest.raises(error, match=message):
        update(0, grad, mx.nd.ones(2))


def test_lars_uses_the_norm_of_the_gradient_except_for_biases():
    optimizer = mx.optimizer.LARS(learning_rate=1.0, eta=0.5, param_idx2name={0: "a_weight", 1: "a_bias"})
    update, weights = mx.optimizer.get_updater(optimizer), arrays([3.0, 4.0], [3.0, 4.0])
    update([0, 1], arrays([0.0, 10.0], [0.0, 10.0]), weights)
    assert weights[0].asnumpy().tolist() == [3.0, 1.5]
    assert weights[1].asnumpy().tolist() == [3.0, -6.0]


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [((3,), {}, "expected a matrix"), ((2, 2), {"wd": 0.1}, "has weight decay 0.1, expected 0")],
)
def test_rows_need_a_matrix_without_decay(shape, arguments, message):
    update = mx.optimizer.get_updater(mx.optimizer.contrib.GroupAdaGrad(**arguments))
    with pytest.raises(ValueError, match=message):
        update(0, mx.nd.ones(shape), mx.nd.ones(shape))


def arrays(*values):
    return [mx.nd.array(value) for value in values]


def test_names_ignore_case_and_similar_names_are_suggested():
    assert isinstance(mx.optimizer.create("RMSprop"), mx.optimizer.RMSProp)
    assert mx.optimizer.create("sgd", learning_rate=0.5).learning_rate == 0.5
    with pytest.raises(ValueError, match="unknown optimizer 'adamm'; did you mean 'adam'"):
        mx.optimizer.create("adamm")


def test_a_custom_optimizer_can_be_registered_and_may_override_update():
    @mx.optimizer.register
    class Halving(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            self._update_count(index)
            weight *= 0.5

    (weight,) = arrays([2.0, 4.0])
    update = mx.optimizer.get_updater(mx.optimizer.create("halving"))
    update("w", weight, weight)
    assert weight.asnumpy().tolist() == [1.0, 2.0]
    assert update.optimizer.num_update == 1


def test_weight_decay_applies_to_weights_and_gammas():
    names = {0: "a_weight", 1: "a_bias", 2: "b_gamma", 3: "b_beta"}
    optimizer = mx.optimizer.SGD(wd=0.5, param_idx2name=names)
    assert [optimizer._get_wd(index) for index in names] == [0.5, 0.0, 0.5, 0.0]
    optimizer.set_wd_mult({"a_bias": 2.0})
    assert [optimizer._get_wd(index) for index in names] == [0.5, 1.0, 0.5, 0.0]
    assert mx.optimizer.SGD(wd=0.5)._get_wd(7) == 0.5


class FakeSymbol:
    """The parts of a symbol that an optimizer reads."""

    def attr_dict(self):
        return {"a_weight": {"__lr_mult__": "0.1", "__wd_mult__": "3"}, "a_bias": {}}

    def list_arguments(self):
        return ["data", "a_weight", "a_bias"]


def test_multipliers_come_from_the_symbol_and_from_parameters():
    names = {0: "a_weight", 1: "a_bias"}
    optimizer = mx.optimizer.SGD(learning_rate=1.0, wd=1.0, sym=FakeSymbol(), param_idx2name=names)
    assert optimizer._get_lrs([0, 1]) == [0.1, 1.0]
    assert optimizer._get_wds([0, 1]) == [3.0, 0.0]
    optimizer.set_lr_mult({1: 5.0})
    assert optimizer._get_lrs([0, 1]) == [0.1, 5.0]

    class Parameter:
        lr_mult, wd_mult = 0.25, 0.5

    optimizer.param_dict = {0: Parameter()}
    assert (optimizer._get_lr(0), optimizer._get_wd(0)) == (0.25, 0.5)


def test_a_schedule_sets_the_learning_rate():
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.4)
    optimizer = mx.optimizer.SGD(lr_scheduler=schedule)
    assert optimizer.learning_rate == 0.4
    with pytest.raises(UserWarning, match="has an lr_scheduler"):
        optimizer.set_learning_rate(0.1)
    with pytest.warns(UserWarning, match="replaces that of its schedule"):
        assert mx.optimizer.SGD(learning_rate=0.1, lr_scheduler=schedule).learning_rate == 0.1
    optimizer = mx.optimizer.SGD()
    optimizer.set_learning_rate(0.3)
    assert optimizer.learning_rate == 0.3


def test_half_precision_without_a_master_copy_warns():
    weight = mx.nd.array([1.0], dtype=np.float16)
    with pytest.warns(UserWarning, match="multi_precision=True"):
        mx.optimizer.get_updater(mx.optimizer.Adam())(0, weight, weight)


def test_an_updater_accepts_lists():
    weights, grads = arrays([1.0], [2.0, 3.0]), arrays([1.0], [1.0, 1.0])
    mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.5))([0, 1], grads, weights)
    assert [weight.asnumpy().tolist() for weight in weights] == [[0.5], [1.5, 2.5]]


# -- saved states ------------------------------------------------------------------------------------------


def make(case):
    return recorded.make_optimizer(mx, case)


def run(update, weights, gradients, dtype="float32"):
    for step in gradients:
        for index, weight in weights.items():
            update(index, mx.nd.array(step[index], dtype=dtype), weight)
    return [weight.asnumpy() for weight in weights.values()]


@pytest.mark.parametrize("case", recorded.OPTIMIZERS)
@pytest.mark.parametrize("dump_optimizer", [False, True])
def test_training_resumes_exactly_with_saved_states(case, dump_optimizer):
    first, gradients = recorded.optimizer_arrays()
    dtype = recorded.OPTIMIZERS[case][1].get("dtype", "float32")
    only = recorded.OPTIMIZERS[case][1].get("only", first)
    weights = {index: mx.nd.array(first[index], dtype=dtype) for index in only}
    update = mx.optimizer.get_updater(make(case))
    run(update, weights, gradients[:5], dtype)
    saved = update.get_states(dump_optimizer)
    copies = {index: weight.copy() for index, weight in weights.items()}
    results = run(update, weights, gradients[5:], dtype)
    other = mx.optimizer.get_updater(mx.optimizer.SGD() if dump_optimizer else make(case))
    other.set_states(saved)
    for actual, expected in zip(run(other, copies, gradients[5:], dtype), results, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps("text"), "the pickle holds a str, expected a dict of optimizer states"),
        (b"something", "start with b'somethin', expected b'FLOWMXOS'"),
        (b"", "expected b'FLOWMXOS'"),
        (b"FLOWMXOS\x02\0\0\0\0\0\0\0", "format version 2, expected 1"),
        (b"FLOWMXOS\x01\0\0\0\xff\0\0\0abc", "are damaged"),
    ],
)
def test_refuses_other_data_than_states(data, message):
    update = mx.optimizer.get_updater(mx.optimizer.SGD())
    with pytest.raises(mx.optimizer.StatesFormatError, match=message):
        update.set_states(data)


def test_truncated_states_are_an_error():
    update = mx.optimizer.get_updater(mx.optimizer.Adam())
    weight, grad = arrays([1.0, 2.0], [1.0, 1.0])
    update("w", grad, weight)
    with pytest.raises(mx.optimizer.StatesFormatError, match=r"damaged .*end of the file"):
        update.set_states(update.get_states()[:-3])


def test_refuses_to_save_other_than_plain_data():
    update = mx.optimizer.get_updater(mx.optimizer.SGD())
    update.states[0] = object()
    with pytest.raises(TypeError, match="state of 0 holds <object"):
        update.get_states()

    class Unregistered(mx.optimizer.SGD):
        pass

    with pytest.raises(TypeError, match="is not registered"):
        Unregistered().get_config()


class InTurn(mx.lr_scheduler.LRScheduler):
    """A schedule that holds others, as a user's package may define it."""

    def __init__(self, schedulers):
        super().__init__()
        self.schedulers = schedulers
        self.weights = np.array([0.5])

    def __call__(self, num_update):
        return float(self.schedulers[0](num_update) * self.weights[0])


def test_states_are_saved_with_custom_schedules(tmp_path):
    schedules = [InTurn([mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=1)]), lambda number: 0.25]
    for schedule, warns in zip(schedules, (False, True), strict=True):
        parameter = mx.gluon.Parameter("weight", shape=(2,))
        parameter.initialize()
        trainer = mx.gluon.Trainer([parameter], mx.optimizer.SGD(momentum=0.9, lr_scheduler=schedule))
        for _ in range(3):
            with mx.autograd.record():
                (parameter.data() * 2).backward()
            trainer.step(1)
        with pytest.warns(UserWarning, match="keeps its schedule") if warns else contextlib.nullcontext():
            trainer.save_states(tmp_path / "states")
        rate = trainer.learning_rate
        trainer.load_states(tmp_path / "states")
        assert trainer.learning_rate == rate
        assert type(trainer._optimizer.lr_scheduler) is type(schedule)
        assert (trainer._optimizer.lr_scheduler is schedule) is warns


def test_a_restored_schedule_keeps_its_arguments():
    config = plain_data.schedule_to_plain(mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.4), "lr_scheduler")
    assert plain_data.schedule_to_plain(plain_data.schedule_from_plain(config), "lr_scheduler") == config
    assert config["arguments"]


def test_a_schedule_that_is_not_defined_here_is_named():
    update = mx.optimizer.get_updater(mx.optimizer.SGD(lr_scheduler=mx.lr_scheduler.PolyScheduler(10)))
    saved = update.get_states(dump_optimizer=True).replace(b"PolyScheduler", b"NolyScheduler")
    with pytest.raises(ValueError, match="schedule is a NolyScheduler, which is not defined here"):
        update.set_states(saved)


def test_a_gradient_is_scaled_and_then_clipped_on_both_sides():
    optimizer = mx.optimizer.SGLD(rescale_grad=2.0, clip_gradient=0.5)
    grad = mx.nd.array([-1.0, -0.125, 0.0, 0.125, 1.0])
    assert optimizer.scale_gradient(grad).asnumpy().tolist() == [-0.5, -0.25, 0.0, 0.25, 0.5]
    assert optimizer.scale_gradient(grad, mx.nd.ones(5), wd=0.25).asnumpy().tolist() == [-0.5, 0.0, 0.25, 0.5, 0.5]


def test_restoring_an_optimizer_does_not_warn_of_its_rate(recwarn):
    with pytest.warns(UserWarning, match="learning_rate is -1"):
        optimizer = mx.optimizer.create("sgd", learning_rate=-1.0)
    recwarn.clear()
    assert from_config(optimizer.get_config()).learning_rate == -1.0
    assert not recwarn.list


def test_a_used_optimizer_is_pickled_like_a_new_one():
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    fresh = len(pickle.dumps(trainer.optimizer))
    for _ in range(3):
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 4))).sum()
        loss.backward()
        trainer.step(2)
    assert len(pickle.dumps(trainer.optimizer)) < fresh + 200


@pytest.mark.parametrize("name", ["adam", "nag", "rmsprop", "adagrad", "signum", "ftrl", "adamax", "nadam"])
@pytest.mark.parametrize("method", ["_get_lr", "_get_wd", "_get_lrs", "_get_wds"])
def test_a_subclass_may_replace_the_rates(name, method):
    """The steps are those of an optimizer with these rates, for any of the four methods."""
    rate, base = 0.25, mx.optimizer.create(name).__class__

    def replacement(self, index):
        return [rate, 7.0, 7.0] if method.endswith("s") else rate  # more than there are weights, which MXNet accepts

    custom = type(f"{name}Custom", (base,), {method: replacement})(learning_rate=0.1)
    kind = "wd" if "wd" in method else "learning_rate"
    plain = base(**{"learning_rate": 0.1, kind: rate})
    weights = []
    for optimizer in (custom, plain):
        updater, weight = mx.optimizer.get_updater(optimizer), mx.nd.array([1.0, -2.0])
        for _ in range(2):
            updater(0, mx.nd.array([0.5, 0.25]), weight)
        weights.append(weight.asnumpy())
    np.testing.assert_array_equal(*weights)


def test_sgd_requests_the_rates_of_all_weights():
    """As in MXNet: a subclass replaces ``_get_lrs``, and ``_get_lr`` is not called."""

    class Custom(mx.optimizer.SGD):
        def _get_lr(self, index):
            raise AssertionError("not called")

        def _get_lrs(self, indices):
            return [0.5] * self.count

    custom, weight = Custom(), mx.nd.array([1.0])
    custom.count = 4
    mx.optimizer.get_updater(custom)(0, mx.nd.array([1.0]), weight)
    assert weight.asscalar() == 0.5
    custom.count = 0
    with pytest.raises(mx.MXNetError, match="Custom has rates for 0 of 1 weights"):
        mx.optimizer.get_updater(custom)(0, mx.nd.array([1.0]), weight)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["adam", "rmsprop", "adagrad", "ftrl", "adamax", "nadam", "signum"])
def test_a_subclass_may_replace_the_update(name, dtype):
    """It is called for each step, with the float32 copy in mixed precision, and may call the replaced method."""
    base = mx.optimizer.create(name).__class__

    class Custom(base):
        def update(self, index, weight, grad, state):
            assert weight.dtype == grad.dtype == np.float32
            super().update(index, weight, grad, state)
            weight[:] = weight * 0.5

    weights = []
    for optimizer in (Custom(learning_rate=0.1, multi_precision=True), base(learning_rate=0.1, multi_precision=True)):
        updater, weight = mx.optimizer.get_updater(optimizer), mx.nd.array([1.0, -2.0], dtype=dtype)
        updater(0, mx.nd.array([0.5, 0.25], dtype=dtype), weight)
        weights.append(weight.asnumpy())
    np.testing.assert_allclose(weights[0], weights[1] * 0.5, rtol=2e-3)


@pytest.mark.parametrize("name", ["sgd", "nag", "lamb", "lars"])
def test_the_update_of_some_optimizers_is_not_called(name):
    """As in MXNet: their ``update_multi_precision``, which steps call, does not call ``update``."""

    class Custom(mx.optimizer.create(name).__class__):
        def update(self, index, weight, grad, state):
            raise AssertionError("not called")

    mx.optimizer.get_updater(Custom())(0, mx.nd.array([1.0]), mx.nd.array([1.0]))
