"""Methods that MXNet calls on itself: a replacement, in a subclass or in the class, is called here too."""

import json
import types

import pytest

import flowmx as mx
from tests.hooks.programs import PROGRAMS
from tests.hooks.record import MODES, PATH, calls

RECORDED = json.loads(PATH.read_text())

OTHERWISE = {
    "AttrScope.get": "scopes are values of their context, without methods",
    **dict.fromkeys(
        (f"Conv1D{kind}Cell._decide_shapes" for kind in ("RNN", "LSTM", "GRU")),
        "shapes follow from one rule of all axes",
    ),
    **dict.fromkeys(
        ("DataLoader._prefetch_iter", "DataLoader.clean", "DataLoader.refresh"), "an epoch is a separate object"
    ),
    **dict.fromkeys(
        ("DropoutCell.__call__", "DropoutCell.forward"), "cells of a stack pass a sequence on as one array"
    ),
    **dict.fromkeys(
        (f"LBSGD._{name}_cum_gradient" for name in ("get", "put", "reset")), "an operator adds up the gradients"
    ),
    "LBSGD._cumulate_gradient": "an operator adds up the gradients",
    **dict.fromkeys(
        ("MXIndexedRecordIO._check_pid", "MXRecordIO._check_pid"),
        "a forked process continues to read without opening the file again",
    ),
    "Parameter._check_and_get": "each read of a parameter would pay for it; `data` and `grad` are called",
}
"""Methods that MXNet calls, and flowmx does not, with the reason."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_methods_that_mxnet_calls_on_itself_are_called(program, mode):
    expected = RECORDED[program][mode]
    called = calls(mx, program, mode, expected)
    missing = {f"{cls}.{name}" for cls, names in expected.items() for name in names if name not in called.get(cls, ())}
    assert missing - OTHERWISE.keys() == set()


def test_reasons_are_needed():
    called = {f"{cls}.{name}" for modes in RECORDED.values() for classes in modes.values()
              for cls, names in classes.items() for name in names}  # fmt: skip
    assert OTHERWISE.keys() <= called


# -- replaced in one object ----------------------------------------------------------------------------


def replaced(owner, name, calls):
    """Replace a method of one object, as Horovod does."""
    inner = getattr(owner, name)

    def counted(self, *args, **kwargs):
        calls.append(name)
        return inner(*args, **kwargs)

    setattr(owner, name, types.MethodType(counted, owner))


def test_a_wrapped_parameter_is_called_when_its_shape_is_known():
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    names = []
    for name in ("_init_impl", "_init_grad", "_finish_deferred_init", "data", "list_data", "list_grad"):
        replaced(net.weight, name, names)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3)))
    loss.backward()
    trainer.step(1)
    assert set(names) == {"_init_impl", "_init_grad", "_finish_deferred_init", "data", "list_data", "list_grad"}


def test_a_value_that_a_wrapper_changes_is_the_parameters():
    net = mx.gluon.nn.Dense(2, use_bias=False)
    net.initialize()
    inner = net.weight._init_impl

    def broadcast(self, *args, **kwargs):
        inner(*args, **kwargs)
        self.data()[:] = 3

    net.weight._init_impl = types.MethodType(broadcast, net.weight)
    assert net(mx.nd.ones((1, 4))).asnumpy().tolist() == [[12, 12]]


def test_wrapped_methods_of_a_trainer_an_optimizer_and_a_module_are_called():
    names = []
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    for name in ("_init_kvstore", "_init_params", "_allreduce_grads", "_update", "_check_and_rescale_grad"):
        replaced(trainer, name, names)
    for name in ("_update_impl", "_get_lrs", "_get_wds", "_update_count"):
        replaced(trainer.optimizer, name, names)
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3)))
    loss.backward()
    trainer.step(1)
    module = mx.mod.Module(
        mx.sym.LinearRegressionOutput(mx.sym.var("data"), mx.sym.var("label")), label_names=["label"]
    )
    module.bind([("data", (2, 1))], [("label", (2, 1))])
    module.init_params()
    module.init_optimizer()
    for name in ("forward", "backward", "update_metric"):
        replaced(module, name, names)
    module.fit(mx.io.NDArrayIter(mx.nd.ones((2, 1)), mx.nd.ones((2, 1)), 2, label_name="label"), num_epoch=1,
               eval_metric="mse")  # fmt: skip
    assert set(names) == {
        "_init_kvstore", "_init_params", "_allreduce_grads", "_update", "_check_and_rescale_grad", "_update_impl",
        "_get_lrs", "_get_wds", "_update_count", "forward", "backward", "update_metric",
    }  # fmt: skip


class Broadcasting(mx.gluon.Trainer):
    """As BytePS's DistributedTrainer, whose weights come from another worker."""

    def _init_params(self):
        for param in self._params_to_init:
            for array in param._check_and_get(param._data, list):
                array[:] = self._param2idx[param.name]
        self._params_to_init = []


def test_first_weights_that_a_trainer_fetches_are_trained():
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    trainer = Broadcasting(net.collect_params(), "sgd", {"learning_rate": 1}, kvstore=None)
    for _ in range(2):
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 1)))
        loss.backward()
        trainer.step(1)
    assert (net.bias.data().asscalar(), net.weight.data().asscalar()) == (0 - 2, 1 - 2)


def test_a_trainer_whose_store_is_reset_starts_again():
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, update_on_kvstore=False)
    for _ in range(2):
        for i in range(2):
            with mx.autograd.record():
                loss = net(mx.nd.ones((1, 1), ctx=mx.cpu(i)))
            loss.backward()
        trainer.step(1)
        trainer._reset_kvstore()
        assert not trainer._kv_initialized and trainer._params_to_init == trainer._params


def test_a_replaced_step_is_called_for_each_step_of_a_sequence():
    cell = mx.gluon.rnn.LSTMCell(3, input_size=3)
    cell.initialize()
    names = []
    replaced(cell, "hybrid_forward", names)
    cell.unroll(4, mx.nd.ones((2, 4, 3)))
    assert len(names) == 4


def test_a_replaced_activation_is_called(monkeypatch):
    net = mx.gluon.nn.Dense(2, activation="relu", in_units=3)
    net.initialize(mx.init.Constant(-1))
    x = mx.nd.ones((1, 3))
    assert net(x).asnumpy().tolist() == [[0, 0]]
    net.act.hybrid_forward = lambda F, x: x
    assert net(x).asnumpy().tolist() == [[-3, -3]]
    del net.act.hybrid_forward
    monkeypatch.setattr(mx.gluon.nn.Activation, "hybrid_forward", lambda self, F, x: F.abs(x))
    assert net(x).asnumpy().tolist() == [[3, 3]]


class Darker(mx.gluon.data.vision.transforms.ToTensor):
    def hybrid_forward(self, F, x):
        return super().hybrid_forward(F, x) / 2


@pytest.mark.parametrize("compose", [False, True])
def test_a_derived_transform_is_called(compose):
    transforms = mx.gluon.data.vision.transforms
    image = mx.nd.full((2, 2, 3), 255, dtype="uint8")
    image.wait_to_read()
    transform = transforms.Compose([transforms.Cast("uint8"), Darker()]) if compose else Darker()
    assert transform(image).asnumpy().max() == 0.5
