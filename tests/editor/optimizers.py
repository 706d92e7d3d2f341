"""Optimizers and schedules."""

import flowmx as mx

schedule = mx.lr_scheduler.FactorScheduler(step=10, factor=0.5, base_lr=1.0)
assert schedule(1) == 1.0
cosine = mx.lr_scheduler.CosineScheduler(max_update=100, base_lr=0.1, warmup_steps=5)
optimizer = mx.optimizer.SGD(momentum=0.9, wd=1e-4, lr_scheduler=cosine)
weight, gradient = mx.nd.ones((3,)), mx.nd.ones((3,))
state = optimizer.create_state(0, weight)
optimizer.update(0, weight, gradient, state)
assert optimizer.learning_rate < 0.1
named = mx.optimizer.create("adam", learning_rate=0.1)
updater = mx.optimizer.get_updater(named)
updater(0, gradient, weight)
assert weight.asnumpy().max() < 1
