"""The base of all layers and models: children, parameters, hooks, files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from flowmx import ndarray as nd
from flowmx.engine import layer_scope, origin
from flowmx.errors import ArgumentError
from flowmx.gluon.parameter import Contexts, Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.places import add_place
from flowmx.gluon.scope import Scope, named
from flowmx.gluon.utils import HookHandle, Hooks, brief_list, indented
from flowmx.ndarray.creation import load_named
from flowmx.semantics import semantics
from flowmx.suggestions import refuse_unknown
from flowmx.symbol import Symbol

__all__ = ["Block"]

B = TypeVar("B", bound="Block")
A = TypeVar("A", bound="nd.NDArray | Symbol")
"""The kind that a layer is given, and returns: arrays or symbols."""


_OWN = {"_children", "_forward_hooks", "_forward_pre_hooks", "_params", "_prefix", "_reg_params", "_scope"}
"""The attributes that ``Block.__init__`` makes."""


class Block:
    """A layer or a model, computed by :meth:`forward`. Blocks and parameters assigned as attributes belong to it.

    Args:
        prefix: comes before the names of its parameters and children (default: its kind and a number).
        params: the parameters of another block, to share them.

    Example:
        >>> class Model(mx.gluon.Block):
        ...     def __init__(self, **kwargs):
        ...         super().__init__(**kwargs)
        ...         with self.name_scope():
        ...             self.hidden = mx.gluon.nn.Dense(20, activation="relu")
        ...             self.out = mx.gluon.nn.Dense(10)
        ...     def forward(self, x):
        ...         return self.out(self.hidden(x))
        >>> model = Model()
        >>> model.initialize()
        >>> y = model(mx.nd.ones((2, 5)))
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None, **unknown: Any) -> None:
        refuse_unknown(type(self), unknown)
        self._prefix, self._params = named(prefix, params, self._alias())
        self._scope = Scope(self._prefix, self._params, nameless=prefix == "")
        self._children: dict[str, Block] = {}
        self._reg_params: dict[str, Parameter] = {}
        self._forward_hooks: Hooks = {}
        self._forward_pre_hooks: Hooks = {}

    def __repr__(self) -> str:
        inner = "\n".join(f"  ({key}): {indented(repr(block), 2)}" for key, block in self._shown())
        return f"{type(self).__name__}(\n{inner}\n)"

    def _repr_html_(self) -> str:
        from flowmx.gluon.notebook import html

        return html(self)

    def _shown(self) -> Iterator[tuple[str, Block]]:
        """The children that its text shows, with their names."""
        return ((key, value) for key, value in self.__dict__.items() if isinstance(value, Block))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say of what is missing why: a subclass that has not called ``super().__init__()`` lacks all."""
            kind = type(self).__name__
            if name in _OWN and name not in self.__dict__:
                raise AttributeError(f"{kind}: call super().__init__() in its __init__, before layers are assigned")
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Register children and parameters.

        Raises:
            TypeError: a child or parameter would be replaced by something of another type.
            ValueError: a parameter would be replaced.
        """
        existing = getattr(self, name, None)
        if isinstance(existing, (Parameter, Block)) and not isinstance(value, type(existing)):
            raise TypeError(
                f"{type(self).__name__}.{name} is a {type(existing).__name__}, and can not become a "
                f"{type(value).__name__}"
            )
        if isinstance(value, Block):
            self.register_child(value, name)
        elif isinstance(value, Parameter):
            if name in self._reg_params:
                raise ValueError(
                    f"{type(self).__name__}.{name} is the parameter {self._reg_params[name].name!r} already: to share "
                    "parameters between blocks, give the second one params=first.params"
                )
            self._reg_params[name] = value
        super().__setattr__(name, value)

    # -- names -----------------------------------------------------------------------------------------

    def _alias(self) -> str:
        """The stem of default names: the class name in lower case."""
        return type(self).__name__.lower()

    @property
    def prefix(self) -> str:
        """The prefix of its parameters' names."""
        return self._prefix

    @property
    def name(self) -> str:
        """Its prefix without the underscore at the end."""
        return self._prefix.removesuffix("_")

    def name_scope(self) -> AbstractContextManager[Any]:
        """A ``with`` block in which to make children, so that their names begin with its prefix."""
        return self._scope.entered()

    # -- children and parameters -----------------------------------------------------------------------

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Make a block a child; assigning it to an attribute does so too.

        Args:
            block: the child.
            name: its name in files (default: its number).
        """
        self._children[str(len(self._children)) if name is None else name] = block

    @property
    def params(self) -> ParameterDict:
        """Its own parameters, without those of its children."""
        return self._params

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """Its parameters and those of its children.

        Args:
            select: a regular expression; only parameters count whose names begin with a match.

        Raises:
            ValueError: two different parameters have the same name.
        """
        self._warn_of_hidden_blocks()
        found = ParameterDict(self._params.prefix)
        pattern = re.compile(select or "")
        found.update({name: param for name, param in self._params.items() if pattern.match(name)})
        for child in self._children.values():
            found.update(child.collect_params(select))
        return found

    def _warn_of_hidden_blocks(self) -> None:
        """Warn of blocks in lists and dicts, which are no children."""
        children = set(self._children.values())
        for key, value in self.__dict__.items():
            if key == "_children" or not isinstance(value, (list, tuple, dict)):
                continue
            if any(block not in children for block in _blocks_in(value)):
                warnings.warn(
                    f"{type(self).__name__}.{key} holds blocks that are not registered, so their parameters do not "
                    "count: use nn.Sequential or nn.HybridSequential, or register_child()",
                    stacklevel=3,
                )

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        """All parameters by the attributes that lead to them, such as ``features.0.weight``."""
        prefix = f"{prefix}." if prefix else ""
        found = {prefix + key: param for key, param in self._reg_params.items()}
        for name, child in self._children.items():
            found |= child._collect_params_with_prefix(prefix + name)
        return found

    def initialize(
        self, init: Any = None, ctx: Contexts = None, verbose: bool = False, force_reinit: bool = False
    ) -> None:
        """Initialize its parameters and those of its children; the work is enqueued.

        Args:
            init: the initializer of parameters without one of their own (default: ``Uniform()``).
            ctx: the device, or several to keep a copy on each (default: the current one).
            verbose: log what is initialized how; this waits for the arrays.
            force_reinit: initialize anew what is initialized already.
        """
        self.collect_params().initialize(init, ctx, verbose, force_reinit)

    def cast(self, dtype: Any) -> None:
        """Change the element type of its parameters and those of its children."""
        for child in self._children.values():
            child.cast(dtype)
        for param in self._params.values():
            param.cast(dtype)

    def apply(self: B, fn: Callable[[Block], Any]) -> B:
        """Call a function with each child and with itself, children first; returns itself."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Have the children that are :class:`HybridBlock` compute compiled graphs; see there."""
        for child in self._children.values():
            child.hybridize(active, **kwargs)

    # -- calling ---------------------------------------------------------------------------------------

    def __call__(self, *args: Any) -> Any:
        """Call :meth:`forward`, between the hooks. An error gets a note that says which block it came up in."""
        try:
            if self._forward_pre_hooks:
                for hook in list(self._forward_pre_hooks.values()):
                    hook(self, args)
            if origin.names_layers:
                with layer_scope(self.name):
                    out = self.forward(*args)
            else:
                out = self.forward(*args)
            if self._forward_hooks:
                for hook in list(self._forward_hooks.values()):
                    hook(self, args, out)
            if out.__class__ in _SEVERAL and semantics.get().array:
                _expect_one_kind(out)
        except Exception as error:
            add_place(error)
            raise
        return out

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; a subclass overrides it."""
        raise NotImplementedError(f"{type(self).__name__} must define forward()")

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Have ``hook(block, inputs)`` called before each :meth:`forward`; the handle takes it off again."""
        return HookHandle(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Have ``hook(block, inputs, outputs)`` called after each :meth:`forward`."""
        return HookHandle(self._forward_hooks, hook)

    def register_op_hook(self, callback: Callable[[str, str, Any], Any], monitor_all: bool = False) -> None:
        """Have ``callback(name, operator, array)`` called for every operator of those blocks that are hybridized.

        Args:
            callback: the function; the array is enqueued when it is called.
            monitor_all: call it with inputs, and gradients of inputs, too.
        """
        self._add_op_hook(callback, monitor_all, lambda: True)

    def _add_op_hook(self, callback: Callable[..., Any], monitor_all: bool, is_active: Callable[[], bool]) -> None:
        for child in self._children.values():
            child._add_op_hook(callback, monitor_all, is_active)

    def summary(self, *inputs: Any) -> None:
        """Print its layers, with the shapes of their outputs and the sizes of their parameters.

        Args:
            *inputs: the arguments of the call.

        Raises:
            RuntimeError: it, or a child, is hybridized.
        """
        from flowmx.gluon.summary import summary

        summary(self, *inputs)

    # -- files -----------------------------------------------------------------------------------------

    def save_parameters(self, filename: str | os.PathLike[str], deduplicate: bool = False) -> None:
        """Save the parameters, named by the attributes that lead to them; blocks until they are on disk.

        In a coroutine, ``await block.collect_params().ready()`` first.

        Args:
            filename: the file, in MXNet's format.
            deduplicate: save a parameter that several blocks share once.
        """
        params = self._collect_params_with_prefix()
        if deduplicate:
            params = {name: param for param, name in {param: name for name, param in params.items()}.items()}
        nd.save(filename, {name: param._reduce() for name, param in params.items()})

    def load_parameters(
        self, filename: str | os.PathLike[str], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False, cast_dtype: bool = False, dtype_source: str = "current",
    ) -> None:  # fmt: skip
        """Load parameters that :meth:`save_parameters` saved, or ``collect_params().save`` did under full names.

        Args:
            filename: the file.
            ctx: where to put those that are not initialized (default: the CPU).
            allow_missing: leave those as they are that are not in the file.
            ignore_extra: leave out what is in the file alone.
            cast_dtype: cast where the dtypes differ.
            dtype_source: whose dtype stays then: ``"current"`` or ``"saved"``.

        Raises:
            ValueError: a parameter is missing or one too many, or shapes or dtypes differ.
            OSError: the file can not be read.
        """
        loaded = load_named(filename)
        params = self._collect_params_with_prefix()
        if not loaded and not params:
            return
        if not any("." in name for name in loaded):
            prefix = "" if any(name in self.collect_params() for name in _bare(loaded)) else self.prefix
            self.collect_params().load_dict(
                loaded, ctx, allow_missing, ignore_extra, prefix, str(filename), cast_dtype, dtype_source
            )
            return
        found = {param for name, param in params.items() if name in loaded}
        missing = [name for name, param in params.items() if param not in found]
        if missing and not allow_missing:
            raise ArgumentError(
                f"load_parameters: parameter {missing[0]!r} is missing in {filename}, which holds "
                f"{brief_list(loaded)}: pass allow_missing=True to leave it as it is"
            )
        extra = [name for name in loaded if name not in params]
        if extra and not ignore_extra:
            raise ValueError(
                f"load_parameters: {filename} holds {extra[0]!r}, which is none of the parameters "
                f"{brief_list(params)}: pass ignore_extra=True to leave it out"
            )
        for name, array in loaded.items():
            if name in params:
                params[name]._load_init(array, ctx, cast_dtype, dtype_source)

    def save_params(self, filename: str | os.PathLike[str]) -> None:
        """Save the parameters under their full names, without the block's own prefix, as MXNet's old scripts do.

        Files of :meth:`save_parameters` have other names; :meth:`load_parameters` reads both.
        """
        warnings.warn("save_params is deprecated: use save_parameters", DeprecationWarning, stacklevel=2)
        self.collect_params().save(filename, strip_prefix=self.prefix)

    def load_params(
        self, filename: str | os.PathLike[str], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> None:  # fmt: skip
        """The old name of :meth:`load_parameters`, for MXNet's scripts."""
        warnings.warn("load_params is deprecated: use load_parameters", DeprecationWarning, stacklevel=2)
        self.load_parameters(filename, ctx, allow_missing, ignore_extra)


def _bare(names: dict[str, Any]) -> list[str]:
    return [name.removeprefix("arg:").removeprefix("aux:") for name in names]


def _blocks_in(value: Any) -> Iterator[Block]:
    if isinstance(value, Block):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _blocks_in(each)


_SEVERAL = (tuple, list)


def _expect_one_kind(outputs: Any) -> None:
    """Refuse outputs of both kinds of arrays, as MXNet does in the mode of ``npx.set_np``.

    Raises:
        TypeError: there are arrays of ``mx.nd`` and of ``mx.np`` among them.
    """
    kinds = {each.__class__ for each in outputs if isinstance(each, nd.NDArray)}
    if len(kinds) > 1:
        raise TypeError("the block's outputs are arrays of mx.nd and of mx.np, expected one of them in NumPy's mode")
