"""Backends of ``optimize_for`` and ``hybridize``: partitioners and passes over whole graphs, by name.

``default`` and ``default_v2`` choose operators by name, as MXNet's backends of these names do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from flowmx.engine.origin import warn_user
from flowmx.errors import MXNetError
from flowmx.graph.quantizing.fuse import fused
from flowmx.ops.registry.operators import lookup
from flowmx.suggestions import did_you_mean
from flowmx.symbol.partition import Candidate, Partitioner, partitioned
from flowmx.symbol.symbol import Symbol

__all__ = ["check_backend", "optimized", "register_partitioner", "register_pass", "set_op_names"]

Pass = Callable[[Symbol, dict[str, Any], dict[str, Any], dict[str, Any]], Symbol]
P = TypeVar("P", bound=type[Partitioner])
F = TypeVar("F", bound=Pass)
backends: dict[str, type[Partitioner] | Pass] = {}
"""Partitioners and passes by their names."""
_op_names: dict[str, list[str]] = {}
_FUSED = "MKLDNN_QUANTIZE"
_BUILT_IN = (_FUSED, "MKLDNN", "NONE")
"""MXNet's names for what flowmx does by itself when a graph is bound, beside the one for quantization."""
_warned: set[tuple[str, int]] = set()


def register_partitioner(backend: str) -> Callable[[P], P]:
    """Register a class of partitioners as a backend of ``optimize_for`` and ``hybridize``; a decorator.

    Args:
        backend: its name; what was registered by it before is replaced.

    Raises:
        TypeError: the name is no text, or the class no :class:`Partitioner`.
    """

    def is_such(cls: Any) -> bool:
        return isinstance(cls, type) and issubclass(cls, Partitioner)

    return _registering("register_partitioner", backend, is_such, "a subclass of mx.sym.Partitioner")


def register_pass(backend: str) -> Callable[[F], F]:
    """Register a function that changes whole graphs, as a backend likewise; a decorator.

    The function is called with a symbol, the arrays given for its arguments and for its auxiliary states, by name, and
    the further keywords of ``optimize_for``; it returns a symbol. Arrays that it adds to these dicts are for variables
    that it has made, and the caller finds them in its own.

    Args:
        backend: its name; what was registered by it before is replaced.

    Raises:
        TypeError: the name is no text, or what it is for can not be called.

    Example:
        >>> @mx.sym.register_pass("with_softmax")
        ... def with_softmax(symbol, args, aux, options):
        ...     return mx.sym.softmax(symbol, axis=options.get("axis", -1))
        >>> net.optimize_for("with_softmax", axis=1)
    """
    return _registering("register_pass", backend, callable, "a function of a symbol, args, aux and options")


def _registering(function: str, backend: Any, fits: Callable[[Any], bool], expected: str) -> Callable[[Any], Any]:
    if not isinstance(backend, str) or not backend:
        raise TypeError(f"{function}: the backend is {backend!r}, expected a name")

    def register(made: Any) -> Any:
        if not fits(made):
            raise TypeError(f"{function}: {made!r} was given, expected {expected}")
        backends[backend] = made
        return made

    return register


@register_partitioner("default")
class _ByName(Partitioner):
    """Choose operators by name, as the option ``op_names`` says, or else `set_op_names`."""

    backend = "default"

    def __init__(self, args: Mapping[str, Any], aux: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        super().__init__(args, aux, options)
        self._names = {_canonical(each) for each in options.get("op_names", _op_names.get(self.backend, ()))}

    def select(self, node: Candidate) -> bool:
        return node.op in self._names


@register_partitioner("default_v2")
class _ByNameToo(_ByName):
    """The same under another name."""

    backend = "default_v2"


def _canonical(called: str) -> str:
    try:
        return lookup(called).name
    except AttributeError:
        return called


def set_op_names(backend: str, names: Iterable[str] | None) -> None:
    """Say which operators ``default`` or ``default_v2`` choose; None: no longer any."""
    if names is None:
        _op_names.pop(backend, None)
    else:
        _op_names[backend] = list(names)


def check_backend(backend: Any) -> None:
    """Raise where a backend is unknown.

    Raises:
        MXNetError: there is no such.
    """
    if backend not in backends and backend not in _BUILT_IN:
        known = did_you_mean(str(backend), backends)
        raise MXNetError(f"there is no partitioner {backend!r}, only {', '.join(backends)}{known}")


def optimized(
    symbol: Symbol, backend: str, args: Any, aux: Any, options: Mapping[str, Any], **given: Any
) -> Symbol:  # fmt: skip
    """The graph as a backend has it; where that is unknown, the graph as it is, and a warning for each line.

    Args:
        symbol: the graph.
        backend: its name.
        args: arrays by name, or a list in the order of ``list_arguments``.
        aux: the same of ``list_auxiliary_states``.
        options: for the backend.
        **given: for :func:`flowmx.symbol.partition.partitioned`.

    Raises:
        MXNetError: a replacement of a region has another number of outputs.
        TypeError: a pass returns no symbol.
        ValueError: a list of arrays has another length than the names, or a pass adds arrays to it.
        ShapeError, TypeInferenceError: what is given contradicts the graph.
    """
    if backend == _FUSED:
        return Symbol(fused(symbol._entries))
    found: Any = backends.get(backend)
    if found is None:
        try:
            check_backend(backend)
        except MXNetError as error:
            warn_user(f"{error}: the graph stays as it is", _warned)
        return symbol
    arrays = _named("args", args, symbol.list_arguments()), _named("aux", aux, symbol.list_auxiliary_states())
    if isinstance(found, type) and issubclass(found, Partitioner):
        return type(symbol)(partitioned(symbol, found(*arrays, options), **given))
    before = [set(each) for each in arrays]
    made = found(symbol, *arrays, dict(options))
    if not isinstance(made, Symbol):
        raise TypeError(f"optimize_for: the pass {backend!r} returned {made!r}, expected a symbol")
    for what, callers, table, old in zip(("args", "aux"), (args, aux), arrays, before, strict=True):
        _give_back(backend, what, callers, {key: each for key, each in table.items() if key not in old})
    return made


def _named(what: str, arrays: Any, names: Sequence[str]) -> dict[str, Any]:
    if arrays is None or isinstance(arrays, Mapping):
        return {key: each for key, each in (arrays or {}).items() if each is not None}
    if len(arrays) != len(names):
        raise ValueError(f"optimize_for: {what} has {len(arrays)} arrays, expected {len(names)}: {', '.join(names)}")
    return dict(zip(names, arrays, strict=True))


def _give_back(backend: str, what: str, callers: Any, new: Mapping[str, Any]) -> None:
    """Put arrays that a pass has added where the caller finds them."""
    if isinstance(callers, MutableMapping):
        callers.update(new)
    elif new:
        raise ValueError(f"optimize_for: the pass {backend!r} adds {', '.join(new)} to {what}: give {what} as a dict")
