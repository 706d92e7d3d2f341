"""Modules say what is missing where they are called too early, or with what does not fit."""

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


def bound(made=None, **arguments):
    made = made or module()
    made.bind(DATA, LABEL, **arguments)
    return made


def ready(made=None, **arguments):
    made = bound(made, **arguments)
    made.init_params()
    return made


def bucketing():
    return mx.mod.BucketingModule(lambda key: (network(), ("data",), ("softmax_label",)), 3)


def chain(*modules):
    made = mx.mod.SequentialModule()
    for each in modules:
        made.add(each, take_labels=True, auto_wiring=True)
    return made


def loss(**arguments):
    return mx.mod.PythonLossModule(**arguments)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("forward: the module is not bound", lambda: module().forward(BATCH)),
        ("get_outputs: the module is not bound", lambda: module().get_outputs()),
        ("score: the module is not bound", lambda: module().score(mx.io.NDArrayIter(np.ones((2, 3))), "acc")),
        ("forward: the parameters are not initialized", lambda: bound().forward(BATCH)),
        ("get_params: the parameters are not initialized", lambda: module().get_params()),
        ("update: the module has no optimizer", lambda: ready().update()),
        ("backward: the module is bound for predictions", lambda: ready(for_training=False).backward()),
        ("get_input_grads: the module is bound without them", lambda: ready().get_input_grads()),
        ("switch_bucket: the module is not bound", lambda: bucketing().switch_bucket(4, DATA, LABEL)),
        ("there is no module in it", lambda: bound(chain())),
        ("backward: the module is bound for predictions", lambda: ready(loss(), for_training=False).backward()),
    ],
)  # fmt: skip
def test_what_comes_too_early(message, call):
    with pytest.raises(StateError, match=message):
        call()


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "inputs_need_grad needs for_training", lambda: bound(for_training=False, inputs_need_grad=True)),
        (ValueError, "shared_module must be bound", lambda: bound(shared_module=module())),
        (ValueError, "the other module has no optimizer", lambda: ready().borrow_optimizer(ready())),
        (ValueError, "SequentialModule has no states", lambda: chain(module()).set_states(value=0)),
        (ValueError, "the batch has no bucket_key", lambda: ready(bucketing()).forward(BATCH)),
        (ValueError, "modules 0 and 1 both have a parameter 'fc_weight'", lambda: ready(chain(module(), module()))),
        (ValueError, r"has the inputs \['data', 'more'\], and gets 1", lambda: bound(
            chain(module(), mx.mod.Module(network("other") + mx.sym.var("more"), ("data", "more"))))),
        (NotImplementedError, "SequentialModule can not share", lambda: bound(chain(module()), shared_module=ready())),
        (NotImplementedError, "pre_sliced", lambda: ready().update_metric(mx.metric.Accuracy(), [], pre_sliced=True)),
        (ValueError, "grad_req is 'add'", lambda: bound(loss(), grad_req="add")),
        (ValueError, r"data_shapes names \['data'\], expected \['x'\]", lambda: bound(loss(data_names=["x"]))),
        (ValueError, r"label_shapes names .*, expected \['y'\]", lambda: bound(loss(label_names=["y"]))),
        (ValueError, "out_grads came for a loss", lambda: ready(loss()).backward([mx.nd.ones((2, 3))])),
        (TypeError, "grad_func is 3", lambda: loss(grad_func=3)),
        (NotImplementedError, "needs grad_func", lambda: ready(loss()).backward()),
        (NotImplementedError, "_compute_output_shapes", lambda: bound(
            mx.mod.PythonModule(["data"], ["softmax_label"], ["out"]))),
    ],
)  # fmt: skip
def test_what_does_not_fit(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda made: made.data_names, lambda made: made.output_names, lambda made: made.data_shapes,
        lambda made: made.label_shapes, lambda made: made.output_shapes, lambda made: made.get_params(),
        lambda made: made.forward(BATCH), lambda made: made.backward(), lambda made: made.get_outputs(),
        lambda made: made.get_input_grads(), lambda made: made.update(), lambda made: made.install_monitor(None),
        lambda made: made.update_metric(mx.metric.Accuracy(), []),
    ],
)  # fmt: skip
def test_what_a_module_of_the_user_s_must_define(call):
    made = mx.mod.BaseModule()
    made.binded = made.params_initialized = made.optimizer_initialized = True
    with pytest.raises(NotImplementedError):
        call(made)


def test_outputs_that_differ_in_number_are_not_merged():
    class Growing(mx.mod.Module):
        def get_outputs(self, *args, **kwargs):
            self.calls = getattr(self, "calls", 0) + 1
            return super().get_outputs(*args, **kwargs) * self.calls

    made, batches = ready(Growing(network())), mx.io.NDArrayIter(np.ones((4, 3)), np.zeros(4), batch_size=2)
    with pytest.raises(ValueError, match="differ in their number of outputs"):
        made.predict(batches)
    assert [len(each) for each in made.predict(batches, merge_batches=False)] == [3, 4]


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
        (ValueError, "epoch is missing", lambda model: model.save("model")),
    ],
)  # fmt: skip
def test_a_feed_forward_model_refuses(error, message, call):
    with pytest.raises(error, match=message):
        call(mx.model.FeedForward(network()))
