"""Blocks of the fuzzer's networks, in addition to Gluon's."""

from unittest import mock

from flowmx.gluon import Block, HybridBlock, nn
from flowmx.gluon.contrib import nn as more
from flowmx.gluon.model_zoo import vision


def chain(*blocks):
    """Compose blocks sequentially."""
    block = nn.HybridSequential()
    with block.name_scope():
        block.add(*blocks)
    return block


def row(*blocks):
    """Compose blocks sequentially; each is compiled separately."""
    block = nn.Sequential()
    block.add(*blocks)
    return block


def concurrent(*blocks, axis):
    """Apply blocks to the same input."""
    block = more.HybridConcurrent(axis=axis)
    with block.name_scope():
        block.add(*blocks)
    return block


def apart(*blocks, axis):
    """Apply blocks to the same input; each is compiled separately."""
    block = more.Concurrent(axis=axis)
    block.add(*blocks)
    return block


class Residual(HybridBlock):
    """The sum of the input and a block's output."""

    def __init__(self, body):
        super().__init__()
        with self.name_scope():
            self.body = body

    def hybrid_forward(self, F, x):
        return x + self.body(x)


class Gated(HybridBlock):
    """The product of the outputs of two blocks."""

    def __init__(self, body, gate):
        super().__init__()
        with self.name_scope():
            self.body, self.gate = body, gate

    def hybrid_forward(self, F, x):
        return self.body(x) * F.sigmoid(self.gate(x))


class Twice(HybridBlock):
    """A block applied twice."""

    def __init__(self, body):
        super().__init__()
        with self.name_scope():
            self.body = body

    def hybrid_forward(self, F, x):
        return self.body(self.body(x))


class Tied(HybridBlock):
    """Two Dense layers with the same parameters."""

    def __init__(self, units):
        super().__init__()
        with self.name_scope():
            self.one = nn.Dense(units, flatten=False, in_units=units)
            self.other = nn.Dense(units, flatten=False, in_units=units, params=self.one.params)

    def hybrid_forward(self, F, x):
        return self.other(F.tanh(self.one(x)))


class Scaled(HybridBlock):
    """A parameter and a constant, along the last axis."""

    def __init__(self, units):
        super().__init__()
        with self.name_scope():
            self.scale = self.params.get("scale", shape=(units,), init="ones")
            self.shift = self.params.get_constant("shift", [0.5] * units)

    def hybrid_forward(self, F, x, scale, shift):
        return F.broadcast_add(F.broadcast_mul(x, scale), shift)


class TimeFirst(HybridBlock):
    """A block that takes the time before the batch, given the batch before the time."""

    def __init__(self, body):
        super().__init__()
        with self.name_scope():
            self.body = body

    def hybrid_forward(self, F, x):
        return F.swapaxes(self.body(F.swapaxes(x, 0, 1)), 0, 1)


class WithStates(HybridBlock):
    """A recurrent layer with initial states, whose final states are used."""

    def __init__(self, layer, batch_axis):
        super().__init__()
        self.batch_axis = batch_axis
        with self.name_scope():
            self.layer = layer

    def hybrid_forward(self, F, x):
        first = F.reshape(F.mean(x, axis=self.batch_axis, exclude=True), shape=(1, -1, 1))
        shapes = [info["shape"] for info in self.layer.state_info()]
        options = [F.broadcast_axis(first, axis=(0, 2), size=(shape[0], shape[2])) for shape in shapes]
        out, last = self.layer(x, options)
        for each in last:
            shape = [-1 if axis == self.batch_axis else 1 for axis in range(3)]
            out = F.broadcast_add(out, F.reshape(F.mean(each, axis=(0, 2)), shape=shape))
        return out


class WithLengths(HybridBlock):
    """A recurrent layer with sequence lengths (time first): 1, 2, ... and again from 1."""

    def __init__(self, layer, length):
        super().__init__()
        self.length = length
        with self.name_scope():
            self.layer = layer

    def hybrid_forward(self, F, x):
        return self.layer(x, sequence_length=F.contrib.arange_like(x, axis=1) % self.length + 1)


class Unrolled(HybridBlock):
    """A recurrent cell, unrolled over (batch, time, ...)."""

    def __init__(self, cell, length, layout="NTC", merge=True, lengths=False, states=False):
        super().__init__()
        self.length, self.layout, self.merge, self.lengths, self.states = length, layout, merge, lengths, states
        with self.name_scope():
            self.cell = cell

    def hybrid_forward(self, F, x):
        valid = None
        if self.lengths:
            valid = F.contrib.arange_like(x, axis=0) % self.length + 1
        options = F.swapaxes(x, 0, 1) if self.layout == "TNC" else x
        outputs, states = self.cell.unroll(
            self.length, options, layout=self.layout, merge_outputs=self.merge, valid_length=valid
        )
        if not self.merge:
            outputs = F.stack(*outputs, axis=self.layout.index("T"))
        if self.layout == "TNC":
            outputs = F.swapaxes(outputs, 0, 1)
        for each in states if self.states else ():
            outputs = F.broadcast_add(outputs, F.reshape(F.sum(each, axis=1), shape=(-1, 1, 1)))
        return outputs


class PlainUnrolled(Block):
    """A recurrent cell that is not a HybridBlock, unrolled over (batch, time, channels)."""

    def __init__(self, cell, length):
        super().__init__()
        self.length, self.cell = length, cell

    def forward(self, x):
        return self.cell.unroll(self.length, x, merge_outputs=True)[0]


def stacked(*cells, plain=False):
    """Stack recurrent cells."""
    from flowmx.gluon import rnn

    block = rnn.SequentialRNNCell() if plain else rnn.HybridSequentialRNNCell()
    for cell in cells:
        block.add(cell)
    return block


class Scan(HybridBlock):
    """Running sums over the first axis after the batch, by a loop in the graph; a layer computes each step."""

    def __init__(self, units):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(units, flatten=False)

    def hybrid_forward(self, F, x):
        def step(each, states):
            out = F.tanh(self.dense(each) + states[0] * 0.5)
            return out, [out]

        first = F.swapaxes(x, 0, 1)
        begin = F.zeros_like(F.squeeze(F.slice_axis(self.dense(first), axis=0, begin=0, end=1), axis=0))
        outputs, _ = F.contrib.foreach(step, first, [begin])
        return F.swapaxes(outputs, 0, 1)


class Repeated(HybridBlock):
    """A layer applied to its output several times, by a loop in the graph."""

    def __init__(self, units, times):
        super().__init__()
        self.times = times
        with self.name_scope():
            self.dense = nn.Dense(units, flatten=False, activation="tanh")

    def hybrid_forward(self, F, x):
        def again(count, value):
            return count < self.times

        def step(count, value):
            block = self.dense(value)
            return block, [count + 1, block]

        count = F.sum(F.zeros_like(x))
        _, (_, last) = F.contrib.while_loop(again, step, [count, x], max_iterations=self.times + 2)
        return last


class Chosen(HybridBlock):
    """The output of a layer, or half of its negative, by the sign of a sum."""

    def __init__(self, body):
        super().__init__()
        with self.name_scope():
            self.body = body

    def hybrid_forward(self, F, x):
        return F.contrib.cond(F.sum(x) > 0, lambda: self.body(x), lambda: self.body(x) * -0.5)


class Attention(HybridBlock):
    """Self-attention."""

    def __init__(self, heads, units, interleaved=False, rate=0.0, causal=False):
        super().__init__()
        self.heads, self.units, self.interleaved, self.causal = heads, units, interleaved, causal
        with self.name_scope():
            self.project = nn.Dense(3 * units, flatten=False)
            self.drop = nn.Dropout(rate)

    def hybrid_forward(self, F, x):
        projected = self.project(x)
        if self.interleaved:
            first = F.swapaxes(projected, 0, 1)
            scores = F.contrib.interleaved_matmul_selfatt_qk(first, heads=self.heads)
            weights = self.drop(F.softmax(scores, axis=-1))
            out = F.contrib.interleaved_matmul_selfatt_valatt(first, weights, heads=self.heads)
            return F.swapaxes(out, 0, 1)
        q, k, v = F.split(projected, num_outputs=3, axis=-1)
        q, k, v = (self._by_head(F, each) for each in (q, k, v))
        scores = F.batch_dot(q, k, transpose_b=True) / (self.units // self.heads) ** 0.5
        if self.causal:
            steps = F.contrib.arange_like(F.squeeze(F.slice_axis(scores, axis=0, begin=0, end=1), axis=0), axis=0)
            later = F.broadcast_lesser(F.expand_dims(steps, 1), F.expand_dims(steps, 0))
            scores = F.broadcast_sub(scores, F.expand_dims(later, 0) * 1000)
        out = F.batch_dot(self.drop(F.softmax(scores, axis=-1)), v)
        out = F.reshape(out, shape=(-4, -1, self.heads, 0, 0))
        return F.reshape(F.transpose(out, axes=(0, 2, 1, 3)), shape=(0, 0, -3))

    def _by_head(self, F, x):
        split = F.reshape(x, shape=(0, 0, self.heads, -1))
        return F.reshape(F.transpose(split, axes=(0, 2, 1, 3)), shape=(-3, 0, 0))


class Several(HybridBlock):
    """The outputs of several blocks, nested; the first one's twice, and the input."""

    def __init__(self, first, *others):
        super().__init__()
        with self.name_scope():
            self.first = first
            self.others = chain(*others)

    def hybrid_forward(self, F, x):
        out = self.first(x)
        return out, [other(out) for other in self.others], (x, out)


class WithLoss(HybridBlock):
    """A network and its loss; the loss comes first."""

    def __init__(self, body, loss):
        super().__init__()
        with self.name_scope():
            self.body, self.loss = body, loss

    def hybrid_forward(self, F, x, *labels):
        out = self.body(x)
        return self.loss(out, *labels), out


class Pair(HybridBlock):
    """A block for each of two inputs, and a layer on their combined output."""

    def __init__(self, one, other, units):
        super().__init__()
        with self.name_scope():
            self.one, self.other, self.last = one, other, nn.Dense(units)

    def hybrid_forward(self, F, x, y):
        return self.last(F.concat(F.flatten(self.one(x)), F.flatten(self.other(y)), dim=1))


def narrow(name, by):
    """Build a model of the zoo for small images, with a fraction of the channels, and 4 classes.

    The average over all that is left of an image is one over a single pixel.
    """
    classes, average = 4, nn.AvgPool2D

    def less(layer):
        def make(number, *args, **options):
            fewer = {
                key: max(options[key] // by, 1) for key in ("groups", "in_channels", "in_units") if options.get(key)
            }
            return layer(number if number == classes else max(number // by, 2), *args, **options | fewer)

        return make

    def averaged(pool_size=2, *args, **options):
        return average(1 if pool_size >= 7 else pool_size, *args, **options)

    with mock.patch.multiple(nn, Conv2D=less(nn.Conv2D), Dense=less(nn.Dense), AvgPool2D=averaged):
        return vision.get_model(name, classes=classes)
