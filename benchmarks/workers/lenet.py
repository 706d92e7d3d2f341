"""A symbolic LeNet's training step: forward, backward and an SGD update of every parameter."""

import json
import sys
import time

import numpy as np

if sys.argv[1] == "mxnet":
    import mxnet as mx
else:
    import flowmx as mx

BATCH = int(sys.argv[2]) if len(sys.argv) > 2 else 64


def network():
    data = mx.sym.Variable("data")
    conv1 = mx.sym.Convolution(data=data, kernel=(5, 5), num_filter=20, name="conv1")
    tanh1 = mx.sym.Activation(data=conv1, act_type="tanh")
    pool1 = mx.sym.Pooling(data=tanh1, pool_type="max", kernel=(2, 2), stride=(2, 2))
    conv2 = mx.sym.Convolution(data=pool1, kernel=(5, 5), num_filter=50, name="conv2")
    tanh2 = mx.sym.Activation(data=conv2, act_type="tanh")
    pool2 = mx.sym.Pooling(data=tanh2, pool_type="max", kernel=(2, 2), stride=(2, 2))
    fc1 = mx.sym.FullyConnected(data=mx.sym.Flatten(data=pool2), num_hidden=500, name="fc1")
    tanh3 = mx.sym.Activation(data=fc1, act_type="tanh")
    fc2 = mx.sym.FullyConnected(data=tanh3, num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(data=fc2, name="softmax")


def bound(batch=BATCH):
    inputs = {"data": (batch, 1, 28, 28), "softmax_label": (batch,)}
    net = network()
    requests = {name: "null" if name in inputs else "write" for name in net.list_arguments()}
    executor = net.simple_bind(mx.cpu(), grad_req=requests, **inputs)
    random = np.random.RandomState(0)
    for name, array in executor.arg_dict.items():
        array[:] = random.randint(0, 10, array.shape) if "label" in name else random.randn(*array.shape) * 0.1
    return executor


def step(executor):
    executor.forward(is_train=True)
    executor.backward()
    for name, gradient in executor.grad_dict.items():
        if gradient is not None:
            weight = executor.arg_dict[name]
            mx.nd.sgd_update(weight, gradient, lr=0.01, wd=1e-4, out=weight)


def main():
    executor = bound()
    for _ in range(10):
        step(executor)
    mx.nd.waitall()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(20):
            step(executor)
        mx.nd.waitall()
        times.append((time.perf_counter() - start) / 20 * 1e3)
    print(json.dumps({"step_ms": sorted(times)[2]}))


if __name__ == "__main__":
    main()
