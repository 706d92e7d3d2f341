"""Lists of parameters: from the arguments of a trainer, and the arrays that it reads from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowmx.errors import ArgumentKindError
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.parameter_dict import ParameterDict

_list_data, _list_grad = Parameter.list_data, Parameter.list_grad


def have_builtin_lists(numbered: Sequence[tuple[int, Parameter]]) -> bool:
    """Return whether the methods by which MXNet's trainer reads dense parameters are not overridden."""
    is_plain = Parameter.list_data is _list_data and Parameter.list_grad is _list_grad
    for _, param in numbered:
        attributes, kind = param.__dict__, type(param)
        if "list_data" in attributes or "list_grad" in attributes or not (is_plain and kind is Parameter):
            is_class = kind.list_data is _list_data and kind.list_grad is _list_grad
            is_instance = "list_data" not in attributes and "list_grad" not in attributes
            if not (is_class and is_instance) and param._stype == "default":
                return False
    return True


def as_list(params: object) -> list[Parameter]:
    """Return a trainer's parameters as a list; those of a dict in the order of its keys.

    Raises:
        TypeError: the argument is something else, or holds something else than parameters.
    """
    if isinstance(params, (ParameterDict, Mapping)):
        params = [params[key] for key in sorted(params.keys())]
    if not isinstance(params, (list, tuple)):
        hint = ": pass net.collect_params()" if hasattr(params, "collect_params") else ""
        raise ArgumentKindError(
            f"Trainer: params is {type(params).__name__}, expected a dict or list of Parameters{hint}"
        )
    for param in params:
        if not isinstance(param, Parameter):
            raise TypeError(
                f"Trainer: params holds {type(param).__name__}, expected Parameters: pass net.collect_params()"
            )
    return list(params)
