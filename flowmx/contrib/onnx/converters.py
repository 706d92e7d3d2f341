"""The converters by operator, of both directions.

An operator that ONNX has under a name of its own says so (``Operator.onnx``), and is written and read by the converter
of its base class. Each family of operators (``families/``) enters the converters of base classes here, and those of
operators that need more than a name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from flowmx.errors import MXNetError
from flowmx.ops.registry.operators import Operator, lookup, registered

if TYPE_CHECKING:
    from flowmx.contrib.onnx.import_constants import Known, Values
    from flowmx.contrib.onnx.node_export import NodeExport
    from flowmx.contrib.onnx.node_import import NodeImport
    from flowmx.symbol import Symbol

    Exporter = Callable[[NodeExport], str | Sequence[str]]
    Importer = Callable[[NodeImport], Symbol | Known | Sequence[Symbol | Known | Values]]

C = TypeVar("C")
NEWEST = 21
"""The newest opset that models are written in; reading takes later ones too."""
OLDEST = 13
"""The oldest opset that is written, and the oldest that reading is tested with."""

_exporters: dict[str | type[Operator], Exporter] = {}
_importers: dict[str | type[Operator], Importer] = {}


class ONNXError(MXNetError, ValueError):
    """A model that can not be written as ONNX, or read from it; names every node in the way, and why."""


class Unsupported(Exception):
    """Raised by a converter: why this node, with these attributes, has no counterpart."""


def exports(*operators: str | type[Operator]) -> Callable[[Exporter], Exporter]:
    """Enter the function that writes these operators (by MXNet's names), or those of a base class with an ``onnx``."""

    def enter(converter: Exporter) -> Exporter:
        names = [lookup(each).name if isinstance(each, str) else each for each in operators]
        _exporters.update(dict.fromkeys(names, converter))
        return converter

    return enter


def imports(*kinds: str | type[Operator]) -> Callable[[Importer], Importer]:
    """Enter the function that makes symbols of these ONNX operators, or of those that a base class's operators name."""

    def enter(converter: Importer) -> Importer:
        _importers.update(dict.fromkeys(kinds, converter))
        return converter

    return enter


@cache
def exporters() -> dict[str, Exporter]:
    """Every operator that can be written, by its registered name."""
    _load()
    return _completed(
        _exporters, {cls.name: cls for cls in registered().values() if cls.onnx and not cls.traits.hidden}
    )


@cache
def importers() -> dict[str, Importer]:
    """Every ONNX operator that can be read."""
    _load()
    return _completed(_importers, counterparts())


@cache
def counterparts() -> dict[str, type[Operator]]:
    """The operator as which each of ONNX's is read: the first one of its file that names it, no output layer.

    Raises:
        ValueError: operators of several files name it, and no converter reads it.
    """
    found: dict[str, type[Operator]] = {}
    for cls in registered().values():
        if cls.onnx and not cls.traits.hidden and not cls.traits.is_loss and cls.onnx == vars(cls).get("onnx"):
            first = found.setdefault(cls.onnx, cls)
            if cls.__module__ != first.__module__ and cls.onnx not in _importers:
                both = " and ".join(sorted((first.name, cls.name)))
                raise ValueError(f"{both} both are ONNX's {cls.onnx}, expected a converter for it")
    return found


def _completed(converters: dict[str | type[Operator], C], classes: dict[str, type[Operator]]) -> dict[str, C]:
    """The converters by name; for these classes, where there is none, that of their nearest base."""
    own = {name: converter for name, converter in converters.items() if isinstance(name, str)}
    bases = {name: next(base for base in cls.__mro__ if base in converters) for name, cls in classes.items()}
    return {name: converters[base] for name, base in bases.items()} | own


@cache
def _load() -> None:
    from flowmx.contrib.onnx import families

    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")


@cache
def definition(kind: str, opset: int) -> Any:
    """ONNX's definition of an operator in an opset.

    Raises:
        Unsupported: the opset does not have it.
    """
    defs = need_onnx().defs
    try:
        return defs.get_schema(kind, opset)
    except defs.SchemaError:
        raise Unsupported(f"{kind} needs opset {first_opset(kind)}, not {opset}: give opset_version") from None


@cache
def first_opset(kind: str) -> int:
    """The first opset that has an operator of ONNX."""
    found = need_onnx().defs.get_all_schemas_with_history()
    return min([int(each.since_version) for each in found if each.name == kind])


def need_onnx() -> Any:
    """The package onnx.

    Raises:
        ImportError: it is not installed; says how to.
    """
    try:
        import onnx
        import onnx.reference
    except ImportError as error:
        raise ImportError(f"ONNX files need the package onnx ({error}): pip install 'flowmx[onnx]'") from error
    return onnx
