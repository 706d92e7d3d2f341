"""Everything that newcomers asked for, without an ``Any``: layers, data, training, metrics, NumPy, services."""

import asyncio
import tempfile
from collections.abc import AsyncIterable

import numpy as np

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.gluon import nn
from flowmx.gluon.data.vision import transforms
from flowmx.ndarray import NDArray


class Attention(gluon.Block):
    """A custom block, whose calls have the types of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(8, 2)
        self.norm = nn.RMSNorm()
        self.gate = nn.SiLU()

    def forward(self, x: NDArray, scale: float = 1.0) -> tuple[NDArray, float]:
        return self.gate(self.norm(x + self.attention(x) * scale)), scale


def layers() -> None:
    block = Attention()
    block.initialize()
    y, scale = block(mx.nd.ones((2, 3, 8)), 0.5)
    assert y.shape == (2, 3, 8) and scale == 0.5
    encoder = nn.TransformerEncoder(num_layers=1, units=8, num_heads=2, causal=True, rotary=True)
    encoder.initialize()
    token, cache = encoder(mx.nd.ones((1, 1, 8)), cache=encoder.begin_cache(batch_size=1, max_length=4))
    assert token.shape == (1, 1, 8) and len(cache) == 1
    lstm = gluon.rnn.LSTM(4)
    lstm.initialize()
    state = lstm.begin_state(batch_size=1)
    output, state = lstm(mx.nd.ones((3, 1, 2)), state)
    assert output.shape == (3, 1, 4) and state[0].shape == (1, 1, 4)
    resnet = gluon.model_zoo.vision.resnet18_v1(classes=2, thumbnail=True)
    resnet.initialize()
    assert resnet(mx.nd.ones((1, 3, 8, 8))).shape == (1, 2)
    assert resnet.features[0](mx.nd.ones((1, 3, 8, 8))) is not None


def indexing() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=2), nn.Dropout(0.1), nn.Dense(1, in_units=4))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    first, rest = net[0], net[1:]
    assert len(rest) == 2 and first.weight.data().shape == (4, 2)
    assert [name for name, parameter in net.collect_params().items() if parameter.shape == (4,)]
    names = [layer.name for layer in net]
    assert len(names) == 3


def numpy_arrays() -> None:
    x = mx.np.ones((2, 3))
    x += 1
    y = mx.np.concatenate([x, x @ x.T @ x]).sum(axis=0, keepdims=True)
    assert y.mean().item() > 0 and (-y == y).shape == (1, 3) and mx.np.pi > 3
    left, right = mx.np.split(mx.np.arange(6), 2)
    assert (left + right)[0].item() == 3.0
    u, s, v = mx.np.linalg.svd(x)
    assert u.shape == (2, 2) and s.shape == (2,) and v.shape == (2, 3)
    assert mx.npx.softmax(mx.np.random.normal(size=(2, 3))).T.shape == (3, 2)
    assert mx.np.unique(mx.np.array([1, 1, 2])).shape == (2,) and x.astype("float16").dtype.itemsize == 2


async def training() -> None:
    rows = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    data = gluon.data.ArrayDataset(rows, (rows[:, :1] > 0).astype("float32"))
    train, validation = gluon.data.random_split(data, [0.75, 0.25])
    sampler = gluon.data.WeightedRandomSampler([1.0] * len(train), num_samples=8)
    loader = gluon.data.DataLoader(train, batch_size=4, sampler=sampler)
    net, loss_of = nn.Dense(1, in_units=3), gluon.loss.SigmoidBinaryCrossEntropyLoss()
    net.initialize()
    schedule = mx.lr_scheduler.OneCycleScheduler(max_update=10, base_lr=0.1)
    assert schedule(3) > 0 and mx.lr_scheduler.ReduceLROnPlateau(base_lr=0.1).step(1.0) == 0.1
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule}, max_grad_norm=1.0, accumulate=2)
    average = gluon.ExponentialMovingAverage(net, decay=0.9)
    metric = mx.metric.create([mx.metric.AUC(), "mse"])
    for x, label in (bar := mx.progress.track(loader, "epoch 1")):
        with autograd.record():
            scores = net(x)
            loss = loss_of(scores, label).mean()
        loss.backward()
        trainer.step(len(x))
        average.update()
        metric.update([label], [scores])
        bar.show(loss=loss, rate=trainer.learning_rate)
    trainer.flush()
    assert trainer.grad_norm is not None and float(await trainer.grad_norm) >= 0
    assert [name for name, value in metric.get_name_value() if value >= 0]
    name, value = mx.metric.MSE().get()
    assert name == "mse" and not value >= 0
    with average.average_parameters():
        assert (await net(mx.nd.ones((1, 3)))).shape == (1, 1)
    finder = gluon.LRFinder(net, loss_of, trainer)
    await finder.run(loader, start_lr=1e-3, end_lr=1.0)
    assert finder.suggestion > 0 and await count(loader) == 2 and len(validation) == 4
    assert gluon.utils.clip_global_norm([mx.nd.ones((4,))], 1.0) == 2.0


async def count(batches: AsyncIterable[list[NDArray]]) -> int:
    size = 0
    async for x, _ in batches:
        size += len(x) // 4
    return size


def augmentation() -> None:
    change = transforms.Compose([transforms.RandAugment(num_ops=1, magnitude=3), transforms.ToTensor()])
    image = change(mx.nd.zeros((8, 8, 3), dtype="uint8"))
    images, labels = transforms.MixUp(num_classes=4)(mx.nd.stack(image, image), mx.nd.array([1, 3]))
    images, labels = transforms.CutMix()(images, labels)
    assert images.shape == (2, 3, 8, 8) and labels.shape == (2, 4)
    single: gluon.data.DataLoader[NDArray] = gluon.data.DataLoader(mx.nd.ones((4, 2)), batch_size=2)
    assert [batch.shape for batch in single] == [(2, 2), (2, 2)]


def checkpoints() -> None:
    net = nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with tempfile.TemporaryDirectory() as folder:
        net.save_parameters(f"{folder}/net.params")
        assert len(mx.nd.load(f"{folder}/net.params")) == 2
        run = mx.checkpoint.Run(folder, net=net, trainer=trainer)
        assert run is not None


def decode(body: object, content_type: str) -> list[float]:
    return [1.0, 2.0] if isinstance(body, bytes) else [0.0, 0.0]


async def serving() -> int:
    net = nn.Dense(3, in_units=2)
    net.initialize()
    async with mx.serve.Predictor(net, shape=(2,), max_batch=4, decode=decode) as predictor:
        one = await predictor([1, 2])
        several = await asyncio.gather(*(predictor([value, 0.0]) for value in (1.0, 2.0)))
        assert mx.serve.asgi(predictor) is not None
    return len(one) + len(several)


async def main() -> None:
    x = await mx.nd.ones((2, 2))
    x.attach_grad()
    with autograd.record():
        y = (x * x).sum()
    y.backward()
    assert x.grad is not None and (await x.grad)[0, 0].asscalar() == 2.0 and y.item() == 4.0
    await training()
    assert await serving() == 5


layers()
indexing()
numpy_arrays()
augmentation()
checkpoints()
mx.run(main())
