"""Linear algebra."""

import flowmx as mx

a = mx.nd.array([[4.0, 0.0], [0.0, 9.0]])
root = mx.nd.linalg.potrf(a)
assert root.asnumpy().tolist() == [[2, 0], [0, 3]]
product = mx.nd.linalg.gemm2(a, a, transpose_b=True, alpha=0.5)
assert product.shape == (2, 2)
b, c = mx.sym.var("b"), mx.sym.var("c")
assert mx.sym.linalg.gemm2(b, c).list_arguments() == ["b", "c"]
