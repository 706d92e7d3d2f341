"""Wrong programs, as newcomers write them: the program, and the required end of its report.

The line at fault ends with ``#!``. Each runs as a separate program. The last lines of its terminal must show the line,
the value, and the expectation.
"""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """A wrong program, with the value and the expectation that its error must name."""

    program: str
    value: str
    expected: str


WRONG = {
    "shape_reshape": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((4, 6))
y = x.reshape((5, 5))  #!
print(y)
""",
        "(4, 6)",
        "24",
    ),
    "shape_concat": Wrong(
        """\
import flowmx as mx
a = mx.nd.ones((2, 3)); b = mx.nd.ones((3, 3))
c = mx.nd.concat(a, b, dim=1)  #!
print(c.asnumpy())
""",
        "(3, 3)",
        "(2, 3)",
    ),
    "shape_split": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((2, 7))
parts = mx.nd.split(x, num_outputs=3, axis=1)  #!
print(parts)
""",
        "7",
        "a multiple of 3",
    ),
    "index_oob": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((4, 6))
print(x[9])  #!
""",
        "index 9",
        "(4, 6)",
    ),
    "assign_shape": Wrong(
        """\
import flowmx as mx
x = mx.nd.zeros((4, 6))
x[1:3] = mx.nd.ones((3, 6))  #!
print(x.asnumpy())
""",
        "(3, 6)",
        "(2, 6)",
    ),
    "batch_dot": Wrong(
        """\
import flowmx as mx
a = mx.nd.ones((2, 3, 4)); b = mx.nd.ones((2, 5, 6))
print(mx.nd.batch_dot(a, b).asnumpy())  #!
""",
        "4 and 5",
        "expected the same",
    ),
    "dtype_mix": Wrong(
        """\
import flowmx as mx
a = mx.nd.ones((2, 2), dtype="float16")
b = mx.nd.ones((2, 2), dtype="int64")
print(mx.nd.dot(a, b).asnumpy())  #!
""",
        "int64",
        "float16",
    ),
    "dtype_name": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((2, 2), dtype="flaot32")  #!
print(x)
""",
        "'flaot32'",
        "float32",
    ),
    "array_ragged": Wrong(
        """\
import flowmx as mx
x = mx.nd.array([[1, 2], [3]])  #!
print(x)
""",
        "[[1, 2], [3]]",
        "different lengths",
    ),
    "array_strings": Wrong(
        """\
import flowmx as mx
x = mx.nd.array(["a", "b"])  #!
print(x)
""",
        "['a', 'b']",
        "float32",
    ),
    "truth": Wrong(
        """\
import flowmx as mx
x = mx.nd.array([1, 2])
if x > 1:  #!
    print("yes")
""",
        "(2,)",
        "one element",
    ),
    "scalar_many": Wrong(
        """\
import flowmx as mx
x = mx.nd.array([1, 2])
print(float(x))  #!
""",
        "(2,)",
        "exactly one element",
    ),
    "no_record": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((2,)); x.attach_grad()
y = (x * 2).sum()
y.backward()  #!
print(x.grad)
""",
        "head 0",
        "autograd.record()",
    ),
    "grad_none": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((2,))
with mx.autograd.record():
    y = x * 2
y.backward()  #!
print(x.grad.asnumpy())
""",
        "head 0",
        "attach_grad()",
    ),
    "backward_twice": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((2,)); x.attach_grad()
with mx.autograd.record():
    y = (x * x).sum()
y.backward()
y.backward()  #!
""",
        "'sum'",
        "retain_graph=True",
    ),
    "inplace_record": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((2,)); x.attach_grad()
with mx.autograd.record():
    y = x * x
    x[:] = 5  #!
y.backward()
print(x.grad.asnumpy())
""",
        "shape (2,)",
        "outside autograd.record()",
    ),
    "ctx_missing": Wrong(
        """\
import flowmx as mx
x = mx.nd.ones((2,), ctx=mx.gpu(3))  #!
print(x.asnumpy())
""",
        "gpu(3)",
        "mx.cpu()",
    ),
    "optimizer_unknown": Wrong(
        """\
import flowmx as mx
net = mx.gluon.nn.Dense(2); net.initialize()
t = mx.gluon.Trainer(net.collect_params(), "adamm")  #!
""",
        "'adamm'",
        "'adam'",
    ),
    "optimizer_arg": Wrong(
        """\
import flowmx as mx
net = mx.gluon.nn.Dense(2); net.initialize()
t = mx.gluon.Trainer(net.collect_params(), "sgd", {"lerning_rate": 0.1})  #!
""",
        "'lerning_rate'",
        "'learning_rate'",
    ),
    "collect_regex": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.Dense(2); n.initialize()
t = mx.gluon.Trainer(n, "sgd")  #!
""",
        "Dense",
        "a dict or list of Parameters",
    ),
    "load_other_net": Wrong(
        """\
import flowmx as mx
a = mx.gluon.nn.Dense(2, in_units=3); a.initialize(); a.save_parameters("a.params")
b = mx.gluon.nn.Dense(4, in_units=3)
b.load_parameters("a.params")  #!
""",
        "(2, 3)",
        "(4, 3)",
    ),
    "load_missing_file": Wrong(
        """\
import flowmx as mx
b = mx.gluon.nn.Dense(4, in_units=3)
b.load_parameters("nothing.params")  #!
""",
        "nothing.params",
        "No such file",
    ),
    "load_not_params": Wrong(
        """\
import flowmx as mx
open("x.params", "w").write("hello")
b = mx.gluon.nn.Dense(4, in_units=3)
b.load_parameters("x.params")  #!
""",
        "x.params",
        "expected 8 bytes",
    ),
    "forward_forgot": Wrong(
        """\
import flowmx as mx
class Net(mx.gluon.Block):
    pass
print(Net()(mx.nd.ones((1,))))  #!
""",
        "Net",
        "must define forward()",
    ),
    "block_list": Wrong(
        """\
import flowmx as mx
class Net(mx.gluon.nn.Block):
    def __init__(self):
        self.fc = mx.gluon.nn.Dense(2)  #!
        super().__init__()
Net()
""",
        "Net",
        "super().__init__()",
    ),
    "hybrid_python": Wrong(
        """\
import flowmx as mx
class Net(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        if x.shape[0] > 2:  #!
            return x * 2
        return x
n = Net(); n.hybridize(); print(n(mx.nd.ones((3,))))
""",
        "'shape'",
        "F.where",
    ),
    "hybrid_asnumpy": Wrong(
        """\
import flowmx as mx
class Net(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x * float(x.asnumpy().mean())  #!
n = Net(); n.hybridize(); print(n(mx.nd.ones((3,))))
""",
        "asnumpy",
        "do not hybridize",
    ),
    "export_before": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.HybridSequential(); n.add(mx.gluon.nn.Dense(2)); n.initialize(); n.hybridize()
n.export("m")  #!
""",
        "has no graph",
        "hybridize()",
    ),
    "loss_shape": Wrong(
        """\
import flowmx as mx
l = mx.gluon.loss.SoftmaxCrossEntropyLoss()
print(l(mx.nd.ones((4, 10)), mx.nd.ones((5,))).asnumpy())  #!
""",
        "(5,)",
        "(4,)",
    ),
    "loss_labels": Wrong(
        """\
import flowmx as mx
l = mx.gluon.loss.L2Loss()
print(l(mx.nd.ones((4, 10)), mx.nd.ones((4, 7))).asnumpy())  #!
""",
        "(4, 7)",
        "(4, 10)",
    ),
    "embedding_float": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.Embedding(10, 4); n.initialize()
print(n("hello"))  #!
""",
        "given str",
        "arrays",
    ),
    "lstm_rank": Wrong(
        """\
import flowmx as mx
n = mx.gluon.rnn.LSTM(8); n.initialize()
print(n(mx.nd.ones((5, 3))).asnumpy())  #!
""",
        "(5, 3)",
        "3 axes",
    ),
    "dataloader_batch": Wrong(
        """\
import flowmx as mx
d = mx.gluon.data.ArrayDataset(mx.nd.ones((4, 2)), mx.nd.ones((5,)))  #!
""",
        "[4, 5]",
        "equal",
    ),
    "dataset_error": Wrong(
        """\
import flowmx as mx
class D(mx.gluon.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        return {}["x"]  #!
for x in mx.gluon.data.DataLoader(D(), batch_size=2, num_workers=2):
    print(x)
""",
        "'x'",
        "sample 0 of batch 0",
    ),
    "sym_bind_missing": Wrong(
        """\
import flowmx as mx
y = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
e = y.bind(mx.cpu(), {"data": mx.nd.ones((2, 4))})  #!
""",
        "missing",
        "fc_weight",
    ),
    "sym_bind_shape": Wrong(
        """\
import flowmx as mx
y = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
e = y.bind(mx.cpu(), {"data": mx.nd.ones((2, 4)), "fc_weight": mx.nd.ones((3, 5)), "fc_bias": mx.nd.ones((3,))})  #!
print(e.forward()[0].asnumpy())
""",
        "(3, 5)",
        "(3, 4)",
    ),
    "sym_infer": Wrong(
        """\
import flowmx as mx
a, b = mx.sym.var("a"), mx.sym.var("b")
print((a + b).infer_shape(a=(2, 3), b=(4, 3)))  #!
""",
        "(4, 3)",
        "(2, 3)",
    ),
    "sym_eval": Wrong(
        """\
import flowmx as mx
a = mx.sym.var("a")
print((a * 2).eval(x=mx.nd.ones((2,))))  #!
""",
        "missing",
        "for a",
    ),
    "sym_call_nd": Wrong(
        """\
import flowmx as mx
a = mx.sym.var("a")
print(mx.sym.relu(mx.nd.ones((2,))))  #!
""",
        "NDArray of shape (2,)",
        "a Symbol",
    ),
    "nd_call_sym": Wrong(
        """\
import flowmx as mx
print(mx.nd.relu(mx.sym.var("a")))  #!
""",
        "<Symbol a>",
        "an NDArray",
    ),
    "sym_json": Wrong(
        """\
import flowmx as mx
mx.sym.load_json("{\\"nodes\\": 3}")  #!
""",
        "graph",
        "arg_nodes",
    ),
    "mod_forward_unbound": Wrong(
        """\
import flowmx as mx
y = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)
m = mx.mod.Module(y, label_names=None)
m.forward(mx.io.DataBatch([mx.nd.ones((2, 4))]))  #!
""",
        "not bound",
        "bind()",
    ),
    "mod_metric": Wrong(
        """\
import flowmx as mx, numpy as np
y = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), name="softmax")
m = mx.mod.Module(y)
m.fit(mx.io.NDArrayIter(np.ones((8, 4)), np.ones(8), 4), num_epoch=1, eval_metric="accurracy")  #!
""",
        "'accurracy'",
        "'accuracy'",
    ),
    "mod_epoch": Wrong(
        """\
import flowmx as mx, numpy as np
y = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), name="softmax")
m = mx.mod.Module(y)
m.fit(mx.io.NDArrayIter(np.ones((8, 4)), np.ones(8), 4))  #!
""",
        "num_epoch",
        "pass the number",
    ),
    "iter_lengths": Wrong(
        """\
import flowmx as mx, numpy as np
it = mx.io.NDArrayIter(np.ones((8, 4)), np.ones(7), 4)  #!
""",
        "(7,)",
        "8 samples",
    ),
    "csv_shape": Wrong(
        """\
import flowmx as mx
open("d.csv", "w").write("1,2,3\\n4,5\\n")
it = mx.io.CSVIter(data_csv="d.csv", data_shape=(3,), batch_size=1)  #!
for b in it: print(b.data[0].asnumpy())  #!
""",
        "from 3 to 2",
        "row 2",
    ),
    "rec_missing": Wrong(
        """\
import flowmx as mx
it = mx.io.ImageRecordIter(path_imgrec="no.rec", data_shape=(3, 8, 8), batch_size=2)  #!
""",
        "no.rec",
        "No such file",
    ),
    "image_bad": Wrong(
        """\
import flowmx as mx
open("i.jpg", "wb").write(b"notanimage")
print(mx.image.imread("i.jpg").shape)  #!
""",
        "i.jpg",
        "decoded as an image",
    ),
    "kv_key": Wrong(
        """\
import flowmx as mx
kv = mx.kv.create("local")
kv.push("w", mx.nd.ones((2,)))  #!
mx.nd.waitall()
""",
        "'w'",
        "init()",
    ),
    "kv_shape": Wrong(
        """\
import flowmx as mx
kv = mx.kv.create("local")
kv.init("w", mx.nd.ones((2,)))
kv.push("w", mx.nd.ones((3,)))  #!
mx.nd.waitall()
""",
        "(3,)",
        "(2,)",
    ),
    "kv_init_twice": Wrong(
        """\
import flowmx as mx
kv = mx.kv.create("local")
kv.init("w", mx.nd.ones((2,)))
kv.init("w", mx.nd.ones((2,)))  #!
""",
        "'w'",
        "each key once",
    ),
    "kv_dist_alone": Wrong(
        """\
import flowmx as mx
kv = mx.kv.create("dist_sync")  #!
""",
        "no job",
        "flowmx launch",
    ),
    "async_run_nested": Wrong(
        """\
import asyncio, flowmx as mx
async def inner(): return 1
async def main():
    return mx.run(inner())  #!
asyncio.run(main())
""",
        "run(inner",
        "await inner",
    ),
    "async_coroutine_op": Wrong(
        """\
import flowmx as mx
async def main():
    mx.nd.ones((2, 3)) @ 3  #!
mx.run(main())
""",
        "int",
        "an NDArray",
    ),
    "push_no_var": Wrong(
        """\
import flowmx as mx
mx.engine.push(lambda: 1, reads=[3])  #!
mx.nd.waitall()
""",
        "3",
        "variables or arrays",
    ),
    "push_fails": Wrong(
        """\
import flowmx as mx
def boom():
    raise RuntimeError("disk is full")  #!
mx.engine.push(boom)
mx.nd.waitall()
""",
        "disk is full",
        "'boom'",
    ),
    "custom_shape": Wrong(
        """\
import flowmx as mx
@mx.operator.register("half")
class P(mx.operator.CustomOpProp):
    def list_arguments(self): return ["data"]
    def list_outputs(self): return ["output"]
    def infer_shape(self, s): return [s[0]], [(3,)], []
    def create_operator(self, c, s, d): return O()
class O(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * .5)  #!
print(mx.nd.Custom(mx.nd.ones((2,)), op_type="half").asnumpy())
""",
        "(2,)",
        "(3,)",
    ),
    "custom_unknown": Wrong(
        """\
import flowmx as mx
print(mx.nd.Custom(mx.nd.ones((2,)), op_type="nothere"))  #!
""",
        "'nothere'",
        "mx.operator.register",
    ),
    "setting_bad": Wrong(
        """\
import os
os.environ["FLOWMX_CPU_WORKER_NTHREADS"] = "many"
import flowmx as mx
print(mx.nd.ones((2,)).asnumpy())  #!
""",
        "'many'",
        "an int of at least 1",
    ),
    "init_unknown": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.Dense(2)
n.initialize("xaver")  #!
""",
        "'xaver'",
        "'xavier'",
    ),
    "lr_sched": Wrong(
        """\
import flowmx as mx
s = mx.lr_scheduler.MultiFactorScheduler(step=[10, 5], factor=0.1)  #!
""",
        "[10, 5]",
        "rising",
    ),
    "model_zoo": Wrong(
        """\
import flowmx as mx
n = mx.gluon.model_zoo.vision.get_model("resnet19_v1")  #!
""",
        "'resnet19_v1'",
        "resnet18_v1",
    ),
    "op_param": Wrong(
        """\
import flowmx as mx
mx.nd.Pooling(mx.nd.ones((1, 1, 4, 4)), kernel=(2, 2), pool_type="average")  #!
""",
        "'average'",
        "'avg'",
    ),
    "op_name": Wrong(
        """\
import flowmx as mx
mx.nd.softmaxx(mx.nd.ones((2,)))  #!
""",
        "'softmaxx'",
        "'softmax'",
    ),
    "conv_kernel": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.Conv2D(4, kernel_size=7); n.initialize()
print(n(mx.nd.ones((1, 3, 5, 5))).asnumpy())  #!
""",
        "(1, 3, 5, 5)",
        "kernel (7, 7)",
    ),
    "onnx_missing_shape": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.HybridSequential(); n.add(mx.gluon.nn.Dense(2)); n.initialize(); n.hybridize()
n(mx.nd.ones((1, 3))); n.export("z")
mx.onnx.export_model("z-symbol.json", "z-0000.params", [(1, 3), (2, 2)], onnx_file_path="z.onnx")  #!
""",
        "2 entries",
        "data",
    ),
    "onnx_bad_file": Wrong(
        """\
import flowmx as mx
open("bad.onnx", "w").write("x")
mx.onnx.import_model("bad.onnx")  #!
""",
        "bad.onnx",
        "is not a valid ONNX model",
    ),
    "clip_args": Wrong(
        """\
import flowmx as mx
print(mx.nd.clip(mx.nd.ones((2,)), 0))  #!
""",
        "a_max",
        "a float",
    ),
    "nd_save_bad": Wrong(
        """\
import flowmx as mx
mx.nd.save("q.params", [1, 2])  #!
""",
        "int",
        "NDArrays",
    ),
    "estimator_loss": Wrong(
        """\
import flowmx as mx
from flowmx.gluon.contrib.estimator import Estimator
n = mx.gluon.nn.Dense(2); n.initialize()
Estimator(n, loss="softmax")  #!
""",
        "'softmax'",
        "mx.gluon.loss.Loss",
    ),
    "serve_predictor_shape": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.HybridSequential(); n.add(mx.gluon.nn.Dense(2, in_units=4)); n.initialize(); n.hybridize()
n(mx.nd.ones((1, 4)))
async def main():
    async with mx.serve.Predictor(n, {"data": (4,)}) as p:
        print(await p(mx.nd.ones((3, 5))))  #!
mx.run(main())
""",
        "(3, 5)",
        "(rows, 4)",
    ),
    "monitor_pattern": Wrong(
        """\
import flowmx as mx
m = mx.mon.Monitor(1, pattern="(")  #!
""",
        "'('",
        "a regular expression",
    ),
    "random_shape": Wrong(
        """\
import flowmx as mx
print(mx.nd.random.uniform(0, 1, shape=(2, -3)))  #!
""",
        "(2, -3)",
        "at least 0",
    ),
    "where_shapes": Wrong(
        """\
import flowmx as mx
print(mx.nd.where(mx.nd.ones((3,)), mx.nd.ones((2, 2)), mx.nd.ones((2, 2))).asnumpy())  #!
""",
        "(3,)",
        "(2, 2)",
    ),
    "topk_k": Wrong(
        """\
import flowmx as mx
print(mx.nd.topk(mx.nd.ones((3,)), k=5).asnumpy())  #!
""",
        "5",
        "at most 3",
    ),
    "one_neg_axis": Wrong(
        """\
import flowmx as mx
print(mx.nd.sum(mx.nd.ones((3, 2)), axis=4).asnumpy())  #!
""",
        "4",
        "-2 to 1",
    ),
    "context_str": Wrong(
        """\
import flowmx as mx
print(mx.nd.ones((3, 2), ctx="cuda:0"))  #!
""",
        "'cuda:0'",
        "'gpu'",
    ),
    "params_set_shape": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.Dense(2, in_units=3); n.initialize()
n.weight.set_data(mx.nd.ones((3, 2)))  #!
""",
        "(3, 2)",
        "(2, 3)",
    ),
    "cast_then_use": Wrong(
        """\
import flowmx as mx
n = mx.gluon.nn.Dense(2, in_units=3); n.initialize(); n.cast("float16")
print(n(mx.nd.ones((1, 3))).asnumpy())  #!
""",
        "float16",
        "float32",
    ),
    "not_initialized": Wrong(
        """\
import flowmx as mx
net = mx.gluon.nn.Dense(2)
print(net(mx.nd.ones((1, 3))))  #!
""",
        "dense0_weight",
        "initialize()",
    ),
}
