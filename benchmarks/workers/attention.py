"""Milliseconds of attention with 8 heads of 64, by length: forward, and with the gradients (run by turns.py)."""

import importlib
import json
import sys
import time

import numpy as np

HEADS, SIZE = 8, 64


def mxnet_calls(mx, numbers):
    """Return the forward and the training step of a hybridized block."""

    class Attention(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, q, k, v):
            return F.batch_dot(F.softmax(F.batch_dot(q * SIZE**-0.5, k, transpose_b=True)), v)

    net = Attention()
    net.hybridize(static_alloc=True, static_shape=True)
    arrays = [mx.nd.array(each) for each in numbers]
    for each in arrays:
        each.attach_grad()

    def step():
        with mx.autograd.record():
            out = net(*arrays)
        out.backward()
        for each in arrays:
            each.grad.wait_to_read()

    return lambda: net(*arrays).wait_to_read(), step


def torch_calls(torch, numbers):
    """Return the same calls, with scaled_dot_product_attention."""
    arrays = [torch.from_numpy(each[None]).requires_grad_() for each in numbers]
    attention = torch.nn.functional.scaled_dot_product_attention

    def step():
        attention(*arrays).sum().backward()
        for each in arrays:
            each.grad = None

    def forward():
        with torch.no_grad():
            attention(*arrays)

    return forward, step


def main():
    """Measure one system."""
    name = sys.argv[1]
    make = torch_calls if name == "torch" else mxnet_calls
    figures = {}
    for length in (512, 1024, 2048, 4096):
        numbers = np.random.default_rng(0).standard_normal((3, HEADS, length, SIZE)).astype("float32")
        for kind, call in zip(("forward", "step"), make(importlib.import_module(name), numbers), strict=True):
            call()
            best = float("inf")
            for _ in range(3):
                start = time.perf_counter()
                call()
                best = min(best, time.perf_counter() - start)
            figures[f"{kind} {length}"] = 1e3 * best
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
