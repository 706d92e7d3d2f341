"""Milliseconds of further small imperative training steps, as a check on those of ``small_steps.py``.

    python other_steps.py SYSTEM STEP

A variational autoencoder, Q-learning with a target network, a convolutional network on sequences with BatchNorm, an
LSTM with attention written in plain functions with manual updates, and a siamese network with a contrastive loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from small_steps import (
    BATCH,
    HIDDEN,
    Step,
    integers,
    normal,
    run,
    trained,
)  # in this folder

LENGTH, INPUT = 10, 32

# -- MXNet's interface: flowmx and MXNet run the same code -------------------------------------------------


def vae(mx: Any) -> Step:
    nn = mx.gluon.nn
    encoder, decoder = nn.Sequential(), nn.Sequential()
    encoder.add(nn.Dense(128, activation="relu"), nn.Dense(2 * 8))
    decoder.add(nn.Dense(128, activation="relu"), nn.Dense(64))
    net = nn.Sequential()
    net.add(encoder, decoder)
    data, bce = mx.nd.array(np.abs(np.tanh(normal(BATCH, 64)))), mx.gluon.loss.SigmoidBCELoss()

    def compute_loss() -> Any:
        mean, log = mx.nd.split(encoder(data), num_outputs=2, axis=1)
        latent = mean + mx.nd.exp(0.5 * log) * mx.nd.random.normal(shape=(BATCH, 8))
        divergence = -0.5 * (1 + log - mean * mean - mx.nd.exp(log)).sum(axis=1)
        return (64 * bce(decoder(latent), data) + divergence).mean()

    return trained(mx, net, "adam", compute_loss, 1)


def dqn(mx: Any) -> Step:
    nn = mx.gluon.nn

    def network() -> Any:
        net = nn.Sequential()
        net.add(nn.Dense(64, activation="relu", in_units=8), nn.Dense(64, activation="relu", in_units=64))
        net.add(nn.Dense(4, in_units=64))
        return net

    net, target, huber = network(), network(), mx.gluon.loss.HuberLoss()
    target.initialize(mx.init.Xavier())
    state, action, reward, following, done = (
        mx.nd.array(each)
        for each in (normal(64, 8), integers(4, 64), normal(64), normal(64, 8), integers(2, 64))
    )  # fmt: skip
    inner = trained(
        mx, net, "adam",
        lambda: huber(
            mx.nd.pick(net(state), action), (reward + 0.99 * (1 - done) * target(following).max(axis=1)).detach()
        ),
        64,
    )  # fmt: skip

    def step() -> None:
        inner()
        for slow, other in zip(target.collect_params().values(), net.collect_params().values(), strict=True):
            slow.set_data(0.99 * slow.data() + 0.01 * other.data())
        mx.nd.waitall()

    return step


def sequence_convnet(mx: Any) -> Step:
    nn = mx.gluon.nn
    net = nn.Sequential()
    for channels in (16, 32):
        net.add(nn.Conv1D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool1D(2))
    net.add(nn.GlobalAvgPool1D(), nn.Dense(5))
    data, label = mx.nd.array(normal(16, 4, 64)), mx.nd.array(integers(5, 16))
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    return trained(mx, net, "sgd", lambda: cross_entropy(net(data), label), 16)


def by_hand(mx: Any) -> Step:
    nd = mx.nd
    weights = [
        nd.array(0.1 * normal(*shape))
        for shape in ((4 * HIDDEN, INPUT), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,), (HIDDEN, HIDDEN), (1, HIDDEN))
    ]
    for each in weights:
        each.attach_grad()
    data, target = nd.array(normal(LENGTH, 16, INPUT)), nd.array(normal(16, 1))

    def step() -> None:
        into, across, bias, query, out = weights
        with mx.autograd.record():
            hidden = cell = nd.zeros((16, HIDDEN))
            states = []
            for each in range(LENGTH):
                gates = nd.dot(data[each], into, transpose_b=True) + nd.dot(hidden, across, transpose_b=True) + bias
                i, f, g, o = nd.split(gates, num_outputs=4, axis=1)
                cell = nd.sigmoid(f) * cell + nd.sigmoid(i) * nd.tanh(g)
                hidden = nd.sigmoid(o) * nd.tanh(cell)
                states.append(hidden)
            memory = nd.stack(*states, axis=1)
            scores = (memory * nd.dot(hidden, query).expand_dims(1)).sum(axis=2)
            mixed = (nd.softmax(scores).expand_dims(2) * memory).sum(axis=1)
            loss = ((nd.dot(mixed, out, transpose_b=True) - target) ** 2).mean()
        loss.backward()
        for each in weights:
            each -= 0.01 * each.grad
        nd.waitall()

    return step


def siamese(mx: Any) -> Step:
    nn = mx.gluon.nn
    net = nn.Sequential()
    net.add(nn.Dense(64, activation="tanh"), nn.Dense(16))
    one, other, same = mx.nd.array(normal(BATCH, 20)), mx.nd.array(normal(BATCH, 20)), mx.nd.array(integers(2, BATCH))

    def compute_loss() -> Any:
        distance = ((net(one) - net(other)) ** 2).sum(axis=1).sqrt()
        apart = mx.nd.maximum(1 - distance, 0)
        return (same * distance**2 + (1 - same) * apart**2).mean()

    return trained(mx, net, "adam", compute_loss, 1)


MXNET_LIKE = {step.__name__: step for step in (vae, dqn, sequence_convnet, by_hand, siamese)}


# -- PyTorch -----------------------------------------------------------------------------------------------


def torch_steps(torch: Any) -> dict[str, Callable[[], Step]]:
    """Return the same steps by ``torch.nn``."""
    nn, F = torch.nn, torch.nn.functional
    linear, relu, tensor = nn.Linear, nn.ReLU, torch.from_numpy

    def trained(net: Any, optimizer: str, compute_loss: Callable[[], Any]) -> Step:
        updates = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](net.parameters(), lr=0.01)

        def step() -> None:
            updates.zero_grad()
            compute_loss().backward()
            updates.step()

        return step

    def vae() -> Step:
        encoder = nn.Sequential(linear(64, 128), relu(), linear(128, 16))
        decoder = nn.Sequential(linear(8, 128), relu(), linear(128, 64))
        data = tensor(np.abs(np.tanh(normal(BATCH, 64))))

        def compute_loss() -> Any:
            mean, log = encoder(data).chunk(2, 1)
            latent = mean + torch.exp(0.5 * log) * torch.randn(BATCH, 8)
            divergence = -0.5 * (1 + log - mean * mean - torch.exp(log)).sum(1)
            bce = F.binary_cross_entropy_with_logits(decoder(latent), data, reduction="none").mean(1)
            return (64 * bce + divergence).mean()

        return trained(nn.ModuleList([encoder, decoder]), "adam", compute_loss)

    def dqn() -> Step:
        net, target = (nn.Sequential(linear(8, 64), relu(), linear(64, 64), relu(), linear(64, 4)) for _ in range(2))
        state, action, reward, following, done = map(
            tensor, (normal(64, 8), integers(4, 64), normal(64), normal(64, 8), integers(2, 64))
        )

        def compute_loss() -> Any:
            with torch.no_grad():
                aim = reward + 0.99 * (1 - done) * target(following).max(1).values
            return F.smooth_l1_loss(net(state).gather(1, action[:, None])[:, 0], aim)

        inner = trained(net, "adam", compute_loss)

        def step() -> None:
            inner()
            with torch.no_grad():
                for slow, other in zip(target.parameters(), net.parameters(), strict=True):
                    slow.copy_(0.99 * slow + 0.01 * other)

        return step

    def sequence_convnet() -> Step:
        net = nn.Sequential(
            nn.Conv1d(4, 16, 3, padding=1), nn.BatchNorm1d(16), relu(), nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 3, padding=1), nn.BatchNorm1d(32), relu(), nn.MaxPool1d(2),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), linear(32, 5),
        )  # fmt: skip
        data, label = tensor(normal(16, 4, 64)), tensor(integers(5, 16))
        return trained(net, "sgd", lambda: F.cross_entropy(net(data), label))

    def by_hand() -> Step:
        weights = [
            tensor(0.1 * normal(*shape)).requires_grad_()
            for shape in ((4 * HIDDEN, INPUT), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,), (HIDDEN, HIDDEN), (1, HIDDEN))
        ]
        data, target = tensor(normal(LENGTH, 16, INPUT)), tensor(normal(16, 1))

        def step() -> None:
            into, across, bias, query, out = weights
            for each in weights:
                each.grad = None
            hidden = cell = torch.zeros(16, HIDDEN)
            states = []
            for each in range(LENGTH):
                gates = data[each] @ into.T + hidden @ across.T + bias
                i, f, g, o = gates.chunk(4, 1)
                cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
                hidden = torch.sigmoid(o) * torch.tanh(cell)
                states.append(hidden)
            memory = torch.stack(states, 1)
            scores = (memory * (hidden @ query).unsqueeze(1)).sum(2)
            mixed = (torch.softmax(scores, 1).unsqueeze(2) * memory).sum(1)
            ((mixed @ out.T - target) ** 2).mean().backward()
            with torch.no_grad():
                for each in weights:
                    each -= 0.01 * each.grad

        return step

    def siamese() -> Step:
        net = nn.Sequential(linear(20, 64), nn.Tanh(), linear(64, 16))
        one, other, same = tensor(normal(BATCH, 20)), tensor(normal(BATCH, 20)), tensor(integers(2, BATCH))

        def compute_loss() -> Any:
            distance = ((net(one) - net(other)) ** 2).sum(1).sqrt()
            apart = torch.clamp(1 - distance, min=0)
            return (same * distance**2 + (1 - same) * apart**2).mean()

        return trained(net, "adam", compute_loss)

    return {step.__name__: step for step in (vae, dqn, sequence_convnet, by_hand, siamese)}


if __name__ == "__main__":
    run(MXNET_LIKE, torch_steps)
