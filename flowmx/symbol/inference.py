"""Inference of the shapes and dtypes of a symbol: the methods ``infer_shape`` and ``infer_type``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import Shape, ShapeOrNone
from flowmx.semantics import semantics
from flowmx.suggestions import did_you_mean

Dtypes: TypeAlias = list[type[np.generic]]
PartialDtypes: TypeAlias = tuple[
    list[type[np.generic] | None], list[type[np.generic] | None], list[type[np.generic] | None]
]


class Inference:
    """The inference methods of a symbol."""

    __slots__ = ()
    entries: tuple[Entry, ...]

    def nodes(self) -> list[Node]:
        raise NotImplementedError

    def _variables(self) -> tuple[list[Node], list[Node]]:
        raise NotImplementedError

    def infer_shape(
        self, *args: Sequence[int] | None, **kwargs: Sequence[int]
    ) -> tuple[list[Shape] | None, list[Shape] | None, list[Shape] | None]:
        """Infer the shapes of arguments, outputs and auxiliary states from those of some arguments.

        Args:
            *args: shapes in the order of ``list_arguments`` (None: unknown), or
            **kwargs: shapes by name; 0 means an unknown length.

        Returns:
            three lists, or three None if the shapes are not sufficient.

        Raises:
            ShapeError: the shapes contradict each other; the message names the node, its inputs and the user's line.
            ParameterError: the symbol has no variable with one of the names.
        """
        self._check_names("infer_shape", kwargs)
        shapes = self._infer_shape(args, kwargs)
        if not all(infer.complete(shape) for group in shapes for shape in group):
            return None, None, None
        arguments, outputs, auxiliary = shapes
        return arguments, outputs, auxiliary  # type: ignore[return-value]  # all complete, checked above

    def infer_shape_partial(
        self, *args: Sequence[int] | None, **kwargs: Sequence[int]
    ) -> tuple[list[ShapeOrNone], list[ShapeOrNone], list[ShapeOrNone]]:
        """Infer shapes as :meth:`infer_shape`, with unknown lengths as 0 (an unknown shape as the empty tuple).

        Inside :func:`mx.np_shape`, where 0 is a length, unknown lengths are -1, and an unknown shape is None.
        """

        def public(shape: ShapeOrNone) -> ShapeOrNone:
            if semantics.get().shape:
                return shape
            return () if shape is None else tuple(max(0, n) for n in shape)

        self._check_names("infer_shape_partial", kwargs)
        arguments, outputs, auxiliary = self._infer_shape(args, kwargs)
        return [public(s) for s in arguments], [public(s) for s in outputs], [public(s) for s in auxiliary]

    def _check_names(self, function: str, names: Iterable[str]) -> None:
        variables = [node.name for node in self.nodes() if node.is_variable]
        for other in set(names).difference(variables):
            raise ParameterError(
                f"{function}: the symbol has no variable {other!r}, only {', '.join(variables)}"
                f"{did_you_mean(other, variables)}"
            )

    def _infer_shape(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[list[ShapeOrNone], list[ShapeOrNone], list[ShapeOrNone]]:
        arguments, auxiliary = self._variables()
        variable_shapes = {
            node: None if shape is None else _with_unknown(node.name, shape)
            for node, shape in _values_by_node("infer_shape", arguments, auxiliary, args, kwargs).items()
        }
        shapes = infer.infer_shapes(self.nodes(), variable_shapes)
        return (
            [shapes[Entry(node, 0)] for node in arguments],
            [shapes[entry] for entry in self.entries],
            [shapes[Entry(node, 0)] for node in auxiliary],
        )

    def infer_type(self, *args: object, **kwargs: object) -> tuple[Dtypes, Dtypes, Dtypes] | tuple[None, None, None]:
        """Infer the dtypes of arguments, outputs and auxiliary states, as NumPy's type objects.

        Returns:
            three lists, or three None if the dtypes are not sufficient (unknown ones are bound as float32).

        Raises:
            TypeInferenceError: the dtypes contradict each other.
        """
        types = self.infer_type_partial(*args, **kwargs)
        is_complete = not any(None in group for group in types)
        return cast("tuple[Dtypes, Dtypes, Dtypes]", types) if is_complete else (None, None, None)

    def infer_type_partial(self, *args: object, **kwargs: object) -> PartialDtypes:
        """Infer dtypes as :meth:`infer_type`, with None for unknown ones."""
        self._check_names("infer_type", kwargs)
        arguments, auxiliary = self._variables()
        variable_dtypes = {
            node: None if value is None else as_dtype(value)
            for node, value in _values_by_node("infer_type", arguments, auxiliary, args, kwargs).items()
        }
        dtypes = infer.partial_types(self.nodes(), variable_dtypes)

        def public(entries: Iterable[Entry]) -> list[type[np.generic] | None]:
            return [None if (dtype := dtypes[entry]) is None else dtype.type for entry in entries]

        return (
            public(Entry(node, 0) for node in arguments),
            public(self.entries),
            public(Entry(node, 0) for node in auxiliary),
        )


def _with_unknown(variable: str, shape: Any) -> Shape:
    try:
        lengths = tuple(int(n) for n in ([shape] if isinstance(shape, (int, np.integer)) else shape))
    except (TypeError, ValueError):
        raise ShapeError(f"the shape of {variable!r} is {shape!r}, expected ints") from None
    least = 0 if semantics.get().shape else 1  # NumPy's shapes may have lengths of 0
    return tuple(n if n >= least else -1 for n in lengths)


def _values_by_node(
    function: str,
    arguments: Sequence[Node],
    auxiliary: Sequence[Node],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> dict[Node, Any]:
    if args and kwargs:
        raise TypeError(f"{function}: pass values by position or by name, not both")
    if len(args) > len(arguments):
        raise TypeError(f"{function}: {len(args)} values were given, the symbol has {len(arguments)} arguments")
    if args:
        return dict(zip(arguments, args, strict=False))
    # Other names are ignored, as in MXNet's simple_bind: for example a label shape for a network without a loss.
    return {node: kwargs[node.name] for node in (*arguments, *auxiliary) if node.name in kwargs}
