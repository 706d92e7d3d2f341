"""Backends of ``optimize_for`` and ``hybridize``: partitioners and passes over whole graphs, by name.

``default`` and ``default_v2`` select operators by name, like MXNet's backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from flowmx.engine.origin import warn_user
from flowmx.errors import MXNetError
from flowmx.graph.quantizing.fuse_layers import fuse_layers
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import lookup
from flowmx.suggestions import did_you_mean
from flowmx.symbol.partition import Candidate, Partitioner, partition
from flowmx.symbol.symbol import Symbol

__all__ = ["check_backend", "optimize", "register_partitioner", "register_pass", "set_op_names"]

Pass = Callable[[Symbol, dict[str, Any], dict[str, Any], dict[str, Any]], Symbol]
P = TypeVar("P", bound=type[Partitioner])
F = TypeVar("F", bound=Pass)
backends: dict[str, type[Partitioner] | Pass] = {}
"""Partitioners and passes by name."""
_op_names: dict[str, list[str]] = {}
_FUSED = "MKLDNN_QUANTIZE"
_BUILT_IN = (_FUSED, "MKLDNN", "NONE")
"""MXNet's names for optimizations that flowmx does when it binds a graph, and for quantization."""
_warned: set[tuple[str, int]] = set()


def register_partitioner(backend: str) -> Callable[[P], P]:
    """Register a class of partitioners as a backend of ``optimize_for`` and ``hybridize`` (a decorator).

    Args:
        backend: its name; an earlier registration is replaced.

    Raises:
        TypeError: the name is not a string, or the class is not a :class:`Partitioner`.
    """

    def is_partitioner(cls: object) -> bool:
        return isinstance(cls, type) and issubclass(cls, Partitioner)

    return _register("register_partitioner", backend, is_partitioner, "a subclass of mx.sym.Partitioner")


def register_pass(backend: str) -> Callable[[F], F]:
    """Register a function that changes whole graphs as a backend (a decorator).

    The function is called with a symbol, the arrays for its arguments and for its auxiliary states, by name, and the
    additional keywords of ``optimize_for``; it returns a symbol. Arrays that it adds to these dicts belong to variables
    that it created, and are added to the caller's dicts.

    Args:
        backend: its name; an earlier registration is replaced.

    Raises:
        TypeError: the name is not a string, or the function is not callable.

    Example:
        >>> @mx.sym.register_pass("with_softmax")
        ... def with_softmax(symbol, args, aux, options):
        ...     return mx.sym.softmax(symbol, axis=options.get("axis", -1))
        >>> net.optimize_for("with_softmax", axis=1)
    """
    return _register("register_pass", backend, callable, "a function of a symbol, args, aux and options")


def _register(function: str, backend: Any, fits: Callable[[Any], bool], expected: str) -> Callable[[Any], Any]:
    if not isinstance(backend, str) or not backend:
        raise TypeError(f"{function}: the backend is {backend!r}, expected a name")

    def register(value: Any) -> Any:
        if not fits(value):
            raise TypeError(f"{function}: {value!r} was passed, expected {expected}")
        backends[backend] = value
        return value

    return register


@register_partitioner("default")
class _NamedOperators(Partitioner):
    """Selects operators by name, from the option ``op_names`` or :func:`set_op_names`."""

    backend = "default"

    def __init__(self, args: Mapping[str, NDArray], aux: Mapping[str, NDArray], options: Mapping[str, Any]) -> None:
        super().__init__(args, aux, options)
        self._names = {_canonical(op_name) for op_name in options.get("op_names", _op_names.get(self.backend, ()))}

    def select(self, node: Candidate) -> bool:
        return node.op in self._names


@register_partitioner("default_v2")
class _NamedOperatorsV2(_NamedOperators):
    """The same backend under another name."""

    backend = "default_v2"


def _canonical(name: str) -> str:
    try:
        return lookup(name).name
    except AttributeError:
        return name


def set_op_names(backend: str, names: Iterable[str] | None) -> None:
    """Set the operators that ``default`` or ``default_v2`` select; None clears them."""
    if names is None:
        _op_names.pop(backend, None)
    else:
        _op_names[backend] = list(names)


def check_backend(backend: object) -> None:
    """Raise an error if a backend is unknown.

    Raises:
        MXNetError: there is no such backend.
    """
    if backend not in backends and backend not in _BUILT_IN:
        hint = did_you_mean(str(backend), backends)
        raise MXNetError(f"there is no partitioner {backend!r}, only {', '.join(backends)}{hint}")


def optimize(
    symbol: Symbol, backend: str, args: object, aux: object, options: Mapping[str, Any], **inference: Any
) -> Symbol:  # fmt: skip
    """Return the graph optimized for a backend; for an unknown one, the graph itself, with a warning for each line.

    Args:
        symbol: the graph.
        backend: its name.
        args: arrays by name, or a list in the order of ``list_arguments``.
        aux: arrays of auxiliary states by name, or a list in the order of ``list_auxiliary_states``.
        options: the options of the backend.
        **inference: keyword arguments of :func:`flowmx.symbol.partition.partition`.

    Raises:
        MXNetError: the number of outputs of a region's replacement differs.
        TypeError: a pass does not return a symbol.
        ValueError: the length of a list of arrays differs from that of the names, or a pass adds arrays to it.
        ShapeError, TypeInferenceError: the shapes or dtypes contradict the graph.
    """
    if backend == _FUSED:
        return Symbol(fuse_layers(symbol.entries))
    implementation: Any = backends.get(backend)
    if implementation is None:
        try:
            check_backend(backend)
        except MXNetError as error:
            warn_user(f"{error}: the graph is unchanged", _warned)
        return symbol
    arrays = (
        _arrays_by_name("args", args, symbol.list_arguments()),
        _arrays_by_name("aux", aux, symbol.list_auxiliary_states()),
    )
    if isinstance(implementation, type) and issubclass(implementation, Partitioner):
        return type(symbol)(partition(symbol, implementation(*arrays, options), **inference))
    before = [set(table) for table in arrays]
    result = implementation(symbol, *arrays, dict(options))
    if not isinstance(result, Symbol):
        raise TypeError(f"optimize_for: the pass {backend!r} returned {result!r}, expected a symbol")
    for kind, caller_arrays, table, old in zip(("args", "aux"), (args, aux), arrays, before, strict=True):
        _add_new_arrays(backend, kind, caller_arrays, {key: array for key, array in table.items() if key not in old})
    return result


def _arrays_by_name(kind: str, arrays: Any, names: Sequence[str]) -> dict[str, Any]:
    if arrays is None or isinstance(arrays, Mapping):
        return {key: array for key, array in (arrays or {}).items() if array is not None}
    if len(arrays) != len(names):
        raise ValueError(f"optimize_for: {kind} has {len(arrays)} arrays, expected {len(names)}: {', '.join(names)}")
    return dict(zip(names, arrays, strict=True))


def _add_new_arrays(backend: str, kind: str, caller_arrays: object, new: Mapping[str, object]) -> None:
    """Add arrays that a pass has created to the caller's dict."""
    if isinstance(caller_arrays, MutableMapping):
        caller_arrays.update(new)
    elif new:
        raise ValueError(f"optimize_for: the pass {backend!r} adds {', '.join(new)} to {kind}: pass {kind} as a dict")
