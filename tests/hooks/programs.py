"""Small programs that use classes of the package under test; each gets the package and a `Spy`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

PROGRAMS: dict[str, Any] = {}


def program(function: Any) -> Any:
    """Register a program by its name."""
    PROGRAMS[function.__name__] = function
    return function


def _net(mx: Any, in_units: int = 3) -> Any:
    net = mx.gluon.nn.Dense(2, in_units=in_units)
    net.initialize()
    return net


def _backward(mx: Any, net: Any, x: Any = None) -> Any:
    with mx.autograd.record():
        loss = net(mx.nd.ones((4, 3)) if x is None else x).sum()
    loss.backward()
    return loss


# -- trainers ------------------------------------------------------------------------------------------


@program
def trainer_steps(mx: Any, spy: Any) -> None:
    net = _net(mx)
    trainer = spy.of(mx.gluon.Trainer)(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    for _ in range(2):
        _backward(mx, net)
        trainer.step(4)


@program
def trainer_with_a_store(mx: Any, spy: Any) -> None:
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = spy.of(mx.gluon.Trainer)(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="device")
    for _ in range(2):
        for i in range(2):
            _backward(mx, net, mx.nd.ones((4, 3), ctx=mx.cpu(i)))
        trainer.step(4)


@program
def trainer_sums_then_updates(mx: Any, spy: Any) -> None:
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = spy.of(mx.gluon.Trainer)(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="device", update_on_kvstore=False
    )
    for _ in range(2):
        for i in range(2):
            _backward(mx, net, mx.nd.ones((4, 3), ctx=mx.cpu(i)))
        trainer.allreduce_grads()
        trainer.update(4)


@program
def trainer_states(mx: Any, spy: Any) -> None:
    net = _net(mx)
    trainer = spy.of(mx.gluon.Trainer)(net.collect_params(), "adam", {"learning_rate": 0.1})
    _backward(mx, net)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "states")
        trainer.save_states(path)
        trainer.load_states(path)
    trainer.step(4)
    trainer.set_learning_rate(0.2)


@program
def trainer_load_first(mx: Any, spy: Any) -> None:
    net = _net(mx)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "states")
        mx.gluon.Trainer(net.collect_params(), "adam").save_states(path)
        trainer = spy.of(mx.gluon.Trainer)(net.collect_params(), "adam")
        trainer.load_states(path)


@program
def trainer_deferred(mx: Any, spy: Any) -> None:
    net = mx.gluon.nn.Dense(2)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = spy.of(mx.gluon.Trainer)(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for i in range(2):
        _backward(mx, net, mx.nd.ones((4, 3), ctx=mx.cpu(i)))
    trainer.step(4)


@program
def trainer_after_new_values(mx: Any, spy: Any) -> None:
    net = _net(mx)
    trainer = spy.of(mx.gluon.Trainer)(net.collect_params(), "sgd", {"learning_rate": 0.1})
    _backward(mx, net)
    trainer.step(4)
    net.weight.set_data(mx.nd.zeros((2, 3)))
    net.initialize(force_reinit=True)
    net.collect_params().reset_ctx(mx.cpu(0))
    _backward(mx, net)
    trainer.step(4)


@program
def trainer_row_sparse(mx: Any, spy: Any) -> None:
    param = mx.gluon.Parameter("w", shape=(4, 2), stype="row_sparse", grad_stype="row_sparse")
    param.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = spy.of(mx.gluon.Trainer)([param], "sgd", {"learning_rate": 0.1})
    rows = mx.nd.array([0, 2], dtype="int64")
    for i in range(2):
        with mx.autograd.record():
            loss = param.row_sparse_data(rows.as_in_context(mx.cpu(i))).sum()
        loss.backward()
    trainer.step(1)
    param.list_row_sparse_data(rows)


# -- parameters ----------------------------------------------------------------------------------------


@program
def parameter_life(mx: Any, spy: Any) -> None:
    param = spy.of(mx.gluon.Parameter)("w", shape=(2, 3))
    param.initialize()
    param.data(), param.grad(), param.list_data(), param.list_grad(), param.list_ctx()
    param.set_data(mx.nd.ones((2, 3)))
    param.zero_grad()
    param.grad_req = "null"
    param.grad_req = "write"
    param.cast("float64")
    param.dtype = "float32"
    param.reset_ctx(mx.cpu(1))
    param.var()


@program
def parameter_deferred(mx: Any, spy: Any) -> None:
    param = spy.of(mx.gluon.Parameter)("w", shape=(2, 0), allow_deferred_init=True)
    param.initialize()
    param.set_data(mx.nd.ones((2, 3)))
    param.list_ctx()
    param.reset_ctx(mx.cpu(1))
    param._finish_deferred_init()
    param.data(mx.cpu(1))


@program
def parameters_of_a_net(mx: Any, spy: Any) -> None:
    spy.watch(mx.gluon.Parameter)
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    _backward(mx, net)
    net.collect_params().zero_grad()
    net.cast("float64")
    net.collect_params().setattr("grad_req", "null")
    net.collect_params().reset_ctx(mx.cpu(1))


@program
def parameters_of_a_hybridized_net(mx: Any, spy: Any) -> None:
    spy.watch(mx.gluon.Parameter)
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    net.hybridize()
    for _ in range(2):
        _backward(mx, net)


@program
def parameters_of_a_trainer(mx: Any, spy: Any) -> None:
    spy.watch(mx.gluon.Parameter)
    net = _net(mx)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    _backward(mx, net)
    trainer.step(4)


@program
def parameters_saved_and_loaded(mx: Any, spy: Any) -> None:
    spy.watch(mx.gluon.Parameter)
    net = _net(mx)
    other = mx.gluon.nn.Dense(2)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "net.params")
        net.save_parameters(path)
        net.load_parameters(path)
        other.load_parameters(path, ctx=mx.cpu(0))


@program
def parameter_dicts(mx: Any, spy: Any) -> None:
    params = spy.of(mx.gluon.ParameterDict)("net_")
    params.get("w", shape=(2, 3))
    params.get_constant("c", [1.0, 2.0])
    params.initialize()
    params.zero_grad()
    params.setattr("grad_req", "write")
    params.reset_ctx(mx.cpu(0))
    params.list_ctx()
    repr(params)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "net.params")
        params.save(path)
        params.load(path, mx.cpu(0))
    other = mx.gluon.ParameterDict("net_")
    other.update(params)


# -- blocks --------------------------------------------------------------------------------------------


@program
def block_life(mx: Any, spy: Any) -> None:
    cls = spy.of(mx.gluon.Block)

    class Net(cls):  # type: ignore[misc, valid-type]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.dense = mx.gluon.nn.Dense(2, in_units=3)

        def forward(self, x: Any) -> Any:
            return self.dense(x)

    net = Net()
    net.initialize()
    net(mx.nd.ones((1, 3)))
    net.summary(mx.nd.ones((1, 3)))
    net.hybridize()
    net.cast("float32")
    net.apply(lambda block: None)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "net.params")
        net.save_parameters(path)
        net.load_parameters(path)
        net.load_params(path)


def _hybrid(mx: Any, cls: Any) -> Any:
    class Net(cls):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            with self.name_scope():
                self.dense = mx.gluon.nn.Dense(2)
                self.scale = self.params.get("scale", shape=(1, 2), init="ones")

        def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
            return F.broadcast_mul(self.dense(x), scale)

    return Net()


@program
def hybrid_block_imperative(mx: Any, spy: Any) -> None:
    net = _hybrid(mx, spy.of(mx.gluon.HybridBlock))
    net.initialize()
    for _ in range(2):
        net(mx.nd.ones((1, 3)))
    net(mx.sym.var("x"))


@program
def hybrid_block_hybridized(mx: Any, spy: Any) -> None:
    net = _hybrid(mx, spy.of(mx.gluon.HybridBlock))
    net.initialize()
    net.hybridize()
    for _ in range(2):
        net(mx.nd.ones((1, 3)))
    net.cast("float32")
    net(mx.nd.ones((1, 3)))
    with tempfile.TemporaryDirectory() as folder:
        net.export(str(Path(folder) / "net"))


@program
def hybrid_block_infers(mx: Any, spy: Any) -> None:
    net = _hybrid(mx, spy.of(mx.gluon.HybridBlock))
    net.initialize()
    net.infer_shape(mx.nd.ones((1, 3)))
    net.infer_type(mx.nd.ones((1, 3)))


@program
def symbol_blocks(mx: Any, spy: Any) -> None:
    x = mx.sym.var("x")
    net = spy.of(mx.gluon.SymbolBlock)(mx.sym.FullyConnected(x, num_hidden=2, name="fc"), [x])
    net.initialize()
    for _ in range(2):
        net(mx.nd.ones((1, 3)))
    net.cast("float32")
    net.reset_ctx(mx.cpu(0))


@program
def sequential_blocks(mx: Any, spy: Any) -> None:
    for cls in (mx.gluon.nn.Sequential, mx.gluon.nn.HybridSequential):
        net = spy.of(cls)()
        net.add(mx.gluon.nn.Dense(2, in_units=3), mx.gluon.nn.Dense(2, in_units=2))
        net.initialize()
        net(mx.nd.ones((1, 3)))
        net.hybridize()
        net(mx.nd.ones((1, 3)))
        len(net), net[0], net[0:1], repr(net)


@program
def layers(mx: Any, spy: Any) -> None:
    nn = mx.gluon.nn
    net = spy.of(nn.Dense)(2, activation="relu", in_units=3)
    net.initialize()
    net(mx.nd.ones((1, 3)))
    conv = spy.of(nn.Conv2D)(2, 3)
    conv.initialize()
    conv(mx.nd.ones((1, 3, 5, 5)))
    norm = spy.of(nn.BatchNorm)()
    norm.initialize()
    norm(mx.nd.ones((1, 3, 5, 5)))
    norm.cast("float32")
    spy.of(nn.Lambda)(lambda x: x)(mx.nd.ones(3))
    spy.of(nn.HybridLambda)(lambda F, x: F.relu(x))(mx.nd.ones(3))
    spy.of(nn.Activation)("relu")(mx.nd.ones(3))
    spy.of(nn.Dropout)(0.5)(mx.nd.ones(3))


@program
def losses(mx: Any, spy: Any) -> None:
    loss = mx.gluon.loss
    a, b = mx.nd.ones((2, 3)), mx.nd.zeros((2, 3))
    spy.of(loss.L2Loss)()(a, b)
    spy.of(loss.SoftmaxCrossEntropyLoss)()(a, mx.nd.array([0, 1]))
    spy.of(loss.CosineEmbeddingLoss)()(a, b, mx.nd.array([1, -1]))
    spy.of(loss.SDMLLoss)()(a, b)


# -- recurrent cells of Gluon --------------------------------------------------------------------------


@program
def gluon_cells(mx: Any, spy: Any) -> None:
    rnn = mx.gluon.rnn
    x, inputs = mx.nd.ones((2, 3)), mx.nd.ones((2, 4, 3))
    for cls in (rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell):
        cell = spy.of(cls)(5, input_size=3)
        cell.initialize()
        cell(x, cell.begin_state(2))
        cell.unroll(4, inputs, merge_outputs=True)
        cell.reset()


@program
def gluon_cells_around_cells(mx: Any, spy: Any) -> None:
    rnn = mx.gluon.rnn
    inputs = mx.nd.ones((2, 4, 3))
    spied = spy.of(rnn.LSTMCell)
    stack = spy.of(rnn.SequentialRNNCell)()
    stack.add(spied(3, input_size=3))
    stack.add(spy.of(rnn.DropoutCell)(0.5))
    stack.add(spy.of(rnn.ResidualCell)(spied(3, input_size=3)))
    stack.add(spy.of(rnn.ZoneoutCell)(spied(3, input_size=3), 0.1))
    stack.initialize()
    stack.unroll(4, inputs)
    both = spy.of(rnn.BidirectionalCell)(spied(3, input_size=3), spied(3, input_size=3))
    both.initialize()
    both.unroll(4, inputs)
    hybrid = spy.of(rnn.HybridSequentialRNNCell)()
    hybrid.add(spied(3, input_size=3))
    hybrid.initialize()
    hybrid.unroll(4, inputs)


@program
def gluon_cells_with_variational_dropout(mx: Any, spy: Any) -> None:
    cell = spy.of(mx.gluon.contrib.rnn.VariationalDropoutCell)(mx.gluon.rnn.LSTMCell(3, input_size=3), 0.1, 0.1, 0.1)
    cell.initialize()
    cell.unroll(4, mx.nd.ones((2, 4, 3)))


@program
def gluon_convolutional_cells(mx: Any, spy: Any) -> None:
    rnn = mx.gluon.contrib.rnn
    for cls in (rnn.Conv1DRNNCell, rnn.Conv1DLSTMCell, rnn.Conv1DGRUCell):
        cell = spy.of(cls)((3, 6), 2, 3, 3, i2h_pad=1)
        cell.initialize()
        cell(mx.nd.ones((2, 3, 6)), cell.begin_state(2))


@program
def gluon_recurrent_layers(mx: Any, spy: Any) -> None:
    for name in ("RNN", "LSTM", "GRU"):
        layer = spy.of(getattr(mx.gluon.rnn, name))(3, 1, input_size=3)
        layer.initialize()
        layer(mx.nd.ones((4, 2, 3)))
        layer(mx.nd.ones((4, 2, 3)), layer.begin_state(2))
        layer.hybridize()
        layer(mx.nd.ones((4, 2, 3)))


# -- recurrent cells of symbols ------------------------------------------------------------------------


@program
def symbol_cells(mx: Any, spy: Any) -> None:
    rnn = mx.rnn
    for cls in (rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell, rnn.FusedRNNCell):
        cell = spy.of(cls)(5, prefix="c_")
        cell.unroll(3, mx.sym.var("x"), layout="NTC")
        len(cell.params._params), cell.state_shape
    spied = spy.of(rnn.LSTMCell)
    stack = spy.of(rnn.SequentialRNNCell)()
    stack.add(spied(5, prefix="a_"))
    stack.add(spy.of(rnn.DropoutCell)(0.5, prefix="d_"))
    stack.add(spy.of(rnn.ResidualCell)(spied(5, prefix="b_")))
    stack.unroll(3, mx.sym.var("x"), layout="NTC")
    both = spy.of(rnn.BidirectionalCell)(spied(5, prefix="l_"), spied(5, prefix="r_"))
    both.unroll(3, mx.sym.var("x"), layout="NTC")
    zone = spy.of(rnn.ZoneoutCell)(spied(5, prefix="z_"), 0.1, 0.1)
    zone.unroll(3, mx.sym.var("x"), layout="NTC")


@program
def symbol_cells_weights(mx: Any, spy: Any) -> None:
    cell = spy.of(mx.rnn.FusedRNNCell)(4, num_layers=1, mode="lstm", prefix="f_")
    size = 4 * 4 * (3 + 4 + 2)
    weights = cell.unpack_weights({"f_parameters": mx.nd.zeros((size,))})
    cell.pack_weights(weights)
    cell.unfuse()
    gates = spy.of(mx.rnn.LSTMCell)(4, prefix="l_")
    shapes = {"i2h_weight": (16, 3), "h2h_weight": (16, 4), "i2h_bias": (16,), "h2h_bias": (16,)}
    apart = gates.unpack_weights({f"l_{name}": mx.nd.zeros(shape) for name, shape in shapes.items()})
    gates.pack_weights(apart)


# -- optimizers ----------------------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": {"momentum": 0.9}, "Signum": {}, "FTML": {}, "LARS": {}, "LBSGD": {}, "LAMB": {}, "DCASGD": {}, "NAG": {},
    "SGLD": {}, "Adam": {}, "AdaGrad": {}, "RMSProp": {}, "AdaDelta": {}, "Ftrl": {}, "Adamax": {}, "Nadam": {},
}  # fmt: skip


def _optimizer_program(name: str) -> Any:
    def run(mx: Any, spy: Any) -> None:
        optimizer = spy.of(getattr(mx.optimizer, name))(learning_rate=0.1, **OPTIMIZERS[name])
        updater = mx.optimizer.get_updater(optimizer)
        weights = [mx.nd.ones((2, 3)), mx.nd.ones((3,))]
        for _ in range(2):
            for i, weight in enumerate(weights):
                updater(i, mx.nd.ones(weight.shape), weight)

    run.__name__ = f"optimizer_{name}"
    return run


for _name in OPTIMIZERS:
    program(_optimizer_program(_name))


@program
def optimizers_in_half(mx: Any, spy: Any) -> None:
    for name in ("SGD", "Adam", "NAG", "LAMB", "LARS"):
        optimizer = spy.of(getattr(mx.optimizer, name))(learning_rate=0.1, multi_precision=True)
        updater = mx.optimizer.get_updater(optimizer)
        weight = mx.nd.ones((2, 3), dtype="float16")
        updater(0, mx.nd.ones((2, 3), dtype="float16"), weight)


@program
def optimizer_in_a_trainer(mx: Any, spy: Any) -> None:
    net = _net(mx)
    for name in ("SGD", "Adam"):
        optimizer = spy.of(getattr(mx.optimizer, name))(learning_rate=0.1)
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer)
        for _ in range(2):
            _backward(mx, net)
            trainer.step(4)


@program
def optimizer_of_users(mx: Any, spy: Any) -> None:
    cls = spy.of(mx.optimizer.Optimizer)

    class Mine(cls):  # type: ignore[misc, valid-type]
        def create_state(self, index: Any, weight: Any) -> Any:
            return None

        def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
            self._update_count(index)
            weight -= self._get_lr(index) * grad + self._get_wd(index) * weight

    net = _net(mx)
    trainer = mx.gluon.Trainer(net.collect_params(), Mine(learning_rate=0.1))
    _backward(mx, net)
    trainer.step(4)


@program
def updaters(mx: Any, spy: Any) -> None:
    optimizer = mx.optimizer.create("adam")
    updater = spy.of(mx.optimizer.Updater)(optimizer)
    weight = mx.nd.ones(3)
    updater(0, mx.nd.ones(3), weight)
    updater([0, 1], [mx.nd.ones(3)] * 2, [weight, mx.nd.ones(3)])
    updater.set_states(updater.get_states())
    updater(0, mx.nd.ones(3), weight)


@program
def schedules(mx: Any, spy: Any) -> None:
    lr = mx.lr_scheduler
    for schedule in (
        spy.of(lr.FactorScheduler)(2, warmup_steps=2), spy.of(lr.MultiFactorScheduler)([3, 4], warmup_steps=2),
        spy.of(lr.PolyScheduler)(9, warmup_steps=2), spy.of(lr.CosineScheduler)(9, warmup_steps=2),
    ):  # fmt: skip
        optimizer = mx.optimizer.SGD(lr_scheduler=schedule)
        updater = mx.optimizer.get_updater(optimizer)
        weight = mx.nd.ones(3)
        for _ in range(3):
            updater(0, mx.nd.ones(3), weight)


# -- initializers --------------------------------------------------------------------------------------


@program
def initializers(mx: Any, spy: Any) -> None:
    init = mx.init
    desc = mx.init.InitDesc
    for name in ("Uniform", "Normal", "Xavier", "Zero", "One", "Orthogonal", "MSRAPrelu", "Bilinear", "LSTMBias"):
        initializer = spy.of(getattr(init, name))()
        for key in ("fc_weight", "fc_bias", "bn_gamma", "bn_beta"):
            if name in ("Orthogonal", "Xavier", "MSRAPrelu", "Bilinear") or key == "fc_weight":
                initializer(desc(key), mx.nd.zeros((2, 2, 4, 4)))
            elif name != "LSTMBias":
                initializer(desc(key), mx.nd.zeros((4,)))


@program
def initializer_of_a_net(mx: Any, spy: Any) -> None:
    initializer = spy.of(mx.init.Xavier)()
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, in_units=3), mx.gluon.nn.BatchNorm(in_channels=2))
    net.initialize(initializer)


@program
def initializer_of_a_module(mx: Any, spy: Any) -> None:
    initializer = spy.of(mx.init.Xavier)()
    module = mx.mod.Module(_symbol(mx), context=mx.cpu())
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params(initializer)


# -- modules -------------------------------------------------------------------------------------------


def _symbol(mx: Any) -> Any:
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    return mx.sym.SoftmaxOutput(data, name="softmax")


def _iterator(mx: Any) -> Any:
    return mx.io.NDArrayIter(mx.nd.ones((8, 3)), mx.nd.zeros((8,)), 4, label_name="softmax_label")


@program
def module_fit(mx: Any, spy: Any) -> None:
    module = spy.of(mx.mod.Module)(_symbol(mx), context=mx.cpu())
    module.fit(_iterator(mx), eval_data=_iterator(mx), num_epoch=2, optimizer_params={"learning_rate": 0.1})
    module.score(_iterator(mx), "acc")
    module.predict(_iterator(mx))
    for _ in module.iter_predict(_iterator(mx)):
        pass


@program
def module_by_hand(mx: Any, spy: Any) -> None:
    module = spy.of(mx.mod.Module)(_symbol(mx), context=mx.cpu())
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    module.init_optimizer()
    batch = next(_iterator(mx))
    module.forward_backward(batch)
    module.update()
    module.forward(mx.io.DataBatch([mx.nd.ones((2, 3))], [mx.nd.zeros((2,))]), is_train=False)
    module.get_params()
    module.set_params(*module.get_params())
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "net")
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
        module.save_params(f"{prefix}.params")
        module.load_params(f"{prefix}.params")


@program
def bucketing_module_fit(mx: Any, spy: Any) -> None:
    def make(key: Any) -> Any:
        return _symbol(mx), ("data",), ("softmax_label",)

    spy.watch(mx.mod.Module)
    module = spy.of(mx.mod.BucketingModule)(make, default_bucket_key=3, context=mx.cpu())
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    module.init_optimizer()
    for key in (3, 3):
        batch = mx.io.DataBatch([mx.nd.ones((4, key))], [mx.nd.zeros((4,))], bucket_key=key,
                                provide_data=[("data", (4, key))], provide_label=[("softmax_label", (4,))])  # fmt: skip
        module.prepare(batch)
        module.forward(batch)
        module.backward()
        module.update()
    module.get_params()


@program
def sequential_module_fit(mx: Any, spy: Any) -> None:
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="first")
    module = spy.of(mx.mod.SequentialModule)()
    spied = spy.of(mx.mod.Module)
    module.add(spied(first, label_names=[], context=mx.cpu()))
    module.add(spied(_symbol(mx), context=mx.cpu()), take_labels=True, auto_wiring=True)
    module.fit(_iterator(mx), num_epoch=1, optimizer_params={"learning_rate": 0.1})


@program
def python_modules(mx: Any, spy: Any) -> None:
    loss = spy.of(mx.mod.PythonLossModule)(grad_func=lambda scores, labels: scores)
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="first")
    module = mx.mod.SequentialModule()
    module.add(mx.mod.Module(first, label_names=[], context=mx.cpu()))
    module.add(loss, take_labels=True, auto_wiring=True)
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    module.init_optimizer()
    module.forward(next(_iterator(mx)))
    module.backward()
    module.update()


# -- data ----------------------------------------------------------------------------------------------


@program
def ndarray_iterator(mx: Any, spy: Any) -> None:
    data = spy.of(mx.io.NDArrayIter)(mx.nd.ones((10, 3)), mx.nd.zeros((10,)), 4, shuffle=True)
    list(data)
    data.reset()
    list(data)
    data.hard_reset()


@program
def iterator_of_users(mx: Any, spy: Any) -> None:
    cls = spy.of(mx.io.DataIter)

    class Mine(cls):  # type: ignore[misc, valid-type]
        left = 2
        provide_data = (("data", (4, 3)),)
        provide_label = (("softmax_label", (4,)),)

        def iter_next(self) -> bool:
            self.left -= 1
            return self.left >= 0

        def reset(self) -> None:
            self.left = 2

        def getdata(self) -> Any:
            return [mx.nd.ones((4, 3))]

        def getlabel(self) -> Any:
            return [mx.nd.zeros((4,))]

        def getpad(self) -> int:
            return 0

        def getindex(self) -> Any:
            return None

    list(Mine(4))
    mx.mod.Module(_symbol(mx), context=mx.cpu()).fit(Mine(4), num_epoch=2, optimizer_params={"learning_rate": 0.1})


@program
def iterators_around_iterators(mx: Any, spy: Any) -> None:
    inner = spy.of(mx.io.NDArrayIter)
    resized = spy.of(mx.io.ResizeIter)(inner(mx.nd.ones((8, 3)), None, 4), 3)
    list(resized)
    resized.reset()
    list(resized)


@program
def bucket_iterator(mx: Any, spy: Any) -> None:
    data = spy.of(mx.rnn.BucketSentenceIter)([[1, 2], [2, 3], [3, 1], [1, 1]], 2, buckets=[3], invalid_label=0)
    list(data)
    data.reset()
    list(data)


@program
def datasets(mx: Any, spy: Any) -> None:
    data = mx.gluon.data
    dataset = spy.of(data.ArrayDataset)([1, 2, 3, 4], [5, 6, 7, 8])
    len(dataset), dataset[0]
    dataset.transform(lambda a, b: (a, b))[1]
    dataset.transform_first(lambda a: a)[1]
    dataset.filter(lambda each: True), dataset.shard(2, 0), dataset.take(2)
    dataset.sample(data.SequentialSampler(2))
    simple = spy.of(data.SimpleDataset)([1, 2, 3])
    simple.transform(lambda a: a, lazy=False)
    list(simple.transform(lambda a: a))


@program
def loaders(mx: Any, spy: Any) -> None:
    data = mx.gluon.data
    dataset = spy.of(data.ArrayDataset)([1.0, 2.0, 3.0, 4.0])
    sampler = spy.of(data.SequentialSampler)(4)
    batches = spy.of(data.BatchSampler)(sampler, 2, "keep")
    list(data.DataLoader(dataset, batch_sampler=batches))
    loader = spy.of(data.DataLoader)(dataset, batch_size=2, sampler=sampler)
    list(loader), len(loader)


@program
def samplers(mx: Any, spy: Any) -> None:
    data = mx.gluon.data
    list(spy.of(data.RandomSampler)(3)), list(spy.of(data.FilterSampler)(lambda x: True, data.SimpleDataset([1, 2])))
    list(spy.of(data.BatchSampler)(data.SequentialSampler(3), 2, "rollover"))


# -- metrics -------------------------------------------------------------------------------------------

METRICS = ("Accuracy", "TopKAccuracy", "F1", "MCC", "MAE", "MSE", "RMSE", "CrossEntropy", "NegativeLogLikelihood",
           "Perplexity", "PearsonCorrelation", "PCC", "Loss", "Torch", "Caffe")  # fmt: skip


@program
def metrics(mx: Any, spy: Any) -> None:
    label, scores = mx.nd.array([0, 1]), mx.nd.array([[0.8, 0.2], [0.4, 0.6]])
    for name in METRICS:
        cls = spy.of(getattr(mx.metric, name))
        metric = cls(None) if name == "Perplexity" else cls(2) if name == "TopKAccuracy" else cls()
        values = (scores, scores) if name in ("MAE", "MSE", "RMSE", "PearsonCorrelation") else (label, scores)
        for _ in range(2):
            metric.update([values[0]], [values[1]])
        metric.get(), metric.get_name_value(), metric.get_global(), metric.get_global_name_value(), str(metric)
        metric.update_dict({"softmax_label": values[0]}, {"softmax_output": values[1]})
        metric.reset_local()
        metric.reset()
        metric.get_config()


@program
def metrics_in_a_composite(mx: Any, spy: Any) -> None:
    inner = spy.of(mx.metric.Accuracy)()
    custom = spy.of(mx.metric.CustomMetric)(lambda label, pred: 1.0)
    composite = spy.of(mx.metric.CompositeEvalMetric)([inner, custom])
    label, scores = mx.nd.array([0, 1]), mx.nd.array([[0.8, 0.2], [0.4, 0.6]])
    composite.update([label], [scores])
    composite.update_dict({"softmax_label": label}, {"softmax_output": scores})
    composite.get(), composite.get_global(), composite.get_name_value(), composite.get_global_name_value()
    composite.reset_local(), composite.reset()


@program
def metric_of_users(mx: Any, spy: Any) -> None:
    cls = spy.of(mx.metric.EvalMetric)

    class Mine(cls):  # type: ignore[misc, valid-type]
        def update(self, labels: Any, preds: Any) -> None:
            self.sum_metric += 1
            self.num_inst += 1

    module = mx.mod.Module(_symbol(mx), context=mx.cpu())
    module.fit(_iterator(mx), eval_data=_iterator(mx), eval_metric=Mine("custom"), num_epoch=2)


# -- training loops ------------------------------------------------------------------------------------


@program
def estimators(mx: Any, spy: Any) -> None:
    import logging

    estimator = mx.gluon.contrib.estimator
    net = _net(mx)
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(mx.nd.ones((4, 3)), mx.nd.zeros((4,))), 2)
    instance = spy.of(estimator.Estimator)(
        net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy(), context=mx.cpu(),
        batch_processor=spy.of(estimator.BatchProcessor)(),
    )  # fmt: skip
    instance.logger.setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        handlers = [
            spy.of(estimator.CheckpointHandler)(
                folder, monitor=instance.train_metrics[0], save_best=True, epoch_period=1
            ),
            spy.of(estimator.EarlyStoppingHandler)(instance.train_metrics[0]),
            spy.of(estimator.LoggingHandler)(metrics=instance.train_metrics),
        ]
        instance.fit(loader, val_data=loader, epochs=2, event_handlers=handlers)


@program
def callbacks(mx: Any, spy: Any) -> None:
    import logging

    logging.disable(logging.CRITICAL)
    try:
        module = mx.mod.Module(_symbol(mx), context=mx.cpu())
        module.fit(
            _iterator(mx), eval_data=_iterator(mx), num_epoch=1,
            batch_end_callback=[spy.of(mx.callback.Speedometer)(4, 1), spy.of(mx.callback.ProgressBar)(2)],
            eval_end_callback=spy.of(mx.callback.LogValidationMetricsCallback)(),
        )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)


@program
def monitors(mx: Any, spy: Any) -> None:
    monitor = spy.of(mx.mon.Monitor)(1, pattern=".*weight")
    module = mx.mod.Module(_symbol(mx), context=mx.cpu())
    module.fit(_iterator(mx), num_epoch=1, monitor=monitor)


@program
def stores(mx: Any, spy: Any) -> None:
    spy.watch(mx.kv.KVStore)
    store = mx.kv.create("local")
    store.set_optimizer(mx.optimizer.SGD())
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=mx.kv.create("local"))
    for _ in range(2):
        for i in range(2):
            _backward(mx, net, mx.nd.ones((4, 3), ctx=mx.cpu(i)))
        trainer.step(4)


@program
def store_in_a_module(mx: Any, spy: Any) -> None:
    spy.watch(mx.kv.KVStore)
    module = mx.mod.Module(_symbol(mx), context=[mx.cpu(0), mx.cpu(1)])
    module.fit(_iterator(mx), num_epoch=1, kvstore=mx.kv.create("local"))


@program
def store_of_users(mx: Any, spy: Any) -> None:
    base = spy.of(mx.kv.KVStoreBase)

    class Mine(base):  # type: ignore[misc, valid-type]
        type = "custom"
        rank = 0
        num_workers = 1

        def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
            spy.counts["Mine.broadcast"] += 1
            for each in out if isinstance(out, list) else [out]:
                each[:] = value

        def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
            spy.counts["Mine.pushpull"] += 1

        @staticmethod
        def is_capable(capability: str) -> bool:
            spy.counts["Mine.is_capable"] += 1
            return False

    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=Mine())
    for _ in range(2):
        for i in range(2):
            _backward(mx, net, mx.nd.ones((4, 3), ctx=mx.cpu(i)))
        trainer.step(4)


@program
def custom_operators(mx: Any, spy: Any) -> None:
    base, props = spy.of(mx.operator.CustomOp), spy.of(mx.operator.CustomOpProp)

    class Twice(base):  # type: ignore[misc, valid-type]
        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register(f"twice_of_hooks_{id(spy)}")
    class TwiceProp(props):  # type: ignore[misc, valid-type]
        def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
            return Twice()

    x = mx.nd.ones(3)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(x, op_type=f"twice_of_hooks_{id(spy)}")
    y.backward()
    x.grad.asnumpy()


@program
def names_and_attributes(mx: Any, spy: Any) -> None:
    with spy.of(mx.name.Prefix)("p_"):
        mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2)
    with spy.of(mx.name.NameManager)():
        mx.sym.relu(mx.sym.var("x"))
    with spy.of(mx.AttrScope)(ctx_group="a"):
        mx.sym.relu(mx.sym.var("x"))


@program
def records(mx: Any, spy: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "a.rec")
        writer = spy.of(mx.recordio.MXRecordIO)(path, "w")
        writer.write(b"abc")
        writer.close()
        writer = spy.of(mx.recordio.MXRecordIO)(path, "r")
        writer.read()
        writer.reset()
        writer.read()
        writer.close()
        index = spy.of(mx.recordio.MXIndexedRecordIO)(str(Path(folder) / "a.idx"), path, "w")
        index.write_idx(0, b"abc")
        index.close()
        index = spy.of(mx.recordio.MXIndexedRecordIO)(str(Path(folder) / "a.idx"), path, "r")
        index.read_idx(0)
        index.close()
