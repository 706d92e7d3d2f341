"""The smallest network that still shows what was found: layers, arguments, steps and inputs are left out one by one."""

from collections.abc import Iterator
from dataclasses import replace

from tests.modes.network import Layer, Network, Step

ATTEMPTS = 400


def shrunk(network, shows, attempts=ATTEMPTS):
    """A network from which nothing can be left out.

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
    """Networks with a little less, the ones with much less first."""
    for number in range(len(network.steps)) if len(network.steps) > 1 else ():
        yield replace(network, steps=network.steps[:number] + network.steps[number + 1 :])
    for made in _layers(network.layer):
        yield replace(network, layer=made, inputs=_inputs(network, made))
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
                given = replace(each, shape=shape)
                yield replace(network, inputs=(*network.inputs[:number], given, *network.inputs[number + 1 :]))


def _inputs(network, made):
    """The inputs that a network needs, whose loss or second branch may be gone."""
    same = made.name == network.layer.name or made.name in ("row", "chain")
    return network.inputs if same and made.name in ("WithLoss", "Pair") else network.inputs[:1]


def _layers(made: Layer) -> Iterator[Layer]:
    """Calls with a little less."""
    yield from made.children
    if len(made.children) > 1:
        for number in range(len(made.children)):
            yield replace(made, children=made.children[:number] + made.children[number + 1 :])
    for number, child in enumerate(made.children):
        for other in _layers(child):
            yield replace(made, children=(*made.children[:number], other, *made.children[number + 1 :]))
    for number, (name, value) in enumerate(made.given):
        before, after = made.given[:number], made.given[number + 1 :]
        yield replace(made, given=(*before, *after))
        for other in _simpler(value):
            yield replace(made, given=(*before, (name, other), *after))


def _simpler(value):
    """Values that are simpler."""
    if isinstance(value, bool) or not isinstance(value, (int, tuple)):
        return
    if isinstance(value, int):
        yield from sorted({1, value // 2, value - 1} & set(range(1, max(value, 1))))
    elif len(set(value)) == 1:
        yield value[0]
    else:
        yield from dict.fromkeys(value)
