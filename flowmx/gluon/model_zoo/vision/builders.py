"""Construction of the zoo's models, and loading of their pretrained weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flowmx.devices import Context
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo import model_store
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.parameter import Contexts

N = TypeVar("N", bound=HybridBlock)
"""A network with ``features`` and ``output``."""


def load_pretrained(net: N, name: str, pretrained: bool, ctx: Contexts = None, root: Root = None) -> N:
    """Return a network, after loading its published weights if ``pretrained`` is set.

    Args:
        net: the network.
        name: its name in the zoo.
        pretrained: whether to load weights.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
    """
    if pretrained:
        net.load_parameters(model_store.get_model_file(name, root), ctx=Context("cpu", 0) if ctx is None else ctx)
    return net


def model_function(
    function_name: str, make: Callable[..., N], *sizes: float | str, doc: str, **fixed: bool
) -> Callable[..., N]:
    """Return a function that makes a model of a fixed size.

    Args:
        function_name: the function's name.
        make: makes a model from its size, ``pretrained``, ``ctx``, ``root`` and arguments of the model.
        *sizes: the first arguments of ``make``.
        doc: the first line of the docstring.
        **fixed: further arguments of ``make``.
    """

    def function(**kwargs: Any) -> N:
        return make(*sizes, **{**kwargs, **fixed})

    function.__name__ = function.__qualname__ = function_name
    function.__module__ = make.__module__
    function.__doc__ = f"""{doc}

    Args:
        **kwargs: ``pretrained``: load the weights that MXNet published, downloading them if needed (default:
            False); ``ctx``: their device or devices; ``root``: the folder of the file (default: ``models`` in the
            setting ``home``); and arguments of the model, such as ``classes``.
    """
    return function
