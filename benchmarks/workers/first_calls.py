"""Milliseconds of the first call of a hybridized network, in this fresh process; small batches.

    python first_calls.py SYSTEM MODEL PHASE

Phases: ``predict``, a call; ``train``, a recorded call with its backward pass. The time runs from the call to its
results, including deferred initialization of parameters. MODEL ``eager`` measures the first operators of a process
instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from timing import measure  # a module of this folder: the peers cannot import the package

WORDS, STEPS, BATCH, HIDDEN = 1000, 20, 8, 64
SERIES = 32
"""Series in a batch of the forecaster."""
CONTEXT, HORIZON, LAGS = 24, 24, 7
"""Steps that the forecaster reads and predicts, and the number of lagged values at each step."""


def zoo(name: str) -> Callable[[Any, Any], Any]:
    """A network of the model zoo, for one image."""

    def build(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
        del mx
        return getattr(import_module(f"{sys.argv[1]}.gluon.model_zoo.vision"), name)(), [image(rng)]

    return build


def image(rng: Any) -> Any:
    return rng.standard_normal((1, 3, 224, 224))


def language(layer: str) -> Callable[[Any, Any], Any]:
    """A language model of two recurrent layers."""

    def build(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
        nn, rnn = mx.gluon.nn, mx.gluon.rnn
        net = nn.HybridSequential()
        net.add(nn.Embedding(WORDS, HIDDEN), getattr(rnn, layer)(HIDDEN, 2), nn.Dense(WORDS, flatten=False))
        return net, [rng.integers(0, WORDS, (STEPS, BATCH))]

    return build


def mlp(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
    """Dense layers."""
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Dense(256, activation="relu"), nn.Dropout(0.5), nn.Dense(128, activation="relu"), nn.Dense(10))
    return net, [rng.standard_normal((64, 784))]


def text_cnn(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
    """Convolutions of several widths over words, with max pooling (Kim, 2014)."""
    nn = mx.gluon.nn

    class TextCNN(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.words = nn.Embedding(WORDS, HIDDEN)
                self.widths = nn.HybridSequential()
                for width in (3, 4, 5):
                    branch = nn.HybridSequential()
                    branch.add(nn.Conv1D(100, width, activation="relu"), nn.GlobalMaxPool1D())
                    self.widths.add(branch)
                self.out = nn.HybridSequential()
                self.out.add(nn.Dropout(0.5), nn.Dense(2))

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            words = F.transpose(self.words(x), axes=(0, 2, 1))
            return self.out(F.concat(*[F.flatten(branch(words)) for branch in self.widths], dim=1))

    return TextCNN(), [rng.integers(0, WORDS, (BATCH, 50))]


def transformer(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
    """An encoder of two pre-norm blocks over words."""
    nn, heads = mx.gluon.nn, 4

    class Block(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.before, self.between = nn.LayerNorm(), nn.LayerNorm()
                self.query, self.key, self.value = (nn.Dense(HIDDEN, flatten=False) for _ in range(3))
                self.joined = nn.Dense(HIDDEN, flatten=False)
                self.wide, self.narrow = nn.Dense(4 * HIDDEN, flatten=False), nn.Dense(HIDDEN, flatten=False)
                self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

        def split(self, F: Any, x: Any) -> Any:
            x = F.transpose(F.reshape(x, (0, 0, heads, -1)), axes=(0, 2, 1, 3))
            return F.reshape(x, (-1, 0, 0), reverse=True)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            y = self.before(x)
            query, key, value = (self.split(F, each(y)) for each in (self.query, self.key, self.value))
            scores = F.batch_dot(query, key, transpose_b=True) / (HIDDEN // heads) ** 0.5
            mixed = F.batch_dot(self.drop(F.softmax(scores, axis=-1)), value)
            mixed = F.transpose(F.reshape(mixed, (-1, heads, 0, 0), reverse=True), axes=(0, 2, 1, 3))
            x = x + self.drop(self.joined(F.reshape(mixed, (0, 0, -1))))
            return x + self.drop(self.narrow(self.act(self.wide(self.between(x)))))

    net = nn.HybridSequential()
    net.add(nn.Embedding(WORDS, HIDDEN), Block(), Block(), nn.LayerNorm(), nn.Dense(WORDS, flatten=False))
    return net, [rng.integers(0, WORDS, (BATCH, STEPS))]


def residual_gru(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
    """Two GRU cells with residual connections, unrolled."""
    rnn = mx.gluon.rnn

    class Unrolled(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.cells = rnn.HybridSequentialRNNCell()
                for _ in range(2):
                    self.cells.add(rnn.ResidualCell(rnn.GRUCell(HIDDEN)))
                self.out = mx.gluon.nn.Dense(10, flatten=False)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            self.cells.reset()
            outputs, _ = self.cells.unroll(STEPS, x, layout="NTC", merge_outputs=True)
            return self.out(outputs)

    return Unrolled(), [rng.standard_normal((BATCH, STEPS, HIDDEN))]


def deepar(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
    """A forecaster as gluonts' DeepAR trains it (Salinas, 2017): LSTM cells over lagged values, Student's t."""
    nn, rnn, cells = mx.gluon.nn, mx.gluon.rnn, 40

    class DeepAR(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.series = nn.Embedding(SERIES, 4)
                self.rnn = rnn.HybridSequentialRNNCell()
                for _ in range(2):
                    self.rnn.add(rnn.ZoneoutCell(rnn.LSTMCell(cells), zoneout_outputs=0.1))
                self.where, self.scale, self.freedom = (nn.Dense(1, flatten=False) for _ in range(3))

        def hybrid_forward(self, F: Any, which: Any, past: Any, observed: Any, future: Any) -> Any:
            steps = CONTEXT + HORIZON
            context, flags = F.slice_axis(past, axis=1, begin=-CONTEXT, end=None), F.slice_axis(
                observed, axis=1, begin=-CONTEXT, end=None
            )  # fmt: skip
            total, count = F.sum(F.abs(context) * flags, axis=1), F.maximum(F.sum(flags, axis=1), 1.0)
            scale = F.maximum(F.expand_dims(total / count, axis=1), 1e-5)
            series = F.concat(past, future, dim=1)
            lagged = []
            for lag in range(1, LAGS + 1):
                end = None if lag == 0 else -lag
                lagged.append(F.slice_axis(series, axis=1, begin=-lag - steps, end=end))
            lags = F.broadcast_div(F.stack(*lagged, axis=2), F.expand_dims(scale, axis=2))
            fixed = F.concat(self.series(which), F.log(scale), dim=1)
            fixed = F.repeat(F.expand_dims(fixed, axis=1), axis=1, repeats=steps)
            self.rnn.reset()
            outputs, _ = self.rnn.unroll(steps, F.concat(lags, fixed, dim=2), layout="NTC", merge_outputs=True)
            targets = F.slice_axis(series, axis=1, begin=-steps, end=None)
            mu = F.broadcast_mul(F.squeeze(self.where(outputs), axis=2), scale)
            sigma = F.broadcast_mul(F.Activation(F.squeeze(self.scale(outputs), axis=2), act_type="softrelu"), scale)
            nu = 2.0 + F.Activation(F.squeeze(self.freedom(outputs), axis=2), act_type="softrelu")
            z, half = (targets - mu) / (sigma + 1e-6), (nu + 1.0) / 2.0
            normal = F.gammaln(half) - F.gammaln(nu / 2.0) - 0.5 * F.log(np.pi * nu) - F.log(sigma + 1e-6)
            loss = -(normal - half * F.log1p(F.square(z) / nu))
            weights = F.concat(flags, F.ones_like(future), dim=1)
            return F.sum(loss * weights, axis=1) / F.maximum(F.sum(weights, axis=1), 1.0)

    past = CONTEXT + LAGS
    shown = np.ones((SERIES, past))
    return DeepAR(), [
        np.arange(SERIES), np.abs(rng.standard_normal((SERIES, past))), shown,
        np.abs(rng.standard_normal((SERIES, HORIZON))),
    ]  # fmt: skip


def unrolled(make: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """An unrolled cell with a dense layer on its outputs."""

    def build(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
        class Unrolled(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                with self.name_scope():
                    self.cell, self.out = make(mx.gluon.rnn), mx.gluon.nn.Dense(10, flatten=False)

            def hybrid_forward(self, F: Any, x: Any) -> Any:
                self.cell.reset()
                outputs, _ = self.cell.unroll(STEPS, x, layout="NTC", merge_outputs=True)
                return self.out(outputs)

        return Unrolled(), [rng.standard_normal((BATCH, STEPS, HIDDEN))]

    return build


def seq2seq(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
    """An encoder of GRU cells, and a decoder of LSTM cells with attention over its outputs, both unrolled."""
    nn, rnn = mx.gluon.nn, mx.gluon.rnn

    class Seq2Seq(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.source, self.target = nn.Embedding(WORDS, HIDDEN), nn.Embedding(WORDS, HIDDEN)
                self.encoder, self.decoder = rnn.GRUCell(HIDDEN), rnn.LSTMCell(HIDDEN)
                self.out = nn.Dense(WORDS, flatten=False)

        def hybrid_forward(self, F: Any, source: Any, target: Any) -> Any:
            self.encoder.reset()
            self.decoder.reset()
            observed, (state,) = self.encoder.unroll(STEPS, self.source(source), layout="NTC", merge_outputs=True)
            states, outputs = [state, F.zeros_like(state)], []
            for word in F.split(self.target(target), num_outputs=STEPS, axis=1, squeeze_axis=True):
                weights = F.softmax(F.batch_dot(observed, F.expand_dims(states[0], axis=2)), axis=1)
                context = F.squeeze(F.batch_dot(weights, observed, transpose_a=True), axis=1)
                step, states = self.decoder(F.concat(word, context, dim=1), states)
                outputs.append(F.concat(step, context, dim=1))
            return self.out(F.stack(*outputs, axis=1))

    return Seq2Seq(), [rng.integers(0, WORDS, (BATCH, STEPS)), rng.integers(0, WORDS, (BATCH, STEPS))]


def wavenet(mx: Any, rng: Any) -> tuple[Any, list[Any]]:
    """Gated dilated convolutions over time, with residual and skip connections (van den Oord, 2016)."""
    nn, layers = mx.gluon.nn, 8

    class WaveNet(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.start, self.end = nn.Conv1D(32, 1), nn.Conv1D(16, 1)
                self.filters, self.gates, self.skips = (nn.HybridSequential() for _ in range(3))
                for layer in range(layers):
                    self.filters.add(nn.Conv1D(32, 2, dilation=2 ** (layer % 4)))
                    self.gates.add(nn.Conv1D(32, 2, dilation=2 ** (layer % 4)))
                    self.skips.add(nn.Conv1D(32, 1))

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            x, total = self.start(x), None
            for at in range(layers):
                gated = self.skips[at](F.tanh(self.filters[at](x)) * F.sigmoid(self.gates[at](x)))
                x = F.slice_like(F.reverse(x, axis=2), gated, axes=(2,)) + gated
                total = gated if total is None else F.slice_like(total, gated, axes=(2,)) + gated
            return self.end(F.relu(total))

    return WaveNet(), [rng.standard_normal((BATCH, 8, 128))]


MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "residual_gru": residual_gru, "deepar": deepar, "lstm": language("LSTM"), "gru": language("GRU"),
    "resnet_18": zoo("resnet18_v1"), "resnet_50": zoo("resnet50_v1"), "mobilenet_v2": zoo("mobilenet_v2_1_0"),
    "mlp": mlp, "text_cnn": text_cnn, "transformer": transformer, "seq2seq": seq2seq, "wavenet": wavenet,
    "bidirectional_lstm": unrolled(lambda rnn: rnn.BidirectionalCell(rnn.LSTMCell(HIDDEN), rnn.LSTMCell(HIDDEN))),
    "densenet_121": zoo("densenet121"),
}  # fmt: skip


def call(mx: Any, net: Any, data: list[Any], phase: str) -> None:
    """Run one call, and wait for its results."""
    if phase == "predict":
        net(*data).wait_to_read()
        return
    with mx.autograd.record():
        out = net(*data)
    out.backward()
    mx.nd.waitall()


def eager(mx: Any) -> dict[str, float]:
    """Milliseconds of the first operators: arithmetic, a matrix product, and a recorded operator with its gradient."""
    start = time.perf_counter()
    x = mx.nd.array(np.ones((4, 4), "float32"))
    (x * 2 + x).asnumpy()
    arithmetic = time.perf_counter()
    mx.nd.dot(x, x).asnumpy()
    product = time.perf_counter()
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.FullyConnected(mx.nd.tanh(x), x, x[0], num_hidden=4)
    y.backward()
    x.grad.asnumpy()
    end = time.perf_counter()
    return {
        "arithmetic_ms": 1000 * (arithmetic - start), "product_ms": 1000 * (product - arithmetic),
        "recorded_ms": 1000 * (end - product),
    }  # fmt: skip


def figures(mx: Any, name: str, phase: str) -> dict[str, float]:
    """Milliseconds of the first call, its processor time over all threads, and the fastest of five calls."""
    import_module(f"{mx.__name__}.gluon")
    if name == "eager":
        return eager(mx)
    net, data = MODELS[name](mx, np.random.default_rng(0))
    arrays = [mx.nd.array(each.astype("float32")) for each in data]
    net.initialize(mx.init.Xavier())
    net.hybridize()
    mx.nd.waitall()
    times = []
    for _ in range(5):
        start, worked = time.perf_counter(), time.process_time()
        call(mx, net, arrays, phase)
        times.append((1000 * (time.perf_counter() - start), 1000 * (time.process_time() - worked)))
    return {"first_ms": times[0][0], "first_cpu_ms": times[0][1], "later_ms": min(times)[0]}


if __name__ == "__main__":
    measure(figures, lambda *_: {}, *sys.argv[2:])
