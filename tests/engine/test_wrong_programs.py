"""Typical mistakes of new users: each report states the actual value, the expected value and the line.

Each program is compiled as a separate file; its report is what a terminal would show. The faulty line ends with
``#!``. Where nothing is raised but Python warns, the warning is the report.
"""

import linecache
import os
import traceback
import warnings
from dataclasses import dataclass
from textwrap import dedent

import numpy as np
import pytest

import flowmx as mx


@dataclass
class Wrong:
    """A program, the type of its error, and the text of its report."""

    program: str
    error: type[BaseException]
    given: str
    expected: str


WRONG = {
    "dense_input": Wrong(
        """
        net = nn.Dense(10, in_units=64)
        net.initialize()
        net(nd.ones((32, 60)))  #!
        """,
        ValueError,
        "(32, 60)",
        "(10, 64)",
    ),
    "dense_second_batch": Wrong(
        """
        net = nn.HybridSequential()
        net.add(nn.Dense(16, activation="relu"), nn.Dense(10))
        net.initialize()
        net.hybridize()
        net(nd.ones((32, 8)))
        net(nd.ones((32, 5)))  #!
        """,
        ValueError,
        "(32, 5)",
        "8",
    ),
    "conv_without_channels": Wrong(
        """
        net = nn.Conv2D(channels=8, kernel_size=3)
        net.initialize()
        net(nd.ones((32, 28, 28)))  #!
        """,
        ValueError,
        "(32, 28, 28)",
        "4",
    ),
    "conv_kernel_too_big": Wrong(
        """
        net = nn.Conv2D(channels=8, kernel_size=5)
        net.initialize()
        net(nd.ones((32, 1, 3, 3)))  #!
        """,
        ValueError,
        "(32, 1, 3, 3)",
        "kernel (5, 5)",
    ),
    "two_dtypes": Wrong(
        """
        images = nd.ones((2, 3), dtype="uint8")
        net = nn.Dense(10)
        net.initialize()
        net(images)  #!
        """,
        TypeError,
        "uint8",
        "float32",
    ),
    "label_shape": Wrong(
        """
        loss = gluon.loss.L2Loss()
        loss(nd.ones((4, 2)), nd.ones((4, 3)))  #!
        """,
        ValueError,
        "(4, 3)",
        "(4, 2)",
    ),
    "backward_without_record": Wrong(
        """
        x = nd.ones((3,))
        x.attach_grad()
        y = (x * x).sum()
        y.backward()  #!
        """,
        mx.MXNetError,
        "head 0 (shape (1,)) was not computed",
        "autograd.record()",
    ),
    "no_initialize": Wrong(
        """
        net = nn.Dense(10, in_units=4)
        net(nd.ones((2, 4)))  #!
        """,
        RuntimeError,
        "_weight' is not initialized",
        "initialize()",
    ),
    "operator_misspelt": Wrong(
        """
        nd.Convolutoin(nd.ones((1, 1, 5, 5)))  #!
        """,
        AttributeError,
        "Convolutoin",
        "did you mean 'Convolution'",
    ),
    "layer_misspelt": Wrong(
        """
        net = nn.Conv2d(8, 3)  #!
        """,
        AttributeError,
        "Conv2d",
        "Conv2D",
    ),
    "optimizer_misspelt": Wrong(
        """
        net = nn.Dense(2)
        net.initialize()
        gluon.Trainer(net.collect_params(), "sdg")  #!
        """,
        ValueError,
        "'sdg'",
        "'sgd'",
    ),
    "optimizer_parameter_misspelt": Wrong(
        """
        net = nn.Dense(2)
        net.initialize()
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rat": 0.1})  #!
        """,
        TypeError,
        "'learning_rat'",
        "'learning_rate'",
    ),
    "metric_misspelt": Wrong(
        """
        mx.metric.create("acuracy")  #!
        """,
        ValueError,
        "acuracy",
        "accuracy",
    ),
    "initializer_misspelt": Wrong(
        """
        net = nn.Dense(2)
        net.initialize("xaviar")  #!
        """,
        ValueError,
        "xaviar",
        "xavier",
    ),
    "operator_parameter_misspelt": Wrong(
        """
        nd.Pooling(nd.ones((1, 1, 4, 4)), kernal=(2, 2))  #!
        """,
        ValueError,
        "'kernal'",
        "'kernel'",
    ),
    "parameter_value": Wrong(
        """
        nd.Pooling(nd.ones((1, 1, 4, 4)), kernel=(2, 2), pool_type="mean")  #!
        """,
        ValueError,
        "'mean'",
        "'avg'",
    ),
    "number_of_outputs": Wrong(
        """
        first, second = nd.split(nd.ones((6, 2)), num_outputs=3, axis=0)  #!
        """,
        ValueError,
        "too many values to unpack",
        "expected 2",
    ),
    "context_name": Wrong(
        """
        nd.ones((2, 2), ctx=mx.Context("cuda", 0))  #!
        """,
        ValueError,
        "'cuda'",
        "'gpu'",
    ),
    "no_such_gpu": Wrong(
        """
        nd.ones((2, 2), ctx=mx.gpu(63))  #!
        """,
        mx.MXNetError,
        "gpu(63)",
        "mx.cpu()",
    ),
    "missing_file": Wrong(
        """
        nd.load("weights.params")  #!
        """,
        FileNotFoundError,
        "weights.params",
        "No such file",
    ),
    "damaged_file": Wrong(
        """
        nd.save("weights.params", {"w": nd.ones((100,))})
        content = open("weights.params", "rb").read()
        open("weights.params", "wb").write(content[:150])
        nd.load("weights.params")  #!
        """,
        ValueError,
        "found the end of the file after 94",
        "expected 400 bytes",
    ),
    "parameters_of_another_network": Wrong(
        """
        one, other = nn.Dense(4, in_units=3), nn.Dense(5, in_units=3)
        one.initialize()
        one.save_parameters("dense.params")
        other.load_parameters("dense.params")  #!
        """,
        ValueError,
        "(4, 3)",
        "(5, 3)",
    ),
    "parameters_of_another_structure": Wrong(
        """
        one, other = nn.Sequential(), nn.Sequential()
        one.add(nn.Dense(4, in_units=3))
        other.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
        one.initialize()
        one.save_parameters("dense.params")
        other.load_parameters("dense.params")  #!
        """,
        ValueError,
        "1.weight",
        "0.weight",
    ),
    "data_name": Wrong(
        """
        net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
        mx.mod.Module(net, data_names=["images"])  #!
        """,
        ValueError,
        "images",
        "data",
    ),
    "label_name": Wrong(
        """
        net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="out")
        mod = mx.mod.Module(net)  #!
        """,
        UserWarning,
        "softmax_label",
        "out_label",
    ),
    "module_before_bind": Wrong(
        """
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2)
        mod = mx.mod.Module(net, label_names=None)
        mod.init_params()  #!
        """,
        RuntimeError,
        "init_params",
        "bind",
    ),
    "module_before_init_params": Wrong(
        """
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2)
        mod = mx.mod.Module(net, label_names=None)
        mod.bind([("data", (4, 3))])
        mod.forward(mx.io.DataBatch([nd.ones((4, 3))]))  #!
        """,
        RuntimeError,
        "forward",
        "init_params",
    ),
    "kvstore_key": Wrong(
        """
        kv = mx.kv.create("local")
        kv.init("weight", nd.ones((2,)))
        kv.push("wieght", nd.ones((2,)))  #!
        """,
        mx.MXNetError,
        "'wieght'",
        "'weight'",
    ),
    "kvstore_type": Wrong(
        """
        mx.kv.create("dist_snyc")  #!
        """,
        ValueError,
        "'dist_snyc'",
        "'dist_sync'",
    ),
    "reshape": Wrong(
        """
        nd.ones((4, 6)).reshape((5, 5))  #!
        """,
        ValueError,
        "(4, 6)",
        "(5, 5)",
    ),
    "broadcast": Wrong(
        """
        nd.ones((2, 3)) + nd.ones((4, 3))  #!
        """,
        ValueError,
        "(2, 3)",
        "(4, 3)",
    ),
    "matrix_product": Wrong(
        """
        nd.dot(nd.ones((2, 3)), nd.ones((2, 3)))  #!
        """,
        ValueError,
        "(2, 3)",
        "3",
    ),
    "index_out_of_bounds": Wrong(
        """
        nd.ones((4, 3))[4]  #!
        """,
        IndexError,
        "4",
        "axis 0",
    ),
    "changed_before_backward": Wrong(
        """
        x = nd.ones((3,))
        x.attach_grad()
        with autograd.record():
            y = x * 2
            z = (y * y).sum()  #!
        y += 1
        z.backward()  #!
        """,
        mx.MXNetError,
        "was changed in place",
        "before the change",
    ),
    "control_flow_on_data": Wrong(
        """
        class Clip(gluon.HybridBlock):
            def hybrid_forward(self, F, x):
                if x.sum() > 0:  #!
                    return x
                return -x

        net = Clip()
        net.hybridize()
        net(nd.ones((2,)))  #!
        """,
        TypeError,
        "Clip",
        "F.where",
    ),
    "asnumpy_in_hybrid_forward": Wrong(
        """
        class Net(gluon.HybridBlock):
            def hybrid_forward(self, F, x):
                print(x.asnumpy())  #!
                return x * 2

        net = Net()
        net.hybridize()
        net(nd.ones((2,)))  #!
        """,
        NotImplementedError,
        "asnumpy",
        "hybridize",
    ),
    "shape_in_hybrid_forward": Wrong(
        """
        class Net(gluon.HybridBlock):
            def hybrid_forward(self, F, x):
                return x.reshape((x.shape[0], -1))  #!

        net = Net()
        net.hybridize()
        net(nd.ones((2, 3, 4)))  #!
        """,
        AttributeError,
        "attribute 'shape'",
        "leave lengths to reshape",
    ),
    "forgotten_await": Wrong(
        """
        async def train():
            await nd.ones((2,))

        async def main():
            train()  #!

        mx.run(main())
        """,
        RuntimeWarning,
        "coroutine 'train'",
        "never awaited",
    ),
    "truth_of_several_elements": Wrong(
        """
        x = nd.array([1, 2, 3])
        if x > 2:  #!
            print("bigger")
        """,
        ValueError,
        "(3,)",
        "expected one element",
    ),
    "batch_over_devices": Wrong(
        """
        gluon.utils.split_and_load(nd.ones((10, 4)), [mx.cpu(0), mx.cpu(1), mx.cpu(2)])  #!
        """,
        ValueError,
        "(10, 4)",
        "even_split",
    ),
    "batch_over_devices_of_a_module": Wrong(
        """
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2)
        mod = mx.mod.Module(net, label_names=None, context=[mx.cpu(0), mx.cpu(1), mx.cpu(2)])
        mod.bind([("data", (2, 4))])  #!
        """,
        ValueError,
        "2",
        "3",
    ),
    "learning_rate_negative": Wrong(
        """
        mx.optimizer.create("adam", learning_rate=-0.1)  #!
        """,
        UserWarning,
        "learning_rate is -0.1",
        "expected a non-negative, finite number",
    ),
    "learning_rate_nan": Wrong(
        """
        net = nn.Dense(2)
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        trainer.set_learning_rate(float("nan"))  #!
        """,
        UserWarning,
        "learning_rate is nan",
        "expected a non-negative, finite number",
    ),
    "learning_rate_is_text": Wrong(
        """
        net = nn.Dense(2)
        net.initialize()
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": "0.1"})  #!
        """,
        TypeError,
        "learning_rate is '0.1'",
        "expected a number",
    ),
    "missing_folder": Wrong(
        """
        nd.save("results/weights.params", [nd.ones((2,))])  #!
        """,
        FileNotFoundError,
        "results/weights.params",
        "the folder",
    ),
    "setting": Wrong(
        """
        os.environ["FLOWMX_ENGINE_TYPE"] = "FastEngine"
        try:
            mx.settings.reload()  #!
        finally:
            del os.environ["FLOWMX_ENGINE_TYPE"]
        """,
        ValueError,
        "'FastEngine'",
        "NaiveEngine",
    ),
    "served_shape": Wrong(
        """
        net = nn.Dense(2, in_units=4)
        net.initialize()

        async def main():
            async with mx.serve.Predictor(net, (4,)) as predictor:
                await predictor(np.ones((1, 5)))  #!

        mx.run(main())
        """,
        ValueError,
        "(1, 5)",
        "(4,)",
    ),
    "symbol_json": Wrong(
        """
        net = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=2)
        text = net.tojson().replace("Convolution", "Convolutoin")
        mx.sym.load_json(text)  #!
        """,
        mx.MXNetError,
        "'Convolutoin'",
        "'Convolution'",
    ),
    "symbol_that_is_no_json": Wrong(
        """
        mx.sym.load_json("model-symbol.json")  #!
        """,
        ValueError,
        "model-symbol.json",
        "sym.load",
    ),
    "missing_argument_of_bind": Wrong(
        """
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
        net.simple_bind(mx.cpu(), dat=(2, 3))  #!
        """,
        ValueError,
        "'dat'",
        "'data'",
    ),
    "loader_of_lists_of_different_lengths": Wrong(
        """
        gluon.data.ArrayDataset(nd.ones((10, 2)), nd.ones((9,)))  #!
        """,
        ValueError,
        "9",
        "10",
    ),
    "batch_size_forgotten": Wrong(
        """
        net = nn.Dense(1, in_units=2)
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        with autograd.record():
            loss = net(nd.ones((4, 2)))
        loss.backward()
        trainer.step()  #!
        """,
        TypeError,
        "step()",
        "batch_size",
    ),
    "step_without_backward": Wrong(
        """
        net = nn.Dense(1, in_units=2)
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        net(nd.ones((4, 2)))
        trainer.step(4)  #!
        """,
        UserWarning,
        "no backward pass has reached parameter",
        "ignore_stale_grad=True",
    ),
    "custom_operator_unregistered": Wrong(
        """
        nd.Custom(nd.ones((2,)), op_type="my_op")  #!
        """,
        ValueError,
        "'my_op'",
        "mx.operator.register",
    ),
    "array_of_texts": Wrong(
        """
        nd.array(["a", "b"])  #!
        """,
        ValueError,
        "list ['a', 'b']",
        "float32",
    ),
    "array_of_uneven_rows": Wrong(
        """
        nd.array([[1, 2], [3]])  #!
        """,
        ValueError,
        "[[1, 2], [3]]",
        "different lengths",
    ),
    "product_with_a_number": Wrong(
        """
        nd.ones((2, 3)) @ 3  #!
        """,
        TypeError,
        "@ int",
        "an NDArray on the right",
    ),
    "layer_before_super": Wrong(
        """
        class Net(nn.Block):
            def __init__(self):
                self.fc = nn.Dense(2)  #!
                super().__init__()

        Net()
        """,
        AttributeError,
        "Net",
        "super().__init__()",
    ),
    "array_for_a_symbol": Wrong(
        """
        mx.sym.relu(nd.ones((2,)))  #!
        """,
        TypeError,
        "NDArray of shape (2,)",
        "expected a Symbol",
    ),
    "pattern_of_a_monitor": Wrong(
        """
        mx.mon.Monitor(1, pattern="(")  #!
        """,
        ValueError,
        "'('",
        "a regular expression",
    ),
    "dense_of_pytorch": Wrong(
        """
        net = nn.Dense(64, 10)  #!
        """,
        UserWarning,
        "activation is 10",
        "nn.Dense(10, in_units=64)",
    ),
    "layer_norm_of_pytorch": Wrong(
        """
        net = nn.LayerNorm(512)
        net.initialize()
        net(nd.ones((2, 512)))  #!
        """,
        ValueError,
        "axis is 512",
        "in_channels=512",
    ),
    "lstm_of_pytorch": Wrong(
        """
        gluon.rnn.LSTM(10, 20, 2)  #!
        """,
        ValueError,
        "layout is 2",
        "LSTM(hidden_size, num_layers, ...)",
    ),
    "one_state_of_an_lstm": Wrong(
        """
        net = gluon.rnn.LSTM(10)
        net.initialize()
        net(nd.ones((5, 3, 4)), nd.zeros((1, 3, 10)))  #!
        """,
        ValueError,
        "number of states is 1",
        "expected 2",
    ),
    "cell_without_states": Wrong(
        """
        cell = gluon.rnn.LSTMCell(8)
        cell.initialize()
        cell(nd.ones((2, 4)))  #!
        """,
        TypeError,
        "states are missing",
        "cell.begin_state(batch_size)",
    ),
    "nothing_returned": Wrong(
        """
        class Net(gluon.HybridBlock):
            def hybrid_forward(self, F, x):
                F.relu(x)

        net = Net()
        net.hybridize()
        net(nd.ones((2,)))  #!
        """,
        TypeError,
        "returned None",
        "return its outputs",
    ),
    "device_as_initializer": Wrong(
        """
        nn.Dense(2).initialize(mx.cpu())  #!
        """,
        UserWarning,
        "init is cpu(0)",
        "ctx=cpu(0)",
    ),
    "shape_as_mean": Wrong(
        """
        nd.random.normal((2, 3))  #!
        """,
        ValueError,
        "loc is (2, 3)",
        "shape=(2, 3)",
    ),
    "labels_in_a_list": Wrong(
        """
        gluon.loss.SoftmaxCrossEntropyLoss()(nd.ones((2, 3)), [0, 1])  #!
        """,
        TypeError,
        "an input is a list",
        "mx.nd.array(list)",
    ),
    "rate_without_a_dict": Wrong(
        """
        net = nn.Dense(2)
        net.initialize()
        gluon.Trainer(net.collect_params(), "sgd", 0.1)  #!
        """,
        TypeError,
        "optimizer_params is 0.1",
        "{'learning_rate': 0.1}",
    ),
    "rate_as_a_schedule": Wrong(
        """
        mx.optimizer.SGD(lr_scheduler=0.1)  #!
        """,
        UserWarning,
        "lr_scheduler is 0.1",
        "FactorScheduler(1000)",
    ),
    "class_of_a_transform": Wrong(
        """
        data = gluon.data.ArrayDataset(nd.ones((4, 3)))
        data.transform_first(gluon.data.vision.transforms.ToTensor)  #!
        """,
        TypeError,
        "the class ToTensor",
        "ToTensor()",
    ),
    "sample_without_a_value": Wrong(
        """
        class Data(gluon.data.Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, index):
                pass

        list(gluon.data.DataLoader(Data(), 2))  #!
        """,
        ValueError,
        "a sample is None",
        "__getitem__",
    ),
    "arrays_for_fit": Wrong(
        """
        net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
        mx.mod.Module(net).fit(np.ones((8, 3)), num_epoch=1)  #!
        """,
        TypeError,
        "ndarray",
        "mx.io.NDArrayIter(x, y, batch_size=32)",
    ),
    "array_for_a_batch": Wrong(
        """
        mod = mx.mod.Module(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), label_names=None)
        mod.bind([("data", (4, 3))])
        mod.init_params()
        mod.forward(nd.ones((4, 3)))  #!
        """,
        TypeError,
        "data_batch is a NDArray",
        "mx.io.DataBatch([array]",
    ),
    "block_for_a_symbol": Wrong(
        """
        mx.mod.Module(nn.Dense(2))  #!
        """,
        TypeError,
        "symbol is a Dense",
        "expected a Symbol",
    ),
    "shape_for_bind": Wrong(
        """
        mod = mx.mod.Module(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), label_names=None)
        mod.bind((4, 3))  #!
        """,
        TypeError,
        "data_shapes is (4, 3)",
        "[('data', (32, 10))]",
    ),
    "missing_epoch": Wrong(
        """
        mx.model.save_checkpoint("net", 3, mx.sym.var("x") * 2, {}, {})
        mx.model.load_checkpoint("net", 7)  #!
        """,
        FileNotFoundError,
        "net-0007.params",
        "the folder has net-0003.params",
    ),
    "pushed_result": Wrong(
        """
        async def work():
            return 1

        mx.engine.push(work())  #!
        """,
        TypeError,
        "the coroutine work()",
        "write push(work)",
    ),
    "predictor_without_async": Wrong(
        """
        net = nn.Dense(2, in_units=4)
        net.initialize()
        with mx.serve.Predictor(net, (4,)):  #!
            pass
        """,
        TypeError,
        "instead of `with`",
        "`async with`",
    ),
    "text_for_a_predictor": Wrong(
        """
        net = nn.Dense(2, in_units=4)
        net.initialize()

        async def main():
            async with mx.serve.Predictor(net, (4,)) as predictor:
                await predictor("hello")  #!

        mx.run(main())
        """,
        ValueError,
        "input data is a str",
        "float32 (4,)",
    ),
    "outputs_of_another_model": Wrong(
        """
        net = nn.Dense(2, in_units=4)
        net.initialize()

        async def main():
            async with mx.serve.Predictor(net, (4,)) as predictor:
                await predictor.swap(nn.HybridLambda(lambda F, x: (x, x)))  #!

        mx.run(main())
        """,
        ValueError,
        "outputs is 2",
        "expected 1",
    ),
    "result_of_a_custom_operator": Wrong(
        """
        class Twice(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):  #!
                return in_data[0] * 2

        class TwiceProp(mx.operator.CustomOpProp):
            def create_operator(self, ctx, shapes, dtypes):
                return Twice()

        mx.operator.register("twice")(TwiceProp)
        nd.Custom(nd.ones((2,)), op_type="twice").wait_to_read()
        """,
        UserWarning,
        "returned a NDArray",
        "self.assign(out_data[0]",
    ),
    "error_in_an_operation": Wrong(
        """
        x = nd.array([0, 9])
        y = nd.take(nd.ones((4, 2)), x, mode="raise")  #!
        z = y * 2
        z.asnumpy()
        """,
        IndexError,
        "9",
        "4",
    ),
}


def report(name: str, program: str) -> tuple[BaseException | None, str]:
    """Run a program; return its exception and the report that a terminal would show."""
    filename = f"{name}.py"
    source = dedent(program).strip("\n") + "\n"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    names = {
        "__name__": "__main__", "np": np, "os": os, "mx": mx, "nd": mx.nd,
        "autograd": mx.autograd, "gluon": mx.gluon, "nn": mx.gluon.nn,
    }  # fmt: skip
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            exec(compile(source, filename, "exec"), names)
            mx.nd.waitall()
        except Exception as error:
            return error, "".join(traceback.format_exception(error))
    if not warned:
        return None, ""
    first = warned[0]
    shown = warnings.formatwarning(first.message, first.category, first.filename, first.lineno)
    return first.message if isinstance(first.message, Warning) else None, shown


def lines(program: str) -> list[int]:
    """The numbers of the lines that are at fault."""
    source = dedent(program).strip("\n").splitlines()
    return [number for number, line in enumerate(source, 1) if line.endswith("#!")]


@pytest.mark.parametrize("name", WRONG)
def test_the_report_names_the_value_the_expectation_and_the_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = WRONG[name]
    error, shown = report(name, wrong.program)
    assert isinstance(error, wrong.error), shown
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    assert wrong.given in message
    assert wrong.expected in message
    assert lines(wrong.program)
    for line in lines(wrong.program):
        assert f'{name}.py", line {line},' in shown or f"{name}.py:{line}" in shown
