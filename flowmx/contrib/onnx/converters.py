"""The registry of converters, for export and import.

An operator with an equivalent in ONNX names it (``Operator.onnx``); the converter of its base class converts it. The
modules in ``families/`` register the converters of base classes, and those of operators without a single equivalent.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from flowmx.errors import MXNetError
from flowmx.ops.registry.operators import Operator, lookup, registered_operators

if TYPE_CHECKING:
    from flowmx.contrib.onnx.import_constants import Known, Values
    from flowmx.contrib.onnx.node_export import NodeExport
    from flowmx.contrib.onnx.node_import import NodeImport
    from flowmx.symbol import Symbol

    Exporter = Callable[[NodeExport], str | Sequence[str]]
    Importer = Callable[[NodeImport], Symbol | Known | Sequence[Symbol | Known | Values]]

C = TypeVar("C")

_exporters: dict[str | type[Operator], Exporter] = {}
_importers: dict[str | type[Operator], Importer] = {}


class ONNXError(MXNetError, ValueError):
    """A model cannot be exported to ONNX or imported. The message lists all unsupported nodes with the reasons."""


class Unsupported(Exception):
    """Raised by a converter for a node that it cannot convert, with the reason."""


class ValueNeeded(Unsupported):
    """Raised by a converter for a node that it could convert if it knew the content of some values.

    Attributes:
        names: the values, by their names in the file.
    """

    def __init__(self, message: str, *names: str) -> None:
        super().__init__(message)
        self.names = names


class ShapeByContent(Unsupported):
    """Raised by a converter for a node whose output shape depends on the content of its inputs."""


def exports(*operators: str | type[Operator]) -> Callable[[Exporter], Exporter]:
    """Register an export converter for operators (by MXNet's names), or for operators of a base class with ``onnx``."""

    def register(converter: Exporter) -> Exporter:
        names = [lookup(operator).name if isinstance(operator, str) else operator for operator in operators]
        _exporters.update(dict.fromkeys(names, converter))
        return converter

    return register


def imports(*kinds: str | type[Operator]) -> Callable[[Importer], Importer]:
    """Register an import converter for ONNX operators, or for those that operators of a base class name."""

    def register(converter: Importer) -> Importer:
        _importers.update(dict.fromkeys(kinds, converter))
        return converter

    return register


@cache
def exporters() -> dict[str, Exporter]:
    """Return the export converters by the registered name of the operator."""
    _load()
    return _with_inherited(
        _exporters, {cls.name: cls for cls in registered_operators().values() if cls.onnx and not cls.traits.hidden}
    )


@cache
def importers() -> dict[str, Importer]:
    """Return the import converters by ONNX operator."""
    _load()
    return _with_inherited(_importers, counterparts())


@cache
def counterparts() -> dict[str, type[Operator]]:
    """Return the operator for each ONNX operator: the first one that names it and is not an output layer.

    Raises:
        ValueError: operators of several modules name it, and it has no import converter.
    """
    operators: dict[str, type[Operator]] = {}
    for cls in registered_operators().values():
        if cls.onnx and not cls.traits.hidden and not cls.traits.is_loss and cls.onnx == vars(cls).get("onnx"):
            first = operators.setdefault(cls.onnx, cls)
            if cls.__module__ != first.__module__ and cls.onnx not in _importers:
                both = " and ".join(sorted((first.name, cls.name)))
                raise ValueError(f"{both} are both ONNX's {cls.onnx}, expected a converter for it")
    return operators


def _with_inherited(converters: dict[str | type[Operator], C], classes: dict[str, type[Operator]]) -> dict[str, C]:
    """Return the converters by name, including those that classes inherit from their nearest base class."""
    direct = {name: converter for name, converter in converters.items() if isinstance(name, str)}
    bases = {name: next(base for base in cls.__mro__ if base in converters) for name, cls in classes.items()}
    return {name: converters[base] for name, base in bases.items()} | direct


@cache
def _load() -> None:
    from flowmx.contrib.onnx import families

    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")


def need_onnx() -> Any:
    """Import the package onnx.

    Raises:
        ImportError: it is not installed; the message has the command to install it.
    """
    try:
        import onnx
        import onnx.reference
    except ImportError as error:
        raise ImportError(f"ONNX files need the package onnx ({error}): pip install onnx") from error
    return onnx
