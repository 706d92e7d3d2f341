"""A dictionary of parameters by name, shared between blocks where the user asks for it."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np

from flowmx import initializer
from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.errors import ArgumentError
from flowmx.gluon.parameter import Constant, Contexts, Parameter, _fits
from flowmx.gluon.utils import brief_list, indented
from flowmx.ndarray import NDArray
from flowmx.ndarray.creation import load_named
from flowmx.ops.registry.dtypes import as_dtype

__all__ = ["ParameterDict"]


class ParameterDict:
    """Parameters by their full names.

    Args:
        prefix: comes before the names of parameters that :meth:`get` makes.
        shared: a dictionary where :meth:`get` looks first, for parameters shared with another block.
    """

    def __init__(self, prefix: str = "", shared: ParameterDict | None = None) -> None:
        self._prefix = prefix
        self._params: dict[str, Parameter] = {}
        self._shared = shared

    def __repr__(self) -> str:
        lines = "\n".join(indented(f"  {each!r}", 2) for each in self.values())
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
        """The prefix of the names of parameters that :meth:`get` makes."""
        return self._prefix

    # -- making and finding ----------------------------------------------------------------------------

    def get(self, name: str, **kwargs: Any) -> Parameter:
        """The parameter ``prefix + name``: from here, from the shared dictionary, or a new one.

        Args:
            name: its name without the prefix.
            **kwargs: arguments of :class:`Parameter`; those of one that exists must agree, and add what is unknown.

        Raises:
            ValueError: they do not agree.
        """
        name = self._prefix + name
        found = self._find(name)
        if found is None:
            found = self._params[name] = Parameter(name, **kwargs)
        else:
            for key, value in kwargs.items():
                _agree(found, key, value)
        return found

    def get_constant(self, name: str, value: Any = None) -> Constant:
        """The constant ``prefix + name``: from here, from the shared dictionary, or a new one.

        Comparing the value with that of one that exists waits for both.

        Raises:
            KeyError: there is none, and no value for one.
            TypeError: it is a parameter that is no constant.
            ValueError: it has another value.
        """
        name = self._prefix + name
        found = self._find(name)
        if found is None:
            if value is None:
                raise KeyError(f"there is no constant {name!r}: give a value to make it")
            found = self._params[name] = Constant(name, value)
        if not isinstance(found, Constant):
            raise TypeError(f"parameter {name!r} exists already, and is no constant")
        if value is not None and value is not found.value and not _same(value, found.value):
            raise ValueError(f"constant {name!r} exists already, with another value")
        return found

    def _find(self, name: str) -> Parameter | None:
        if name not in self._params and self._shared is not None and name in self._shared:
            self._params[name] = self._shared[name]
        return self._params.get(name)

    def update(self, other: ParameterDict | Mapping[str, Parameter]) -> None:
        """Take over all parameters of another dictionary.

        Raises:
            ValueError: it has another parameter under a name that exists here.
        """
        for name, param in other.items():
            if self._params.get(name, param) is not param:
                raise ValueError(
                    f"update: there are two different parameters called {name!r}; give the blocks prefixes of their own"
                )
        self._params.update(other.items())

    # -- all of them -----------------------------------------------------------------------------------

    def initialize(
        self, init: Any = None, ctx: Contexts = None, verbose: bool = False, force_reinit: bool = False
    ) -> None:
        """Initialize all of them.

        Args:
            init: the initializer of those that have none of their own (default: ``Uniform()``).
            ctx: the device or devices (default: the current one).
            verbose: log what is initialized how; this waits for the arrays.
            force_reinit: initialize anew those that are initialized already.
        """
        init = initializer.Uniform() if init is None else initializer.create(init) if isinstance(init, str) else init
        if verbose and isinstance(init, initializer.Initializer):
            init.set_verbosity(verbose=verbose)
        for param in self.values():
            param.initialize(None, ctx, init, force_reinit)

    def zero_grad(self) -> None:
        """Fill all gradients with zeros."""
        for param in self.values():
            param.zero_grad()

    def reset_ctx(self, ctx: Contexts) -> None:
        """Move all of them to other devices."""
        for param in self.values():
            param.reset_ctx(ctx)

    def list_ctx(self) -> list[Context]:
        """The devices that they are on."""
        return list(dict.fromkeys(ctx for param in self.values() for ctx in param.list_ctx()))

    def setattr(self, name: str, value: Any) -> None:
        """Set an attribute of each, such as ``grad_req`` or ``lr_mult``."""
        for param in self.values():
            setattr(param, name, value)

    async def ready(self) -> None:
        """Await the values of all that are made, so that saving them does not block."""
        for param in self.values():
            for array in (param._arrays or {}).values():
                await array

    # -- files -----------------------------------------------------------------------------------------

    def save(self, filename: str | os.PathLike[str], strip_prefix: str = "") -> None:
        """Save them by name, in MXNet's format; blocks until they are on disk.

        Args:
            filename: the file.
            strip_prefix: the prefix to remove from each name.

        Raises:
            ValueError: a name does not start so.
        """
        for name in self.keys():
            if not name.startswith(strip_prefix):
                raise ValueError(
                    f"save: the prefix {strip_prefix!r} is to be stripped, but {name!r} does not start with it: the "
                    "block shares parameters, or its children were not made inside name_scope()"
                )
        nd.save(filename, {name[len(strip_prefix) :]: param._reduce() for name, param in self.items()})

    def load(
        self, filename: str | os.PathLike[str], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False, restore_prefix: str = "", cast_dtype: bool = False, dtype_source: str = "current",
    ) -> None:  # fmt: skip
        """Load their values from a file.

        Args:
            filename: the file; prefixes ``arg:`` and ``aux:`` of names in it are dropped.
            ctx: where to put those that are not initialized (default: the CPU).
            allow_missing: leave those as they are that are not in the file.
            ignore_extra: leave out what is in the file alone.
            restore_prefix: comes before the names in the file.
            cast_dtype: cast where the dtypes differ.
            dtype_source: whose dtype stays then: ``"current"`` or ``"saved"``.

        Raises:
            ValueError: a parameter is missing or one too many, or shapes or dtypes differ.
            OSError: the file can not be read.
        """
        for name in self.keys():
            if not name.startswith(restore_prefix):
                raise ValueError(f"load: restore_prefix is {restore_prefix!r}, but {name!r} does not start with it")
        loaded = load_named(filename)
        self.load_dict(
            loaded, ctx, allow_missing, ignore_extra, restore_prefix, str(filename), cast_dtype, dtype_source
        )

    def load_dict(
        self, param_dict: Mapping[str, NDArray], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False, restore_prefix: str = "", filename: str | None = None, cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:  # fmt: skip
        """Take their values from a dictionary of arrays; the arguments are those of :meth:`load`."""
        given = {restore_prefix + name.removeprefix("arg:").removeprefix("aux:"): a for name, a in param_dict.items()}
        source = filename or "the dictionary given"
        for name in self.keys():
            if name not in given and not allow_missing:
                raise ArgumentError(
                    f"load: parameter {name!r} is missing in {source}, which holds {brief_list(given)}: pass "
                    "allow_missing=True to leave it as it is, or give both networks the same prefix"
                )
        for name, array in given.items():
            if name in self._params:
                self._params[name]._load_init(array, ctx, cast_dtype, dtype_source)
            elif not ignore_extra:
                raise ValueError(
                    f"load: {source} holds {name!r}, which is none of the parameters {brief_list(self._params)}: pass "
                    "ignore_extra=True to leave it out, or give both networks the same prefix"
                )


def _agree(param: Parameter, key: str, value: Any) -> None:
    """Compare an argument with that of a parameter that exists, and fill in what is unknown."""
    old = getattr(param, key, None)
    if old is None:
        setattr(param, key, value)
    elif key == "shape" and value is not None:
        given = (value,) if isinstance(value, int) else tuple(value)
        if not _fits(old, given):
            _refuse(param, key, given, old)
        param.shape = tuple(a if a > 0 else b for a, b in zip(given, old, strict=True))
    elif key == "dtype":
        if as_dtype(value) != as_dtype(old):
            _refuse(param, key, value, old)
    elif value is not None and value != old:
        _refuse(param, key, value, old)


def _refuse(param: Parameter, key: str, value: Any, old: Any) -> None:
    raise ArgumentError(f"parameter {param.name!r} exists already with {key} {old!r}, and {value!r} was asked for")


def _same(value: Any, other: NDArray) -> bool:
    """Compare values in the element type of the second, in which the first would be kept."""
    value = np.asarray(value.asnumpy() if isinstance(value, NDArray) else value, other.dtype)
    return value.shape == other.shape and bool((value == other.asnumpy()).all())
