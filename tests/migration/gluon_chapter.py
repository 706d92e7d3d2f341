# ruff: noqa (as its users write it)
"""Softmax regression, then a perceptron with dropout, on labelled points, as in a Gluon course."""

import random

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import loss as gloss
from mxnet.gluon import nn

mx.random.seed(42)
np.random.seed(42)
random.seed(42)

# -- from scratch ----------------------------------------------------------------------------------------------

num_inputs, num_examples = 2, 200
true_w, true_b = [2, -3.4], 4.2
features = nd.random.normal(scale=1, shape=(num_examples, num_inputs))
labels = true_w[0] * features[:, 0] + true_w[1] * features[:, 1] + true_b
labels += nd.random.normal(scale=0.01, shape=labels.shape)


def batches(batch_size, features, labels):
    indices = list(range(len(features)))
    random.shuffle(indices)
    for i in range(0, len(features), batch_size):
        j = nd.array(indices[i : min(i + batch_size, len(features))])
        yield features.take(j), labels.take(j)


def linreg(X, w, b):
    return nd.dot(X, w) + b


def squared_loss(y_hat, y):
    return (y_hat - y.reshape(y_hat.shape)) ** 2 / 2


def sgd(params, lr, batch_size):
    for param in params:
        param[:] = param - lr * param.grad / batch_size


w, b = nd.random.normal(scale=0.01, shape=(num_inputs, 1)), nd.zeros(shape=(1,))
for param in (w, b):
    param.attach_grad()
for epoch in range(5):
    for X, y in batches(10, features, labels):
        with autograd.record():
            l = squared_loss(linreg(X, w, b), y)
        l.backward()
        sgd([w, b], 0.1, 10)
print("regression", np.round(w.asnumpy().ravel(), 1).tolist(), np.round(b.asnumpy(), 1).tolist())

# -- with Gluon ------------------------------------------------------------------------------------------------

angles = np.random.uniform(0, 2 * np.pi, 400)
radius = np.repeat([1.0, 2.0], 200) + np.random.normal(0, 0.15, 400)
points = nd.array(np.stack([radius * np.cos(angles), radius * np.sin(angles)], 1))
classes = nd.array(np.repeat([0, 1], 200))
train_iter = gluon.data.DataLoader(gluon.data.ArrayDataset(points, classes), batch_size=20, shuffle=True)

net = nn.HybridSequential()
net.add(nn.Dense(32, activation="relu"), nn.BatchNorm(), nn.Dropout(0.1), nn.Dense(2))
net.initialize(init.Normal(sigma=0.3))
net.hybridize()
loss = gloss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})


def evaluate_accuracy(data_iter, net):
    acc_sum, n = nd.array([0]), 0
    for X, y in data_iter:
        acc_sum += (net(X).argmax(axis=1) == y).sum()
        n += y.size
    return acc_sum.asscalar() / n


for epoch in range(8):
    train_l_sum = 0.0
    for X, y in train_iter:
        with autograd.record():
            l = loss(net(X), y).sum()
        l.backward()
        trainer.step(X.shape[0])
        train_l_sum += l.asscalar()
print("accuracy", evaluate_accuracy(train_iter, net))


class CenteredLayer(nn.Block):
    def forward(self, x):
        return x - x.mean()


custom = nn.Sequential()
custom.add(nn.Dense(8), CenteredLayer())
custom.initialize()
print("centred", abs(custom(nd.random.uniform(shape=(4, 8))).mean().asscalar()) < 1e-6)
