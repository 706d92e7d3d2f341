"""A dictionary of parameters by name, which blocks may share."""

from __future__ import annotations

import os
import warnings
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np

from flowmx import initializer
from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.errors import ArgumentError
from flowmx.gluon.parameter import Constant, Contexts, Parameter, _fits
from flowmx.gluon.utils import brief_list, indent
from flowmx.ndarray import NDArray
from flowmx.ndarray.files import load_named
from flowmx.ops.registry.dtypes import as_dtype

__all__ = ["ParameterDict"]


class ParameterDict:
    """Parameters by their full names.

    Args:
        prefix: the prefix of the names of parameters that :meth:`get` creates.
        shared: a dictionary of another block; :meth:`get` returns its parameters instead of new ones.
    """

    def __init__(self, prefix: str = "", shared: ParameterDict | None = None) -> None:
        self._prefix = prefix
        self._params: dict[str, Parameter] = {}
        self._shared = shared

    def __repr__(self) -> str:
        lines = "\n".join(indent(f"  {param!r}", 2) for param in self.values())
        return f"{self._prefix + ' ' if self._prefix else ''}(\n{lines}\n)"

    def __getitem__(self, key: str) -> Parameter:
        return self._params[key]

    def __contains__(self, key: object) -> bool:
        return key in self._params

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)

    def items(self) -> ItemsView[str, Parameter]:
        """Pairs of name and parameter."""
        return self._params.items()

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._params.keys()

    def values(self) -> ValuesView[Parameter]:
        """The parameters."""
        return self._params.values()

    @property
    def prefix(self) -> str:
        """The prefix of the names of parameters that :meth:`get` creates."""
        return self._prefix

    # -- lookup and creation ---------------------------------------------------------------------------

    def get(self, name: str, **kwargs: Any) -> Parameter:
        """Return the parameter ``prefix + name``: from this dictionary, from the shared one, or a new one.

        Args:
            name: the name without the prefix.
            **kwargs: arguments of :class:`Parameter`. If the parameter exists, they must agree with its
                attributes, and set the unknown ones.

        Raises:
            ValueError: they do not agree with an existing parameter.
        """
        name = self._prefix + name
        param = self._get_impl(name)
        if param is None:
            param = self._params[name] = Parameter(name, **kwargs)
        else:
            for key, value in kwargs.items():
                _check_or_set(param, key, value)
        return param

    def get_constant(self, name: str, value: Any = None) -> Constant:
        """Return the constant ``prefix + name``: from this dictionary, from the shared one, or a new one.

        If the constant exists, this blocks until both values are computed, to compare them.

        Raises:
            KeyError: the constant does not exist, and ``value`` is None.
            TypeError: the parameter is not a constant.
            ValueError: the constant has another value.
        """
        name = self._prefix + name
        constant = self._get_impl(name)
        if constant is None:
            if value is None:
                raise KeyError(f"there is no constant {name!r}: pass a value to create it")
            constant = self._params[name] = Constant(name, value)
        if not isinstance(constant, Constant):
            raise TypeError(f"parameter {name!r} already exists, and is not a constant")
        if value is not None and value is not constant.value and not _is_equal(value, constant.value):
            raise ValueError(f"constant {name!r} already exists, with another value")
        return constant

    def _get_impl(self, name: str) -> Parameter | None:
        if name not in self._params and self._shared is not None and name in self._shared:
            self._params[name] = self._shared[name]
        return self._params.get(name)

    def update(self, other: ParameterDict | Mapping[str, Parameter]) -> None:
        """Add all parameters of another dictionary.

        Raises:
            ValueError: the dictionaries have different parameters with the same name.
        """
        for name, param in other.items():
            if self._params.get(name, param) is not param:
                raise ValueError(
                    f"update: there are two different parameters called {name!r}; give the blocks different prefixes"
                )
        self._params.update(other.items())

    # -- all parameters --------------------------------------------------------------------------------

    def initialize(
        self, init: object = None, ctx: Contexts = None, verbose: bool = False, force_reinit: bool = False
    ) -> None:
        """Initialize all parameters.

        Args:
            init: the initializer of parameters without one (default: ``Uniform()``).
            ctx: the device or devices (default: the current one).
            verbose: log each initialization; blocks until the arrays are computed.
            force_reinit: initialize again parameters that are already initialized.
        """
        init = initializer.Uniform() if init is None else initializer.create(init) if isinstance(init, str) else init
        if isinstance(init, (Context, type)):
            advice = f"pass ctx={init!r}" if isinstance(init, Context) else f"pass an object of it: {init.__name__}()"
            warnings.warn(f"initialize: init is {init!r}, expected an initializer: {advice}", stacklevel=3)
        if verbose and isinstance(init, initializer.Initializer):
            init.set_verbosity(verbose=verbose)
        for param in self.values():
            param.initialize(None, ctx, init, force_reinit)

    def zero_grad(self) -> None:
        """Fill all gradients with zeros."""
        for param in self.values():
            param.zero_grad()

    def reset_ctx(self, ctx: Contexts) -> None:
        """Move all parameters to other devices."""
        for param in self.values():
            param.reset_ctx(ctx)

    def list_ctx(self) -> list[Context]:
        """Return the devices of all parameters."""
        return list(dict.fromkeys(ctx for param in self.values() for ctx in param.list_ctx()))

    def setattr(self, name: str, value: object) -> None:
        """Set an attribute of all parameters, such as ``grad_req`` or ``lr_mult``."""
        for param in self.values():
            setattr(param, name, value)

    async def ready(self) -> None:
        """Await the values of all initialized parameters, so that saving them does not block."""
        for param in self.values():
            for array in (param._arrays or {}).values():
                await array

    # -- files -----------------------------------------------------------------------------------------

    def save(self, filename: str | os.PathLike[str], strip_prefix: str = "") -> None:
        """Save the parameters by name, in MXNet's format; blocks until they are on disk.

        Args:
            filename: the file.
            strip_prefix: the prefix to remove from each name.

        Raises:
            ValueError: a name does not have this prefix.
        """
        for name in self.keys():
            if not name.startswith(strip_prefix):
                raise ValueError(
                    f"save: strip_prefix is {strip_prefix!r}, but {name!r} does not start with it: the block shares "
                    "parameters, or its children were not created inside name_scope()"
                )
        nd.save(filename, {name[len(strip_prefix) :]: param._reduce() for name, param in self.items()})

    def load(
        self, filename: str | os.PathLike[str], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False, restore_prefix: str = "", cast_dtype: bool = False, dtype_source: str = "current",
    ) -> None:  # fmt: skip
        """Load the parameters' values from a file.

        Args:
            filename: the file; prefixes ``arg:`` and ``aux:`` of its names are removed.
            ctx: the devices of parameters that are not initialized (default: the CPU).
            allow_missing: keep parameters that are not in the file.
            ignore_extra: ignore arrays that belong to no parameter.
            restore_prefix: the prefix to add to the names in the file.
            cast_dtype: cast if the dtypes differ.
            dtype_source: the dtype to keep when casting: ``"current"`` or ``"saved"``.

        Raises:
            ValueError: a parameter is missing or superfluous, or shapes or dtypes differ.
            OSError: the file cannot be read.
        """
        for name in self.keys():
            if not name.startswith(restore_prefix):
                raise ValueError(f"load: restore_prefix is {restore_prefix!r}, but {name!r} does not start with it")
        arrays = load_named(filename)
        self.load_dict(
            arrays, ctx, allow_missing, ignore_extra, restore_prefix, str(filename), cast_dtype, dtype_source
        )

    def load_dict(
        self, param_dict: Mapping[str, NDArray], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False, restore_prefix: str = "", filename: str | None = None, cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:  # fmt: skip
        """Load the parameters' values from a dictionary of arrays; the arguments are those of :meth:`load`."""
        arrays = {restore_prefix + name.removeprefix("arg:").removeprefix("aux:"): a for name, a in param_dict.items()}
        source = filename or "the dictionary"
        for name in self.keys():
            if name not in arrays and not allow_missing:
                raise ArgumentError(
                    f"load: parameter {name!r} is missing in {source}, which holds {brief_list(arrays)}: pass "
                    "allow_missing=True to keep its value, or give both networks the same prefix"
                )
        for name, array in arrays.items():
            if name in self._params:
                self[name]._load_init(array, ctx, cast_dtype, dtype_source)
            elif not ignore_extra:
                raise ValueError(
                    f"load: {source} holds {name!r}, which is not among the parameters {brief_list(self._params)}: "
                    "pass ignore_extra=True to ignore it, or give both networks the same prefix"
                )


def _check_or_set(param: Parameter, key: str, value: Any) -> None:
    """Check an argument against an existing parameter's attribute, or set the attribute if it is unknown."""
    old = getattr(param, key, None)
    if old is None:
        setattr(param, key, value)
    elif key == "shape" and value is not None:
        shape = (value,) if isinstance(value, int) else tuple(value)
        if not _fits(old, shape):
            _raise_conflict(param, key, shape, old)
        param.shape = tuple(a if a > 0 else b for a, b in zip(shape, old, strict=True))
    elif key == "dtype":
        if as_dtype(value) != as_dtype(old):
            _raise_conflict(param, key, value, old)
    elif value is not None and value != old:
        _raise_conflict(param, key, value, old)


def _raise_conflict(param: Parameter, key: str, value: object, old: object) -> None:
    raise ArgumentError(f"parameter {param.name!r} already exists with {key} {old!r}, but {value!r} was requested")


def _is_equal(value: object, other: NDArray) -> bool:
    """Return whether two values are equal, in the element type of the second."""
    value = np.asarray(value.asnumpy() if isinstance(value, NDArray) else value, other.dtype)
    return value.shape == other.shape and bool((value == other.asnumpy()).all())
