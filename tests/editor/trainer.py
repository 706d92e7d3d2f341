"""A Gluon training loop with a trainer and a loss."""

from flowmx import autograd, gluon, init, nd

net = gluon.nn.HybridSequential()
with net.name_scope():
    net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dropout(0.1), gluon.nn.Dense(2))
net.initialize(init.Xavier())
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
x, label = nd.random.normal(shape=(16, 4)), nd.array([0, 1] * 8)
for _ in range(3):
    with autograd.record():
        loss = loss_of(net(x), label)
    loss.backward()
    trainer.step(16)
    assert loss.shape == (16,)
assert trainer.learning_rate == 0.01
trainer.set_learning_rate(0.1)
