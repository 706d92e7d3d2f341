"""An ONNX file, written and read."""

import tempfile
from pathlib import Path

import flowmx as mx
from flowmx.contrib import onnx

net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
params = {"fc_weight": mx.nd.ones((2, 3))}
with tempfile.TemporaryDirectory() as folder:
    path = onnx.export_model(net, params, [(1, 3)], onnx_file_path=str(Path(folder) / "net.onnx"))
    symbol, arg_params, aux_params = onnx.import_model(path)
assert len(symbol.list_outputs()) == 1 and len(arg_params) == 1 and not aux_params
