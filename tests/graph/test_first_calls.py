"""First calls: equal steps of an unrolled network are analysed once."""

import flowmx as mx
from flowmx.gluon import nn, rnn
from flowmx.graph.planning import workspace

STEPS = 12


class Unrolled(mx.gluon.HybridBlock):
    """LSTM cells, and a layer over their outputs."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.cells = rnn.HybridSequentialRNNCell()
            for cell in (rnn.ZoneoutCell(rnn.LSTMCell(8), zoneout_outputs=0.2), rnn.LSTMCell(8)):
                self.cells.add(cell)
            self.out = nn.Dense(3, flatten=False)

    def hybrid_forward(self, F, x):
        self.cells.reset()
        return self.out(self.cells.unroll(STEPS, x, layout="NTC", merge_outputs=True)[0])


def train():
    net = Unrolled()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    with mx.autograd.record():
        out = net(mx.nd.ones((4, STEPS, 8)))
    out.backward()
    mx.nd.waitall()


def test_workspace_sizes_are_computed_once_per_form(monkeypatch, tmp_path):
    requests, real = [], workspace.workspace_of

    def asking(device_type, op):
        ask = real(device_type, op)
        return None if ask is None else counted[ask]

    class Counted(dict):
        def __missing__(self, ask):
            self[ask] = lambda op, *laid: (requests.append((op, *map(tuple, laid))), ask(op, *laid))[1]
            return self[ask]

    counted = Counted()
    monkeypatch.setattr(workspace, "workspace_of", asking)
    with mx.engine.using(kernel_cache=str(tmp_path)):
        train()
    assert requests
    assert len(set(requests)) == len(requests)
    assert len(requests) < STEPS, "all steps are alike"
