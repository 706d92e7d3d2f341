"""d2lzh 1.0: the training functions of the Chinese edition of "Dive into Deep Learning"."""

import mxnet as mx
import numpy as np
from filling import fill, flat, values
from mxnet import gluon


def train():
    """A network, trained by the book's loop on random pictures."""
    import d2lzh as d2l

    net = gluon.nn.Sequential()
    net.add(gluon.nn.Conv2D(4, 3, activation="relu"), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(3))
    net.initialize(mx.init.Zero())
    x, y = mx.nd.array(values("x", (24, 1, 8, 8))), mx.nd.array(np.arange(24) % 3)
    fill(net, [x])
    batches = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), 8)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    d2l.train(batches, batches, net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, mx.cpu(), 2)
    return flat([p.data() for p in net.collect_params().values()])


def from_scratch():
    """Linear regression from nothing but arrays."""
    import d2lzh as d2l

    x = mx.nd.array(values("x", (40, 2)))
    y = mx.nd.dot(x, mx.nd.array([[2.0], [-3.4]])) + 4.2
    w, b = mx.nd.array(values("w", (2, 1), 0.01)), mx.nd.zeros((1,))
    for each in (w, b):
        each.attach_grad()
    for _ in range(3):
        for start in range(0, 40, 10):
            with mx.autograd.record():
                loss = d2l.squared_loss(d2l.linreg(x[start : start + 10], w, b), y[start : start + 10])
            loss.backward()
            d2l.sgd([w, b], 0.1, 10)
    return flat([w, b])


def language():
    """A recurrent network's step, its clipped gradients, and the book's helpers for boxes and residuals."""
    import d2lzh as d2l

    rnn = gluon.rnn.RNN(6)
    model = d2l.RNNModel(rnn, 9)
    model.initialize(mx.init.Zero())
    x = mx.nd.array(np.arange(8).reshape(2, 4))
    state = model.begin_state(batch_size=2)
    model(x, state)
    fill(model, (x, state))
    with mx.autograd.record():
        out, state = model(x, model.begin_state(batch_size=2))
        loss = (out**2).sum()
    loss.backward()
    params = [p.data() for p in model.collect_params().values()]
    d2l.grad_clipping(params, 0.1, mx.cpu())
    residual = d2l.Residual(4, use_1x1conv=True, strides=2)
    residual.initialize(mx.init.Zero())
    picture = mx.nd.array(values("picture", (1, 4, 8, 8)))
    fill(residual, [picture])
    return flat(
        [out, state, [p.grad for p in params], residual(picture), d2l.corr2d(picture[0, 0], mx.nd.ones((2, 2)))]
    )


CASES = {"train": train, "from scratch": from_scratch, "language": language}
