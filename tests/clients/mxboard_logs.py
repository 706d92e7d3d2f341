"""mxboard 0.1: the TensorBoard files of a training run, read back."""

import struct
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np
from filling import values


def events():
    """Scalars, histograms, pictures, text and a graph, as the bytes of a file of events."""
    from mxboard import SummaryWriter

    folder = tempfile.mkdtemp()
    x = mx.nd.array(values("x", (100,)))
    with SummaryWriter(logdir=folder) as writer:
        for step in range(3):
            writer.add_scalar("loss", x[step].asscalar(), global_step=step)
            writer.add_scalar("accuracy", {"train": 0.5, "valid": float(step)}, global_step=step)
        writer.add_histogram("weights", x, bins=10)
        writer.add_image("picture", mx.nd.array(values("p", (3, 8, 8)).clip(0, 1)))
        writer.add_text("note", "hello")
        writer.add_pr_curve("curve", (x > 0), mx.nd.sigmoid(x), num_thresholds=9)
        net = mx.gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(mx.gluon.nn.Dense(4, activation="relu"), mx.gluon.nn.Dense(2))
        net.initialize()
        net.hybridize()
        net(mx.nd.ones((1, 3)))
        writer.add_graph(net)
        writer.add_embedding("points", mx.nd.array(values("e", (5, 4))), labels=mx.nd.arange(5))
    written = [path for path in Path(folder).rglob("*") if path.is_file()]
    logs = [path for path in written if "events" in path.name]
    contents = {path.name: np.frombuffer(path.read_bytes(), "uint8") for path in written if path not in logs}
    events = sorted(line for path in logs for line in lines(path.read_bytes()))
    return contents | {"events": np.frombuffer("\n".join(events).encode(), "uint8")}


def lines(data):
    """Parse events of TensorBoard: the step and tags with scalar values, or the nodes of a graph."""
    from mxboard.proto.event_pb2 import Event
    from mxboard.proto.graph_pb2 import GraphDef

    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
        for each in event.summary.value:
            yield f"{event.step} {each.tag} {each.simple_value:.5f}"
        if event.graph_def:
            for node in GraphDef.FromString(event.graph_def).node:
                yield f"{node.name} {node.op} {list(node.input)}"


CASES = {"events": events}
