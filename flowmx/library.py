"""``mx.library``: extensions, Python files that register operators, passes and partitioners.

Example:
    >>> mx.library.load("/home/me/gelu.py", verbose=False)
    >>> y = mx.nd.my_gelu(x)  # registered by @mx.operator.register("my_gelu")
    >>> faster = net.optimize_for("my_pass")  # registered by @mx.sym.register_pass("my_pass")
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

from flowmx import name as names
from flowmx import ndarray, symbol
from flowmx.errors import MXNetError
from flowmx.ops.control import custom
from flowmx.ops.registry.operators import registered_operators
from flowmx.symbol import backends

__all__ = ["load"]

_TABLES: dict[str, dict[str, Any]] = {"operators": custom.properties, "backends": backends.backends}
"""The registries that extensions may extend."""


def load(path: str | Path, verbose: bool = True) -> None:
    """Run a file that registers operators, passes or partitioners.

    Operators become functions of ``mx.nd`` and ``mx.sym``. Passes and partitioners become backends of ``optimize_for``
    and ``hybridize``. Loading a file again replaces its registrations. If the file raises, nothing is registered.

    Args:
        path: the absolute path of the ``.py`` file.
        verbose: whether to log the registered names.

    Raises:
        MXNetError: the file does not exist or is not a Python file, or an operator has the name of a built-in one.
    """
    path = Path(path)
    _check(path)
    before = {kind: dict(table) for kind, table in _TABLES.items()}
    try:
        _run(path)
        added = {kind: [key for key in table if table[key] is not before[kind].get(key)]
                 for kind, table in _TABLES.items()}  # fmt: skip
        for name in added["operators"]:
            if name in registered_operators():
                raise MXNetError(f"library.load: {path} registers the operator {name!r}, which is built in: rename it")
    except BaseException:  # importing it runs user code
        for kind, table in _TABLES.items():
            table.clear()
            table.update(before[kind])
        raise
    for name in added["operators"]:
        setattr(ndarray, name, _function(ndarray.Custom, name))
        setattr(symbol, name, _function(_compose, name))
    if verbose:
        summary = "; ".join(f"{kind} {', '.join(keys)}" for kind, keys in added.items() if keys)
        logging.getLogger(__name__).info("%s: %s", path, summary or "nothing was registered")


def _check(path: Path) -> None:
    fault = ""
    if not path.exists():
        fault = "the file does not exist"
    elif not path.is_absolute():
        fault = "expected an absolute path"
    elif path.suffix in (".so", ".dll", ".dylib"):
        fault = "libraries for MXNet's C API are not supported: write a Python file that registers the operators"
    elif path.suffix != ".py":
        fault = "expected a .py file"
    if fault:
        raise MXNetError(f"library.load: {path}: {fault}")


class _Source(SourceFileLoader):
    """A loader that always compiles the file.

    Python's bytecode cache detects changes only by the modification time in seconds and the size.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(path: Path) -> None:
    """Run the file as a module, which becomes importable if its name is unused."""
    spec = spec_from_file_location(path.stem, path, loader=_Source(path.stem, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    is_new = path.stem not in sys.modules
    if is_new:
        sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # importing it runs user code
        if is_new:
            del sys.modules[path.stem]
        raise


def _compose(*args: Any, op_type: str, name: str | None = None, **kwargs: Any) -> Any:
    return symbol.Custom(*args, op_type=op_type, name=names.current().get(name, op_type.lower()), **kwargs)


def _function(custom_call: Callable[..., Any], op_type: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return custom_call(*args, op_type=op_type, **kwargs)

    call.__name__ = call.__qualname__ = op_type
    call.__doc__ = custom.properties[op_type].__doc__
    return call
