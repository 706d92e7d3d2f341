"""Schedules, clipping, averages, metrics, samplers, mixed images and progress, in one typed program."""

import numpy as np

import flowmx as mx
from flowmx import autograd, gluon, nd
from flowmx.gluon.contrib.estimator import Estimator, PlateauHandler, ProgressBarHandler
from flowmx.gluon.data.vision import transforms

rows = np.random.default_rng(0).random((32, 4), dtype=np.float32)
labels = (rows[:, 0] > 0.5).astype(np.float32)
train, held_out = gluon.data.random_split(gluon.data.ArrayDataset(rows, labels), [0.75, 0.25], seed=1)
sampler = gluon.data.WeightedRandomSampler(np.ones(len(train)), num_samples=16)
loader = gluon.data.DataLoader(train, batch_size=8, sampler=sampler)
bounds: list[int] = gluon.data.BucketSampler([3, 1, 2], batch_size=2, buckets=2).bounds

net = gluon.nn.Dense(2, in_units=4)
net.initialize()
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
schedule = mx.lr_scheduler.ReduceLROnPlateau(patience=1, base_lr=0.1)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule}, max_grad_norm=1.0, accumulate=2)
average = gluon.ExponentialMovingAverage(net, decay=0.9)
finder = gluon.LRFinder(net, loss_of, trainer)
finder.run(loader, num_steps=10)
rates: list[float] = finder.learning_rates

metric = mx.metric.Precision(average="macro")
for data, label in (bar := mx.progress.track(loader, "epoch 1")):
    with autograd.record():
        prediction = net(data)
        loss = loss_of(prediction, label)
    loss.backward()
    trainer.step(len(data))
    average.update()
    metric.update(label, prediction)
    bar.show(loss=loss, metric=metric)
trainer.flush()
with average.average_parameters():
    rate: float = schedule.step(float(loss_of(net(nd.array(rows)), nd.array(labels)).mean().asscalar()))
assert trainer.learning_rate == rate and len(rates) == 10 and bounds == [1, 3]

estimator = Estimator(net, loss_of, trainer=trainer, context=mx.cpu())
handlers = [ProgressBarHandler(), PlateauHandler(schedule, estimator.val_metrics[-1])]
estimator.fit(loader, gluon.data.DataLoader(held_out, 8), epochs=1, event_handlers=handlers)

confusion, auc = mx.metric.ConfusionMatrix(), mx.metric.AUC()
for each in (confusion, auc):
    each.update(nd.array([0, 1]), nd.array([[0.9, 0.1], [0.2, 0.8]]))
assert confusion.matrix.tolist() == [[1, 0], [0, 1]] and auc.get()[1] == 1.0

images, probabilities = transforms.MixUp(num_classes=2)(nd.ones((2, 3, 8, 8)), nd.array([0, 1]))
assert probabilities.shape == (2, 2)
assert transforms.RandAugment()(nd.zeros((8, 8, 3), dtype="uint8")).shape == (8, 8, 3)
