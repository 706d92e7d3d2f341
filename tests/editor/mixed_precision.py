"""Mixed precision."""

from flowmx import autograd, gluon, nd
from flowmx.contrib import amp

amp.init()
net = gluon.nn.Dense(2, in_units=3)
net.initialize()
net.cast("float16")
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "multi_precision": True})
amp.init_trainer(trainer)
with autograd.record():
    loss = net(nd.ones((4, 3), dtype="float16")).sum()
    with amp.scale_loss(loss, trainer) as scaled:
        autograd.backward(scaled)
trainer.step(4)
assert net.weight.data().dtype.__name__ == "float16"
