"""Predictors with hooks, several models, an application; the estimator and its handlers."""

import asyncio

import numpy as np

import flowmx as mx
from flowmx import gluon
from flowmx.gluon.contrib.estimator import (
    BatchEnd,
    CheckpointHandler,
    EarlyStoppingHandler,
    Estimator,
    LoggingHandler,
    TrainBegin,
)  # fmt: skip
from flowmx.gluon.data.vision import transforms
from flowmx.ndarray import NDArray


class Counter(TrainBegin, BatchEnd):
    """A custom handler."""

    def __init__(self) -> None:
        self.batches = 0

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        self.batches = 0

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> bool:
        self.batches += 1
        return self.batches == 3


async def encode(result: object) -> dict[str, object]:
    return {"scores": result}


def decode(body: object, content_type: str) -> NDArray:
    return mx.nd.ones((2,)) if isinstance(body, bytes) else mx.nd.zeros((2,))


async def serve() -> None:
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize()
    predictor = mx.serve.Predictor(net, shape=(2,), max_batch=4, decode=decode, encode=encode, max_latency=0.001)
    async with predictor:
        row = await predictor([1.0, 2.0])
        rows = await predictor(np.ones((5, 2)))
        answers = await asyncio.gather(*(predictor(mx.nd.ones((2,))) for _ in range(2)))
        try:
            await predictor([1.0])
        except mx.serve.InvalidInput as error:
            print(error)
        await predictor.swap(net)
        assert predictor.version == 1 and row.shape == (3,) and rows.shape == (5, 3) and len(answers) == 2
        application = mx.serve.app({"dense": predictor})
        assert mx.serve.asgi(predictor) is not None and application.router is not None
        for description in predictor.inputs.describe():
            assert description["name"]


def estimate() -> None:
    rows, labels = np.ones((8, 2), "float32"), np.zeros(8, "float32")
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(rows, labels), batch_size=2)
    net = gluon.nn.Dense(2, in_units=2)
    net.initialize()
    accuracy = mx.metric.Accuracy()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = Estimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), train_metrics=accuracy, trainer=trainer)
    counter = Counter()
    stopping = EarlyStoppingHandler(monitor=accuracy, patience=2)
    estimator.fit(loader, epochs=1, event_handlers=[counter, stopping, LoggingHandler(metrics=[accuracy])])
    assert counter.batches == 3 and estimator.train_metrics[0].get()[0].endswith("accuracy")
    assert CheckpointHandler.__name__ and estimator.trainer.learning_rate == 0.1
    mixed = transforms.MixUp(num_classes=2)
    assert mixed(mx.nd.ones((2, 3, 4, 4)), mx.nd.array([0, 1]))[1].shape == (2, 2)


async def operators() -> None:
    engine = mx.engine
    variable = mx.nd.ones((2,))
    await variable
    assert float(await variable.sum()) == 2.0
    await engine.wait_for_capacity()
    with engine.bulk(4):
        total = sum([variable * number for number in range(3)], mx.nd.zeros((2,)))
    first, second = await asyncio.gather(total, variable)
    assert first.sum().item() == 6.0 and second.item is not None


mx.run(serve())
estimate()
mx.run(operators())
