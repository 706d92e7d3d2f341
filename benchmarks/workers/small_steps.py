"""Milliseconds of small imperative training steps on the CPU, operator by operator: forward, backward and update.

    python small_steps.py SYSTEM STEP

Ten steps, for MXNet's interface (:data:`MXNET_LIKE`) and for PyTorch (:data:`PYTORCH`), by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from timing import best_ms, measure  # a module of this folder: the peers cannot import the package

Step = Callable[[], Any]
BATCH, STEPS, HIDDEN, WORDS = 32, 20, 64, 1000
HEADS = 4
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    """Return random float32 data."""
    return RNG.standard_normal(shape).astype("float32")


def integers(high: int, *shape: int) -> Any:
    """Return random int64 labels or words below ``high``."""
    return RNG.integers(0, high, shape)


# -- MXNet's interface: flowmx and MXNet run the same code -------------------------------------------------


def trained(mx: Any, net: Any, optimizer: str, compute_loss: Callable[[], Any], batch: int) -> Step:
    """Return a step that minimizes the loss that a function computes."""
    net.initialize(mx.init.Xavier())
    compute_loss().wait_to_read()
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})

    def step() -> None:
        with mx.autograd.record():
            loss = compute_loss()
        loss.backward()
        trainer.step(batch)
        mx.nd.waitall()

    return step


def classified(mx: Any, net: Any, data: Any, classes: int, optimizer: str = "sgd") -> Step:
    """Return a step of a classifier."""
    label = mx.nd.array(integers(classes, len(data)))
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    return trained(mx, net, optimizer, lambda: cross_entropy(net(data), label), len(data))


def mlp(mx: Any) -> Step:
    nn = mx.gluon.nn
    net = nn.Sequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10))
    return classified(mx, net, mx.nd.array(normal(BATCH, 64)), 10)


def gru(mx: Any) -> Step:
    cell, out = mx.gluon.rnn.GRUCell(HIDDEN, input_size=HIDDEN), mx.gluon.nn.Dense(10)
    data, label = mx.nd.array(normal(STEPS, BATCH, HIDDEN)), mx.nd.array(integers(10, BATCH))
    net = mx.gluon.nn.Sequential()
    net.add(cell, out)
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def compute_loss() -> Any:
        states = cell.begin_state(BATCH)
        for each in range(STEPS):
            hidden, states = cell(data[each], states)
        return cross_entropy(out(hidden), label)

    return trained(mx, net, "sgd", compute_loss, BATCH)


def transformer(mx: Any) -> Step:
    nn = mx.gluon.nn
    batch, tokens, width = 8, 32, HIDDEN
    query, key, value, project, up, down = (
        nn.Dense(units, flatten=False, in_units=inputs)
        for units, inputs in [*[(width, width)] * 4, (4 * width, width), (width, 4 * width)]
    )
    first, second, gelu = nn.LayerNorm(in_channels=width), nn.LayerNorm(in_channels=width), nn.GELU()
    net = nn.Sequential()
    net.add(query, key, value, project, up, down, first, second)
    data = mx.nd.array(normal(batch, tokens, width))

    def split_heads(x: Any) -> Any:
        return x.reshape((batch, tokens, HEADS, -1)).transpose((0, 2, 1, 3)).reshape((batch * HEADS, tokens, -1))

    def compute_loss() -> Any:
        hidden = first(data)
        q, k, v = (split_heads(layer(hidden)) for layer in (query, key, value))
        weights = mx.nd.softmax(mx.nd.batch_dot(q, k, transpose_b=True) * (width // HEADS) ** -0.5)
        mixed = mx.nd.batch_dot(weights, v).reshape((batch, HEADS, tokens, -1)).transpose((0, 2, 1, 3))
        x = data + project(mixed.reshape((batch, tokens, width)))
        return (x + down(gelu(up(second(x))))).square().mean()

    return trained(mx, net, "adam", compute_loss, 1)


def tiny(mx: Any) -> Step:
    x = mx.nd.array(normal(16))
    x.attach_grad()

    def step() -> None:
        with mx.autograd.record():
            y = x
            for _ in range(50):
                y = y * 0.9 + x
        y.backward()
        mx.nd.waitall()

    return step


def rows(mx: Any) -> Step:
    x, gamma, beta = (mx.nd.array(each) for each in (normal(100, 100), normal(100), normal(100)))
    for each in (x, gamma, beta):
        each.attach_grad()

    def step() -> None:
        with mx.autograd.record():
            y = mx.nd.LeakyReLU(x, act_type="gelu")
            y = mx.nd.LayerNorm(mx.nd.softmax(y), gamma, beta)
        y.backward()
        mx.nd.waitall()

    return step


def policy(mx: Any) -> Step:
    nn = mx.gluon.nn
    net = nn.Sequential()
    net.add(nn.Dense(32, activation="tanh", in_units=4), nn.Dense(2, in_units=32))
    moves, rewards = normal(2, 4), mx.nd.array(np.linspace(1, -1, STEPS))

    def compute_loss() -> Any:
        state, logs = np.zeros((1, 4), "float32"), []
        for _ in range(STEPS):
            log = mx.nd.log_softmax(net(mx.nd.array(state)))
            action = int(log.asnumpy()[0, 0] < -0.69)
            logs.append(log[0, action])
            state = 0.9 * state + 0.1 * moves[action : action + 1]
        return -(mx.nd.stack(*logs).reshape((-1,)) * rewards).sum()

    return trained(mx, net, "adam", compute_loss, 1)


def branches(mx: Any) -> Step:
    nn = mx.gluon.nn
    shrink, grow, out = nn.Dense(16, in_units=16), nn.Dense(16, in_units=16), nn.Dense(1, in_units=16)
    net = nn.Sequential()
    net.add(shrink, grow, out)
    data = mx.nd.array(normal(BATCH, 16))

    def compute_loss() -> Any:
        x = data
        for each in range(10):
            x = shrink(x).tanh() if x.norm().asscalar() > 12 + each else x + grow(x).relu()
        return out(x).square().mean()

    return trained(mx, net, "sgd", compute_loss, 1)


def seq2seq(mx: Any) -> Step:
    nn, rnn = mx.gluon.nn, mx.gluon.rnn
    length = 8
    encoder, decoder = rnn.LSTMCell(HIDDEN, input_size=HIDDEN), rnn.LSTMCell(HIDDEN, input_size=2 * HIDDEN)
    words, out = nn.Embedding(WORDS, HIDDEN), nn.Dense(WORDS, in_units=2 * HIDDEN)
    net = nn.Sequential()
    net.add(encoder, decoder, words, out)
    source, target = (mx.nd.array(integers(WORDS, length, BATCH)) for _ in range(2))
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def compute_loss() -> Any:
        states, outputs = encoder.begin_state(BATCH), []
        for each in range(length):
            hidden, states = encoder(words(source[each]), states)
            outputs.append(hidden)
        memory = mx.nd.stack(*outputs, axis=1)
        context, losses = hidden, []
        for each in range(length - 1):
            hidden, states = decoder(mx.nd.concat(words(target[each]), context, dim=1), states)
            scores = mx.nd.batch_dot(memory, hidden.expand_dims(2))
            context = mx.nd.batch_dot(mx.nd.softmax(scores, axis=1), memory, transpose_a=True).reshape((BATCH, HIDDEN))
            losses.append(cross_entropy(out(mx.nd.concat(hidden, context, dim=1)), target[each + 1]))
        return mx.nd.add_n(*losses)

    return trained(mx, net, "adam", compute_loss, BATCH)


def convnet(mx: Any) -> Step:
    nn = mx.gluon.nn
    net = nn.Sequential()
    for channels in (8, 16):
        net.add(nn.Conv2D(channels, 3, padding=1, activation="relu"), nn.MaxPool2D(2))
    net.add(nn.Flatten(), nn.Dense(10))
    return classified(mx, net, mx.nd.array(normal(1, 1, 28, 28)), 10)


def embedding(mx: Any) -> Step:
    nn = mx.gluon.nn
    users, items = nn.Embedding(WORDS, 16), nn.Embedding(WORDS, 16)
    deep = nn.Sequential()
    deep.add(nn.Dense(32, activation="relu"), nn.Dense(1))
    net = nn.Sequential()
    net.add(users, items, deep)
    user, item = (mx.nd.array(integers(WORDS, 128)) for _ in range(2))
    rating, l2 = mx.nd.array(normal(128)), mx.gluon.loss.L2Loss()

    def compute_loss() -> Any:
        u, v = users(user), items(item)
        return l2((u * v).sum(axis=1) + deep(mx.nd.concat(u, v, dim=1)).reshape((-1,)), rating)

    return trained(mx, net, "adam", compute_loss, 128)


MXNET_LIKE = {
    step.__name__: step
    for step in (mlp, gru, transformer, tiny, rows, policy, branches, seq2seq, convnet, embedding)
}  # fmt: skip


# -- PyTorch -----------------------------------------------------------------------------------------------


def torch_steps(torch: Any) -> dict[str, Callable[[], Step]]:
    """Return the same steps by ``torch.nn``."""
    nn, F = torch.nn, torch.nn.functional
    linear, relu, tensor = nn.Linear, nn.ReLU, torch.from_numpy

    def trained(modules: Any, optimizer: str, compute_loss: Callable[[], Any]) -> Step:
        parameters = [each for module in modules for each in module.parameters()]
        updates = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](parameters, lr=0.01)

        def step() -> None:
            updates.zero_grad()
            compute_loss().backward()
            updates.step()

        return step

    def classified(net: Any, data: Any, classes: int) -> Step:
        label = tensor(integers(classes, len(data)))
        return trained([net], "sgd", lambda: F.cross_entropy(net(data), label))

    def mlp() -> Step:
        net = nn.Sequential(linear(64, 64), relu(), linear(64, 64), relu(), linear(64, 10))
        return classified(net, tensor(normal(BATCH, 64)), 10)

    def gru() -> Step:
        cell, out = nn.GRUCell(HIDDEN, HIDDEN), linear(HIDDEN, 10)
        data, label = tensor(normal(STEPS, BATCH, HIDDEN)), tensor(integers(10, BATCH))

        def compute_loss() -> Any:
            hidden = torch.zeros(BATCH, HIDDEN)
            for each in range(STEPS):
                hidden = cell(data[each], hidden)
            return F.cross_entropy(out(hidden), label)

        return trained([cell, out], "sgd", compute_loss)

    def transformer() -> Step:
        batch, tokens, width = 8, 32, HIDDEN
        query, key, value, project = (linear(width, width) for _ in range(4))
        up, down = linear(width, 4 * width), linear(4 * width, width)
        first, second = nn.LayerNorm(width), nn.LayerNorm(width)
        data = tensor(normal(batch, tokens, width))

        def split_heads(x: Any) -> Any:
            return x.reshape(batch, tokens, HEADS, -1).transpose(1, 2)

        def compute_loss() -> Any:
            hidden = first(data)
            q, k, v = (split_heads(layer(hidden)) for layer in (query, key, value))
            weights = torch.softmax(q @ k.transpose(2, 3) * (width // HEADS) ** -0.5, -1)
            x = data + project((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
            return (x + down(F.gelu(up(second(x))))).square().mean()

        return trained([query, key, value, project, up, down, first, second], "adam", compute_loss)

    def tiny() -> Step:
        x = tensor(normal(16)).requires_grad_()
        head = torch.ones(16)

        def step() -> None:
            x.grad = None
            y = x
            for _ in range(50):
                y = y * 0.9 + x
            y.backward(head)

        return step

    def rows() -> Step:
        x, gamma, beta = (tensor(each).requires_grad_() for each in (normal(100, 100), normal(100), normal(100)))
        head = torch.ones(100, 100)

        def step() -> None:
            x.grad = gamma.grad = beta.grad = None
            F.layer_norm(torch.softmax(F.gelu(x), -1), (100,), gamma, beta).backward(head)

        return step

    def policy() -> Step:
        net = nn.Sequential(linear(4, 32), nn.Tanh(), linear(32, 2))
        moves, rewards = normal(2, 4), torch.linspace(1, -1, STEPS)

        def compute_loss() -> Any:
            state, logs = np.zeros((1, 4), "float32"), []
            for _ in range(STEPS):
                log = torch.log_softmax(net(tensor(state)), -1)
                action = int(log.detach().numpy()[0, 0] < -0.69)
                logs.append(log[0, action])
                state = 0.9 * state + 0.1 * moves[action : action + 1]
            return -(torch.stack(logs) * rewards).sum()

        return trained([net], "adam", compute_loss)

    def branches() -> Step:
        shrink, grow, out = linear(16, 16), linear(16, 16), linear(16, 1)
        data = tensor(normal(BATCH, 16))

        def compute_loss() -> Any:
            x = data
            for each in range(10):
                x = shrink(x).tanh() if x.norm().item() > 12 + each else x + grow(x).relu()
            return out(x).square().mean()

        return trained([shrink, grow, out], "sgd", compute_loss)

    def seq2seq() -> Step:
        length = 8
        encoder, decoder = nn.LSTMCell(HIDDEN, HIDDEN), nn.LSTMCell(2 * HIDDEN, HIDDEN)
        words, out = nn.Embedding(WORDS, HIDDEN), linear(2 * HIDDEN, WORDS)
        source, target = (tensor(integers(WORDS, length, BATCH)) for _ in range(2))

        def compute_loss() -> Any:
            states, outputs = (torch.zeros(BATCH, HIDDEN), torch.zeros(BATCH, HIDDEN)), []
            for each in range(length):
                states = encoder(words(source[each]), states)
                outputs.append(states[0])
            memory = torch.stack(outputs, 1)
            context, losses = states[0], []
            for each in range(length - 1):
                states = decoder(torch.cat([words(target[each]), context], 1), states)
                scores = torch.bmm(memory, states[0].unsqueeze(2))
                context = torch.bmm(torch.softmax(scores, 1).transpose(1, 2), memory).reshape(BATCH, HIDDEN)
                losses.append(F.cross_entropy(out(torch.cat([states[0], context], 1)), target[each + 1]))
            return sum(losses)

        return trained([encoder, decoder, words, out], "adam", compute_loss)

    def convnet() -> Step:
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), relu(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), relu(), nn.MaxPool2d(2), nn.Flatten(), linear(784, 10),
        )  # fmt: skip
        return classified(net, tensor(normal(1, 1, 28, 28)), 10)

    def embedding() -> Step:
        users, items = nn.Embedding(WORDS, 16), nn.Embedding(WORDS, 16)
        deep = nn.Sequential(linear(32, 32), relu(), linear(32, 1))
        user, item = (tensor(integers(WORDS, 128)) for _ in range(2))
        rating = tensor(normal(128))

        def compute_loss() -> Any:
            u, v = users(user), items(item)
            return F.mse_loss((u * v).sum(1) + deep(torch.cat([u, v], 1)).reshape(-1), rating)

        return trained([users, items, deep], "adam", compute_loss)

    return {
        step.__name__: step
        for step in (mlp, gru, transformer, tiny, rows, policy, branches, seq2seq, convnet, embedding)
    }  # fmt: skip


def run(
    mxnet_like: dict[str, Callable[[Any], Step]], torch_steps: Callable[[Any], dict[str, Callable[[], Step]]]
) -> None:
    """Measure the step that the command line names, and print the figure as JSON.

    Args:
        mxnet_like: the steps by MXNet's interface.
        torch_steps: returns the steps by PyTorch, from its module.
    """

    def like(mx: Any, name: str) -> dict[str, float]:
        import_module(f"{mx.__name__}.gluon")
        return {"step_ms": best_ms(mxnet_like[name](mx))}

    def pytorch(name: str) -> dict[str, float]:
        return {"step_ms": best_ms(torch_steps(import_module("torch"))[name]())}

    measure(like, pytorch, sys.argv[2])


if __name__ == "__main__":
    run(MXNET_LIKE, torch_steps)
