"""Train a symbol with a module."""

import numpy as np

import flowmx as mx

data = mx.sym.Variable("data")
net = mx.sym.FullyConnected(data, num_hidden=2, name="fc")
net = mx.sym.SoftmaxOutput(net, name="softmax")
x = np.random.RandomState(0).randn(64, 2).astype("float32")
train = mx.io.NDArrayIter(x, (x[:, 0] > 0).astype("float32"), batch_size=16)
mod = mx.mod.Module(net, context=mx.cpu())
mod.fit(train, optimizer="sgd", optimizer_params={"learning_rate": 0.5}, num_epoch=5, eval_metric="acc")
score = mod.score(train, "acc")
arg_params, aux_params = mod.get_params()
assert arg_params["fc_weight"].shape == (2, 2) and not aux_params
