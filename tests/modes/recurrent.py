"""The table of recurrent layers and cells, for samples of shape (time, channels), or (time, channels, ...)."""

from typing import Any

from tests.modes.layers import drawn
from tests.modes.network import layer

CELLS: dict[str, Any] = {}
LONGEST = 3
"""The most steps that are unrolled."""


def cell(name):
    """Register a function from random choices and the numbers of inputs and outputs (None: any) to a cell."""

    def put(function):
        CELLS[name] = function
        return function

    return put


def units(d, outputs):
    return outputs or d.choice([1, 2, 3, 4, 8])


# -- layers -----------------------------------------------------------------------------------------------


def recurrent_layer(name, activations=(), is_lstm=False):
    def function(d, shape, keep):
        time, channels = shape
        both = d.often(0.4) and (not keep or channels % 2 == 0)
        hidden = channels // (1 + both) if keep else units(d, None)
        projection = d.maybe(d.randint(1, hidden), often=0.3) if is_lstm and not keep else None
        bound = d.maybe(0.3, 0.8, often=0.2) if is_lstm else None
        batch_first, way = d.often(0.5), d.choice(["alone", "alone", "states", "lengths"])
        call = layer(
            name, hidden_size=hidden, num_layers=d.maybe(2, often=0.4), bidirectional=both or None,
            activation=d.choice(activations) if activations else None, projection_size=projection,
            state_clip_min=bound and -bound, state_clip_max=bound, dropout=d.maybe(0.4, often=0.1),
            layout="NTC" if batch_first and way != "lengths" else None, input_size=d.maybe(channels, often=0.2),
            use_sequence_length=True if way == "lengths" else None,
        )  # fmt: skip
        if way == "lengths":
            return layer("TimeFirst", layer("WithLengths", call, length=time))
        if way == "states":
            call = layer("WithStates", call, batch_axis=0 if batch_first else 1)
        return call if batch_first else layer("TimeFirst", call)

    drawn(name, 2)(function)


recurrent_layer("rnn.RNN", activations=("relu", "tanh"))
recurrent_layer("rnn.LSTM", is_lstm=True)
recurrent_layer("rnn.GRU")


# -- cells ------------------------------------------------------------------------------------------------


@cell("rnn.RNNCell")
def rnn_cell(d, inputs, outputs):
    activation = d.maybe("relu", "sigmoid", "softsign", often=0.4)
    return layer("rnn.RNNCell", hidden_size=units(d, outputs), activation=activation)


@cell("rnn.LSTMCell")
def lstm_cell(d, inputs, outputs):
    return layer(
        "rnn.LSTMCell", hidden_size=units(d, outputs), activation=d.maybe("relu", often=0.2),
        recurrent_activation=d.maybe("tanh", often=0.2), input_size=d.maybe(inputs, often=0.3),
    )  # fmt: skip


@cell("rnn.GRUCell")
def gru_cell(d, inputs, outputs):
    return layer("rnn.GRUCell", hidden_size=units(d, outputs))


@cell("contrib.rnn.LSTMPCell")
def lstmp_cell(d, inputs, outputs):
    return layer("contrib.rnn.LSTMPCell", hidden_size=units(d, None), projection_size=units(d, outputs))


@cell("rnn.HybridSequentialRNNCell")
def stack(d, inputs, outputs):
    middle = units(d, None)
    cells = [any_cell(d, inputs, middle, plain=True), any_cell(d, middle, outputs, plain=True)]
    if d.often(0.3):
        cells.insert(1, CELLS["rnn.DropoutCell"](d, middle, middle))
    return layer("stacked", *cells)


@cell("rnn.DropoutCell")
def dropout_cell(d, inputs, outputs):
    return layer("rnn.DropoutCell", rate=d.choice([0, 0.4])) if outputs in (inputs, None) else None


@cell("rnn.ZoneoutCell")
def zoneout_cell(d, inputs, outputs):
    inner = any_cell(d, inputs, outputs, plain=True)
    return layer(
        "rnn.ZoneoutCell", inner, zoneout_outputs=d.maybe(0.3, often=0.4), zoneout_states=d.maybe(0.3, often=0.4)
    )  # fmt: skip


@cell("rnn.ResidualCell")
def residual_cell(d, inputs, outputs):
    return layer("rnn.ResidualCell", any_cell(d, inputs, inputs, plain=True)) if outputs in (inputs, None) else None


@cell("rnn.BidirectionalCell")
def bidirectional_cell(d, inputs, outputs):
    if outputs is not None and outputs < 2:
        return None
    one = None if outputs is None else d.randrange(1, outputs)
    other = None if outputs is None else outputs - one
    return layer("rnn.BidirectionalCell", any_cell(d, inputs, one, plain=True), any_cell(d, inputs, other, plain=True))


@cell("contrib.rnn.VariationalDropoutCell")
def variational_dropout_cell(d, inputs, outputs):
    inner = any_cell(d, inputs, outputs, plain=True)
    rates = {f"drop_{which}": d.maybe(0.3, often=0.3) for which in ("inputs", "states", "outputs")}
    return layer("contrib.rnn.VariationalDropoutCell", inner, **rates)


PLAIN = ("rnn.RNNCell", "rnn.LSTMCell", "rnn.GRUCell", "contrib.rnn.LSTMPCell")


def any_cell(d, inputs, outputs, plain=False):
    """Draw a cell; a plain one contains no other cells."""
    while True:
        call = CELLS[d.choice(PLAIN if plain else [*CELLS])](d, inputs, outputs)
        if call is not None:
            return call


def unrolled(name):
    def function(d, shape, keep):
        call = CELLS[name](d, shape[1], shape[1] if keep else None) if shape[0] <= LONGEST else None
        if call is None:
            return None
        return layer(
            "Unrolled", call, length=shape[0], layout=d.maybe("TNC", often=0.4), merge=d.maybe(False, often=0.4),
            lengths=d.maybe(True, often=0.3), states=d.maybe(True, often=0.4),
        )  # fmt: skip

    drawn(name, 2)(function)


for each in CELLS:
    unrolled(each)


# -- cells that convolve ----------------------------------------------------------------------------------


def convolutional_cell(name, axes):
    def function(d, shape, keep):
        time, channels, *lengths = shape
        if time > LONGEST:
            return None
        kernel, dilation = d.choice([1, 3]), d.choice([1, 1, 2])
        pad = dilation * (kernel - 1) // 2
        if not keep and min(lengths) > dilation * (kernel - 1) and d.often(0.4):
            pad = 0
        call = layer(
            name, input_shape=(channels, *lengths), hidden_channels=channels if keep else d.choice([1, 2, 3]),
            i2h_kernel=kernel, h2h_kernel=d.choice([1, 3]), i2h_pad=pad or None,
            i2h_dilate=dilation if dilation > 1 else None, h2h_dilate=d.maybe(2, often=0.3),
            activation=d.maybe("relu", "sigmoid", often=0.3),
        )  # fmt: skip
        return layer("Unrolled", call, length=time, merge=d.maybe(False, often=0.4))

    drawn(name, axes + 2)(function)


for axes in (1, 2, 3):
    for kind in ("RNN", "LSTM", "GRU"):
        convolutional_cell(f"contrib.rnn.Conv{axes}D{kind}Cell", axes)
