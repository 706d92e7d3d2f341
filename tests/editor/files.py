"""Save and load arrays, networks and symbols."""

import tempfile
from pathlib import Path

import flowmx as mx

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    mx.nd.save(str(folder / "arrays"), {"a": mx.nd.ones((2,))})
    loaded = mx.nd.load(str(folder / "arrays"))
    assert isinstance(loaded, dict) and loaded["a"].shape == (2,)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, in_units=3))
    net.initialize()
    net.save_parameters(str(folder / "net.params"))
    net.load_parameters(str(folder / "net.params"), ctx=mx.cpu())
    net.hybridize()
    out = net(mx.nd.ones((1, 3)))
    net.export(str(folder / "net"))
    block = mx.gluon.SymbolBlock.imports(
        str(folder / "net-symbol.json"), ["data"], str(folder / "net-0000.params"), ctx=mx.cpu()
    )
    assert (block(mx.nd.ones((1, 3))) - out).asnumpy().max() == 0
