"""Random networks."""

from math import prod
from typing import Any

import flowmx as mx
from tests.modes import operators, recurrent  # fills the table  # noqa: F401
from tests.modes.layers import LAYERS, Draw, is_a
from tests.modes.losses import LOSSES, SCALAR, WHOLE
from tests.modes.network import NAMES, Code, Input, Layer, Network, Step, layer

TOGETHER = {
    "nn.HybridSequential": "chain", "nn.Sequential": "row", "contrib.nn.HybridConcurrent": "concurrent",
    "contrib.nn.Concurrent": "apart", "nn.Lambda": "nn.Lambda", "rnn.SequentialRNNCell": "PlainUnrolled",
    "rnn.HybridSequentialRNNCell": "stacked", "nn.Embedding": "nn.Embedding",
}  # fmt: skip
"""The other Gluon layers that are drawn, and the call that represents them."""
DRAWS = ("rate", "dropout", "zoneout_outputs", "zoneout_states", "drop_inputs", "drop_states", "drop_outputs")
"""Arguments that make a layer draw random numbers in training, unless they are 0."""
LOOPS = ("Scan", "Repeated", "Chosen")
BY_BATCH = ("nn.BatchNorm", "nn.BatchNormReLU", "contrib.nn.SyncBatchNorm")
MEETING = (*BY_BATCH, "Chosen", "Repeated", *WHOLE)
"""Layers that combine the samples of a batch."""
SHAPES = {
    1: [(1,), (3,), (4,), (5,), (8,), (16,), (20,)],
    2: [(3, 5), (4, 4), (2, 8), (3, 3), (8, 6), (1, 7), (16, 3), (3, 4), (2, 1)],
    3: [(3, 6, 6), (4, 5, 7), (1, 8, 8), (8, 4, 4), (16, 3, 3), (2, 5, 3), (6, 6, 4), (32, 2, 2), (3, 1, 4)],
    4: [(2, 3, 4, 4), (4, 3, 3, 3), (1, 4, 4, 4), (3, 2, 5, 3), (8, 2, 2, 2)],
    5: [(2, 1, 3, 3, 3), (2, 2, 2, 2, 3)],
}


def shape_of(call, shape):
    """Return the shape of a sample after a layer."""
    return _batched(call, shape)[1:]


def _batched(call, shape):
    key = str(call), shape
    if key not in _shapes:
        block = eval(key[0], dict(NAMES))
        data = mx.sym.var("data", shape=(3, *shape))
        _, outputs, _ = block(data).infer_shape()
        _shapes[key] = outputs[0]
    return _shapes[key]


_shapes: dict[Any, Any] = {}


def draw(seed):
    """Draw a random network that contains the layer whose turn it is."""
    return Drawing(Draw(seed), TURNS[seed % len(TURNS)]).network(seed)


class Drawing:
    """The drawing of one network.

    Args:
        d: random choices.
        turn: the layer, or loss, or way to put others together that the network must have.
    """

    def __init__(self, d, turn):
        self.d, self.turn = d, turn

    def network(self, seed):
        """Draw the network."""
        d = self.d
        inputs, first, shape = self.beginning()
        call, shape = self.chain(shape, d.choice([0, 0, 1, 1, 2, 3] if first else [1, 1, 2, 2, 3, 4]), first)
        plain = False
        if self.turn in PLAIN or (d.often(0.08) and inputs[0].kind == "normal"):
            call, plain = self.plain(call, shape), True
        elif self.turn in LOSSES or d.often(0.15):
            call, labels = self.lossy(call, shape)
            inputs += labels
        elif d.often(0.15) and inputs[0].kind == "normal":
            call = layer("Several", call, *[self.one(shape) for _ in range(d.choice([1, 2]))])
        elif d.often(0.1):
            call, more = self.pair(call)
            inputs += more
        names = {each.name for each in call.walk()}
        return Network(
            call, tuple(inputs), self.steps(call), seed, self.optimizer(call), self.request(inputs),
            whole=meets(call), plain=plain, draws=draws(call), loose=loose(call), scalar=bool(names & set(SCALAR)),
        )  # fmt: skip

    def beginning(self):
        """The first input, what begins the network, and the shape behind that."""
        d = self.d
        if self.turn in TABLES or (self.turn not in LAYERS and self.turn not in PLAIN and d.often(0.1)):
            return self.embedded(self.turn if self.turn in TABLES else d.choice(TABLES))
        while True:
            shape = d.choice(SHAPES[d.choice([1, 2, 2, 3, 3, 3, 3, 4, 4]) if d.often(0.94) else 5])
            if self.turn not in LAYERS:
                return [Input(shape)], [], shape
            call = LAYERS[self.turn](d, shape)
            if call is not None:
                return [Input(shape)], [call], shape_of(call, shape)

    def embedded(self, table):
        """A sequence of indices, and what looks them up."""
        d = self.d
        rows, units, time = d.choice([2, 5, 11]), d.choice([1, 3, 4, 8]), d.choice([2, 3])
        call = layer(table, input_dim=rows, output_dim=units)
        return [Input((time,), "index", rows, d.choice(["float32", "int32"]))], [call], (time, units)

    def steps(self, call):
        """The steps of the network, with three instances on a device at least where they meet.

        Two alone have no gradient but rounding behind a BatchNorm.
        """
        d = self.d
        kinds = d.choice(
            [("train", "predict"), ("predict", "train"), ("train", "train", "predict"), ("twice", "predict"),
             ("predict", "frozen"), ("train", "predict", "predict"), ("predict", "train", "predict", "frozen"),
             ("observe", "train", "predict"), ("predict", "observe", "predict")]
        )  # fmt: skip
        if is_a(call, *BY_BATCH, "loss.SDMLLoss"):
            sizes = [6, 7]
        else:
            sizes = d.sample([1, 2, 3, 4, 5], 2)
        return tuple(Step(kind, d.choice(sizes)) for kind in kinds)

    def optimizer(self, call):
        """The optimizer."""
        d = self.d
        if is_a(call, "Repeated", "Chosen"):
            return "sgd", {"learning_rate": 0.01}
        return d.choice([
            ("sgd", {"learning_rate": 0.01}), ("sgd", {"learning_rate": 0.01, "momentum": 0.9, "wd": 0.01}),
            ("nag", {"learning_rate": 0.01, "momentum": 0.9}),
        ])  # fmt: skip

    def request(self, inputs):
        """The request for gradients; where there are those of parameters alone, all are wanted."""
        return self.d.choice(["write", "write", "add", "some" if inputs[0].kind == "normal" else "write"])

    # -- layers ----------------------------------------------------------------------------------------

    def chain(self, shape, length, first=(), keep=False):
        """Layers in a row, and the shape behind them."""
        call = list(first)
        for _ in range(length):
            each = self.one(shape, keep)
            call.append(each)
            shape = shape_of(each, shape)
        return (call[0] if len(call) == 1 else layer("chain", *call)), shape

    def one(self, shape, keep=False):
        """A layer, or several put together, for instances of a shape."""
        d = self.d
        if d.often(0.22):
            together = d.choice(
                [self.residual, self.gated, self.twice, self.concurrent, self.tied, self.scaled, self.loop]
            )
            call = together(shape, keep)
            if call is not None:
                return call
        while True:
            call = LAYERS[d.choice(NAMED)](d, shape, keep)
            if call is not None and not (keep and shape_of(call, shape) != shape):
                return call

    def body(self, shape):
        """One layer or two that leave the shape as it is."""
        return self.chain(shape, self.d.choice([1, 1, 2]), keep=True)[0]

    def residual(self, shape, keep):
        return layer("Residual", self.body(shape))

    def gated(self, shape, keep):
        return layer("Gated", self.body(shape), self.body(shape))

    def twice(self, shape, keep):
        return layer("Twice", self.body(shape))

    def concurrent(self, shape, keep):
        if keep or prod(shape) > 256:
            return None
        bodies = [self.body(shape) for _ in range(self.d.choice([1, 2]))]
        return layer("concurrent", *bodies, layer("contrib.nn.Identity"), axis=self.d.axis(shape))

    def tied(self, shape, keep):
        return layer("Tied", units=shape[-1])

    def scaled(self, shape, keep):
        return layer("Scaled", units=shape[-1])

    def loop(self, shape, keep):
        d = self.d
        if len(shape) == 2 and d.often(0.4):
            heads = d.divisor(shape[1])
            return layer(
                "Attention", heads=heads, units=shape[1], interleaved=d.maybe(True), causal=d.maybe(True, often=0.3),
                rate=d.maybe(0.2, often=0.2),
            )  # fmt: skip
        if len(shape) > 1 and d.often(0.5):
            return layer("Scan", units=shape[-1])
        if d.often(0.5):
            return layer("Repeated", units=shape[-1], times=d.choice([1, 2]))
        return layer("Chosen", self.body(shape))

    # -- around the whole ------------------------------------------------------------------------------

    def plain(self, call, shape):
        """The network with something in it that is no HybridBlock."""
        d = self.d
        kind = self.turn if self.turn in PLAIN else d.choice(PLAIN)
        if kind == "apart":
            return layer("row", call, layer("apart", self.body(shape), self.body(shape), axis=1))
        if kind == "PlainUnrolled":
            if len(shape) != 2 or shape[0] > recurrent.LONGEST:
                call, shape = layer("chain", call, *into((3, 4))), (3, 4)
            cells = [recurrent.any_cell(d, shape[1], shape[1], plain=True) for _ in range(2)]
            return layer("row", call, layer("PlainUnrolled", layer("stacked", *cells, plain=True), length=shape[0]))
        if kind == "nn.Lambda":
            function = d.choice(["tanh", Code("lambda x: x * mx.nd.sigmoid(x)")])
            return layer("row", call, layer("nn.Lambda", function=function))
        return layer("row", call, *[self.body(shape) for _ in range(d.choice([1, 2]))])

    def lossy(self, call, shape):
        """The network with a loss, and the labels."""
        d = self.d
        for wanted in (shape, (3, 4), (4,)):
            before = call if wanted == shape else layer("chain", call, *into(wanted))
            for _ in range(TRIES):
                loss = LOSSES[self.turn if self.turn in LOSSES else d.choice([*LOSSES])](d, wanted)
                if loss is not None:
                    return layer("WithLoss", before, loss[0]), loss[1]
        raise AssertionError(f"{self.turn} takes none of these shapes")

    def pair(self, call):
        """A network of two inputs."""
        d = self.d
        shape = d.choice(SHAPES[d.choice([1, 2, 3])])
        return layer("Pair", call, self.chain(shape, 1)[0], units=d.choice([1, 3])), [Input(shape)]


def into(shape):
    """Draw layers that map samples of any shape to this shape."""
    turned = Code(f"lambda F, x: F.reshape(x, shape=(0, {', '.join(map(str, shape))}))")
    return layer("nn.Dense", units=prod(shape)), layer("nn.HybridLambda", function=turned)


def draws(call, *names):
    """Return whether a call contains a layer (among ``names``) that draws random numbers in training."""
    return any(
        key in DRAWS and value and each.name in (names or [each.name])
        for each in call.walk()
        for key, value in each.options
    )


def loose(call):
    """Return whether graphs draw different random numbers: for each step of a cell, or in a loop."""
    return draws(call, *recurrent.CELLS) or any(draws(each) for each in call.walk() if each.name in LOOPS)


def meets(call):
    """Return whether a call combines the samples of a batch."""
    lengths = any(each.name == "WithLengths" or ("lengths", True) in each.options for each in call.walk())
    return is_a(call, *MEETING) or lengths


OFTEN = {
    "nn.HybridLambda": 6, "nn.Dense": 5, "nn.Conv1D": 5, "nn.Conv2D": 5, "nn.Conv3D": 5, "nn.Conv2DTranspose": 2,
    "nn.BatchNorm": 3, "rnn.LSTM": 2, "rnn.GRU": 2,
}  # fmt: skip
"""The number of times that some layers with more forms are drawn; all others are drawn once."""
NAMED = [name for name in LAYERS for _ in range(OFTEN.get(name, 1))]
TABLES = ("nn.Embedding",)
PLAIN = ("row", "apart", "nn.Lambda", "PlainUnrolled")
TURNS = [*LAYERS, *LOSSES, *TABLES, *PLAIN]
"""The layers that occur in at least one of a number of consecutive networks."""
TRIES = 20
__all__ = ["LAYERS", "LOSSES", "Layer", "draw", "draws", "meets", "shape_of"]
