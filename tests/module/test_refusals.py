"""Errors of modules that are called too early, or with invalid arguments."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import StateError

DATA, LABEL = [("data", (2, 3))], [("softmax_label", (2,))]
BATCH = mx.io.DataBatch([mx.nd.ones((2, 3))], [mx.nd.zeros(2)])


def module(**arguments):
    return mx.mod.Module(network(), **arguments)


def network(name="fc"):
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name=name), name="softmax")


def bind(mod=None, **arguments):
    mod = mod or module()
    mod.bind(DATA, LABEL, **arguments)
    return mod


def prepare(mod=None, **arguments):
    mod = bind(mod, **arguments)
    mod.init_params()
    return mod


def bucketing():
    return mx.mod.BucketingModule(lambda key: (network(), ("data",), ("softmax_label",)), 3)


def chain(*modules):
    mod = mx.mod.SequentialModule()
    for part in modules:
        mod.add(part, take_labels=True, auto_wiring=True)
    return mod


def loss(**arguments):
    return mx.mod.PythonLossModule(**arguments)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("forward: the module is not bound", lambda: module().forward(BATCH)),
        ("get_outputs: the module is not bound", lambda: module().get_outputs()),
        ("score: the module is not bound", lambda: module().score(mx.io.NDArrayIter(np.ones((2, 3))), "acc")),
        ("forward: the parameters are not initialized", lambda: bind().forward(BATCH)),
        ("get_params: the parameters are not initialized", lambda: module().get_params()),
        ("update: the module has no optimizer", lambda: prepare().update()),
        ("backward: the module is bound for predictions", lambda: prepare(for_training=False).backward()),
        ("get_input_grads: the module is bound without them", lambda: prepare().get_input_grads()),
        ("switch_bucket: the module is not bound", lambda: bucketing().switch_bucket(4, DATA, LABEL)),
        ("there are no modules", lambda: bind(chain())),
        ("backward: the module is bound for predictions", lambda: prepare(loss(), for_training=False).backward()),
    ],
)  # fmt: skip
def test_refuses_calls_that_come_too_early(message, call):
    with pytest.raises(StateError, match=message):
        call()


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "inputs_need_grad needs for_training", lambda: bind(for_training=False, inputs_need_grad=True)),
        (ValueError, "shared_module must be bound", lambda: bind(shared_module=module())),
        (ValueError, "the other module has no optimizer", lambda: prepare().borrow_optimizer(prepare())),
        (ValueError, "SequentialModule has no states", lambda: chain(module()).set_states(value=0)),
        (ValueError, "the batch has no bucket_key", lambda: prepare(bucketing()).forward(BATCH)),
        (ValueError, "modules 0 and 1 both have a parameter 'fc_weight'", lambda: prepare(chain(module(), module()))),
        (ValueError, r"has the inputs \['data', 'more'\], but gets 1", lambda: bind(
            chain(module(), mx.mod.Module(network("other") + mx.sym.var("more"), ("data", "more"))))),
        (NotImplementedError, "SequentialModule cannot share", lambda: bind(chain(module()), shared_module=prepare())),
        (NotImplementedError, "pre_sliced", lambda: prepare().update_metric(mx.metric.Accuracy(), [], pre_sliced=True)),
        (ValueError, "grad_req is 'add'", lambda: bind(loss(), grad_req="add")),
        (ValueError, r"data_shapes names \['data'\], expected \['x'\]", lambda: bind(loss(data_names=["x"]))),
        (ValueError, r"label_shapes names .*, expected \['y'\]", lambda: bind(loss(label_names=["y"]))),
        (ValueError, "the output of a loss has no gradient", lambda: prepare(loss()).backward([mx.nd.ones((2, 3))])),
        (TypeError, "grad_func is 3", lambda: loss(grad_func=3)),
        (NotImplementedError, "needs grad_func", lambda: prepare(loss()).backward()),
        (NotImplementedError, "_compute_output_shapes", lambda: bind(
            mx.mod.PythonModule(["data"], ["softmax_label"], ["out"]))),
    ],
)  # fmt: skip
def test_refuses_invalid_arguments(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda mod: mod.data_names, lambda mod: mod.output_names, lambda mod: mod.data_shapes,
        lambda mod: mod.label_shapes, lambda mod: mod.output_shapes, lambda mod: mod.get_params(),
        lambda mod: mod.forward(BATCH), lambda mod: mod.backward(), lambda mod: mod.get_outputs(),
        lambda mod: mod.get_input_grads(), lambda mod: mod.update(), lambda mod: mod.install_monitor(None),
        lambda mod: mod.update_metric(mx.metric.Accuracy(), []),
    ],
)  # fmt: skip
def test_methods_that_a_custom_module_must_define(call):
    mod = mx.mod.BaseModule()
    mod.binded = mod.params_initialized = mod.optimizer_initialized = True
    with pytest.raises(NotImplementedError):
        call(mod)


def test_outputs_that_differ_in_number_are_not_merged():
    class Growing(mx.mod.Module):
        def get_outputs(self, *args, **kwargs):
            self.calls = getattr(self, "calls", 0) + 1
            return super().get_outputs(*args, **kwargs) * self.calls

    mod, batches = prepare(Growing(network())), mx.io.NDArrayIter(np.ones((4, 3)), np.zeros(4), batch_size=2)
    with pytest.raises(ValueError, match="differ in their number of outputs"):
        mod.predict(batches)
    assert [len(outputs) for outputs in mod.predict(batches, merge_batches=False)] == [3, 4]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "X is list", lambda model: model.fit([[1, 2, 3]])),
        (ValueError, "y is missing", lambda model: model.fit(np.ones((2, 3)))),
        (TypeError, "y is list", lambda model: model.fit(np.ones((2, 3)), [0, 1])),
        (ValueError, r"y has shape \(3,\), expected", lambda model: model.fit(np.ones((2, 3)), np.ones(3))),
        (ValueError, r"y has shape \(2, 2\)", lambda model: model.fit(np.ones((2, 3)), np.ones((2, 2)))),
        (TypeError, "eval_data is 3", lambda model: model.fit(np.ones((2, 3)), np.ones(2), eval_data=3)),
        (RuntimeError, "there are no parameters yet", lambda model: model.predict(np.ones((2, 3)))),
        (ValueError, "epoch and num_epoch are both missing", lambda model: model.save("model")),
    ],
)  # fmt: skip
def test_a_feed_forward_model_refuses(error, message, call):
    with pytest.raises(error, match=message):
        call(mx.model.FeedForward(network()))
