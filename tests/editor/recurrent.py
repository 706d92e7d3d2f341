"""Recurrent layers and cells."""

from flowmx import gluon, nd

layer = gluon.rnn.LSTM(hidden_size=4, num_layers=2, layout="NTC")
layer.initialize()
out, states = layer(nd.ones((2, 5, 3)), layer.begin_state(batch_size=2))
assert out.shape == (2, 5, 4) and len(states) == 2
cell = gluon.rnn.GRUCell(4)
cell.initialize()
outputs, last = cell.unroll(5, nd.ones((2, 5, 3)), layout="NTC", merge_outputs=True)
assert outputs.shape == (2, 5, 4) and last[0].shape == (2, 4)
