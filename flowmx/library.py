"""``mx.library``: extensions, which are files in Python that register operators, passes and partitioners.

Example:
    >>> mx.library.load("/home/me/gelu.py", verbose=False)
    >>> y = mx.nd.my_gelu(x)  # which the file registers by @mx.operator.register("my_gelu")
    >>> faster = net.optimize_for("my_pass")  # by @mx.sym.register_pass("my_pass")
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
from flowmx.ops.registry.operators import registered
from flowmx.symbol import backends

__all__ = ["load"]

_TABLES: dict[str, dict[str, Any]] = {"operators": custom.properties, "backends": backends.backends}
"""Tables in which an extension may register something by name."""


def load(path: str | Path, verbose: bool = True) -> None:
    """Run a file that registers operators, passes or partitioners.

    Operators become functions of ``mx.nd`` and ``mx.sym``, passes and partitioners backends of ``optimize_for`` and
    ``hybridize``. A file that is loaded again takes the place of what it has registered before. If it raises, it has
    registered nothing.

    Args:
        path: the file, by its absolute path; it ends in ``.py``.
        verbose: log what it registers.

    Raises:
        MXNetError: there is no such file, or it is no Python file; an operator has the name of a built-in function.
    """
    path = Path(path)
    _check(path)
    before = {kind: dict(table) for kind, table in _TABLES.items()}
    try:
        _run(path)
        added = {kind: [key for key in table if table[key] is not before[kind].get(key)]
                 for kind, table in _TABLES.items()}  # fmt: skip
        for each in added["operators"]:
            if each in registered():
                raise MXNetError(f"library.load: {path} registers the operator {each!r}, which is built in: rename it")
    except BaseException:
        for kind, table in _TABLES.items():
            table.clear()
            table.update(before[kind])
        raise
    for each in added["operators"]:
        setattr(ndarray, each, _function(ndarray.Custom, each))
        setattr(symbol, each, _function(_composed, each))
    if verbose:
        shown = "; ".join(f"{kind} {', '.join(keys)}" for kind, keys in added.items() if keys)
        logging.getLogger(__name__).info("%s: %s", path, shown or "nothing was registered")


def _check(path: Path) -> None:
    wrong = ""
    if not path.exists():
        wrong = "there is no such file"
    elif not path.is_absolute():
        wrong = "expected an absolute path"
    elif path.suffix in (".so", ".dll", ".dylib"):
        wrong = "it is made for MXNet's C interface, which flowmx has not: register in a Python file, and load that"
    elif path.suffix != ".py":
        wrong = "expected a file that ends in .py"
    if wrong:
        raise MXNetError(f"library.load: {path}: {wrong}")


class _Source(SourceFileLoader):
    """A loader that compiles the file each time.

    Python tells kept code from a changed file by whole seconds and the file's size.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(path: Path) -> None:
    """Run the file as a module, which is importable under its name if there was none before."""
    spec = spec_from_file_location(path.stem, path, loader=_Source(path.stem, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    is_new = path.stem not in sys.modules
    if is_new:
        sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if is_new:
            del sys.modules[path.stem]
        raise


def _composed(*args: Any, op_type: str, name: str | None = None, **kwargs: Any) -> Any:
    return symbol.Custom(*args, op_type=op_type, name=names.current().get(name, op_type.lower()), **kwargs)


def _function(custom_call: Callable[..., Any], op_type: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return custom_call(*args, op_type=op_type, **kwargs)

    call.__name__ = call.__qualname__ = op_type
    call.__doc__ = custom.properties[op_type].__doc__
    return call
