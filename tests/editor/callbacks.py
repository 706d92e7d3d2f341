"""Callbacks of a training run."""

import numpy as np

import flowmx as mx

names: list[int] = []


def after_batch(param: mx.model.BatchEndParam) -> None:
    names.append(param.nbatch)


net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
data = mx.io.NDArrayIter(np.ones((8, 2), "float32"), np.zeros(8, "float32"), batch_size=4)
mod = mx.mod.Module(net)
mod.fit(data, num_epoch=1, batch_end_callback=[after_batch, mx.callback.Speedometer(4, 50)])
assert names == [0, 1]
