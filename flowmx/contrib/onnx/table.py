"""The converters by operator: each family of operators (``families/``) enters its own here, of both directions."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from flowmx.errors import MXNetError
from flowmx.ops.registry.operators import lookup

if TYPE_CHECKING:
    from flowmx.contrib.onnx.known import Known
    from flowmx.contrib.onnx.node_export import NodeExport
    from flowmx.contrib.onnx.node_import import NodeImport
    from flowmx.symbol import Symbol

    Exporter = Callable[[NodeExport], str | Sequence[str]]
    Importer = Callable[[NodeImport], Symbol | Known | Sequence[Symbol]]

NEWEST = 21
"""The newest opset that models are written in; reading takes later ones too."""
OLDEST = 13
"""The oldest opset that is written, and the oldest that reading is tested with."""

_exporters: dict[str, Exporter] = {}
_importers: dict[str, Importer] = {}


class ONNXError(MXNetError, ValueError):
    """A model that can not be written as ONNX, or read from it; names every node in the way, and why."""


class Unsupported(Exception):
    """Raised by a converter: why this node, with these attributes, has no counterpart."""


def exports(*names: str) -> Callable[[Exporter], Exporter]:
    """Enter the function that writes these operators (by MXNet's names) as ONNX nodes."""

    def enter(converter: Exporter) -> Exporter:
        _exporters.update((lookup(name).name, converter) for name in names)
        return converter

    return enter


def imports(*kinds: str) -> Callable[[Importer], Importer]:
    """Enter the function that makes symbols of these ONNX operators."""

    def enter(converter: Importer) -> Importer:
        _importers.update(dict.fromkeys(kinds, converter))
        return converter

    return enter


def exporters() -> dict[str, Exporter]:
    """Every operator that can be written, by its registered name."""
    _load()
    return _exporters


def importers() -> dict[str, Importer]:
    """Every ONNX operator that can be read."""
    _load()
    return _importers


@cache
def _load() -> None:
    from flowmx.contrib.onnx import families

    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")


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
