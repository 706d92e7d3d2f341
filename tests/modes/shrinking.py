"""Shrinking of networks with a fault: layers, arguments, steps and inputs are removed one by one."""

from collections.abc import Iterator
from dataclasses import replace

from tests.modes.network import Layer, Network, Step

ATTEMPTS = 400


def shrunk(network, shows, attempts=ATTEMPTS):
    """Shrink a network until nothing can be removed.

    Args:
        network: one that shows something.
        shows: says of a network whether it does.
        attempts: how many are tried.
    """
    again = True
    while again and attempts > 0:
        again = False
        for each in smaller(network):
            attempts -= 1
            if shows(each):
                network, again = each, True
                break
            if attempts <= 0:
                break
    return network


def smaller(network: Network) -> Iterator[Network]:
    """Iterate over slightly smaller networks, the smallest first."""
    for number in range(len(network.steps)) if len(network.steps) > 1 else ():
        yield replace(network, steps=network.steps[:number] + network.steps[number + 1 :])
    for call in _layers(network.layer):
        yield replace(network, layer=call, inputs=_inputs(network, call))
    if network.request != "write":
        yield replace(network, request="write")
    if network.optimizer != ("sgd", {"learning_rate": 0.01}):
        yield replace(network, optimizer=("sgd", {"learning_rate": 0.01}))
    for number, step in enumerate(network.steps):
        for other in (Step("predict", step.batch), Step("train", step.batch), Step(step.kind, step.batch - 1)):
            if other != step and other.batch and not (step.kind == "predict" and other.kind == "train"):
                yield replace(network, steps=(*network.steps[:number], other, *network.steps[number + 1 :]))
    for number, each in enumerate(network.inputs):
        for axis, length in enumerate(each.shape):
            for less in {1, length // 2, length - 1} - {0, length}:
                shape = (*each.shape[:axis], less, *each.shape[axis + 1 :])
                smaller_input = replace(each, shape=shape)
                yield replace(network, inputs=(*network.inputs[:number], smaller_input, *network.inputs[number + 1 :]))


def _inputs(network, call):
    """Return the inputs that a network needs after its loss or second branch was removed."""
    same = call.name == network.layer.name or call.name in ("row", "chain")
    return network.inputs if same and call.name in ("WithLoss", "Pair") else network.inputs[:1]


def _layers(call: Layer) -> Iterator[Layer]:
    """Iterate over slightly smaller calls."""
    yield from call.children
    if len(call.children) > 1:
        for number in range(len(call.children)):
            yield replace(call, children=call.children[:number] + call.children[number + 1 :])
    for number, child in enumerate(call.children):
        for other in _layers(child):
            yield replace(call, children=(*call.children[:number], other, *call.children[number + 1 :]))
    for number, (name, value) in enumerate(call.options):
        before, after = call.options[:number], call.options[number + 1 :]
        yield replace(call, options=(*before, *after))
        for other in _simpler(value):
            yield replace(call, options=(*before, (name, other), *after))


def _simpler(value):
    """Iterate over simpler values."""
    if isinstance(value, bool) or not isinstance(value, (int, tuple)):
        return
    if isinstance(value, int):
        yield from sorted({1, value // 2, value - 1} & set(range(1, max(value, 1))))
    elif len(set(value)) == 1:
        yield value[0]
    else:
        yield from dict.fromkeys(value)
