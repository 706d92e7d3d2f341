"""Compose symbols and infer shapes."""

import flowmx as mx

a, b = mx.sym.var("a"), mx.sym.Variable("b", shape=(3, 4))
c = mx.sym.broadcast_add(a, b) * 2 - mx.sym.sqrt(a)
both = mx.sym.Group([c, mx.sym.concat(a, b, dim=0)])
args, outs, _aux = both.infer_shape(a=(3, 4))
assert outs == [(3, 4), (6, 4)]
assert both.list_arguments() == ["a", "b"]
again = mx.sym.load_json(both.tojson())
assert again.list_outputs()[1].startswith("concat")
