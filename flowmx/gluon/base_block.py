"""The base class of all layers and models: children, parameters, hooks and files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, overload

from flowmx import ndarray as nd
from flowmx import process_hooks
from flowmx.engine import layer_scope, origin
from flowmx.errors import ArgumentError, ArgumentKindError
from flowmx.foreign_names import BLOCKS, raise_missing
from flowmx.gluon.error_location import add_location
from flowmx.gluon.parameter import Contexts, Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.scope import Scope, name_block
from flowmx.gluon.utils import HookHandle, Hooks, brief_list, indent
from flowmx.keywords import ChecksKeywords, refuse_unknown
from flowmx.ndarray.files import load_named
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Tensor
from flowmx.semantics import semantics
from flowmx.symbol import Symbol

__all__ = ["Block", "check_child"]

B = TypeVar("B", bound="Block")
A = TypeVar("A", bound="nd.NDArray | Symbol | Tensor")
"""The type of a layer's input and output: an array or a symbol."""
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class HasForward(Protocol[P, R_co]):
    """The type of a block for type checkers: a call has the arguments and the result of ``forward``."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


_INIT_ATTRIBUTES = {"_children", "_forward_hooks", "_forward_pre_hooks", "_params", "_prefix", "_reg_params", "_scope"}
"""The attributes that ``Block.__init__`` sets."""


class Block(ChecksKeywords):
    """A layer or a model, computed by :meth:`forward`. Blocks that are assigned as attributes belong to it.

    Its own parameters are those that ``self.params.get(name, ...)`` creates. A ``Parameter`` that is created otherwise
    and assigned as an attribute is neither initialized nor trained with the block, as in MXNet; a warning says so.

    Args:
        prefix: the prefix of the names of its parameters and children (default: its class name and a number).
        params: the parameters of another block, to be shared.

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

    _active = False
    """Whether the block is hybridized."""

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None, **unknown: Any) -> None:
        process_hooks.fold_uncaught()
        refuse_unknown(type(self), unknown)
        if prefix is not None and not isinstance(prefix, str):
            raise TypeError(
                f"{type(self).__name__}: prefix is a {type(prefix).__name__}, expected a str or None; layers "
                "of a Sequential are added with net.add(layer, ...)"
            )
        self._prefix, self._params = name_block(prefix, params, self._alias())
        self._scope = Scope(self._prefix, self._params, nameless=prefix == "")
        self._children: dict[str, Block] = {}
        self._reg_params: dict[str, Parameter] = {}
        self._forward_hooks: Hooks = {}
        self._forward_pre_hooks: Hooks = {}

    def __repr__(self) -> str:
        inner = "\n".join(f"  ({key}): {indent(repr(block), 2)}" for key, block in self._repr_items())
        return f"{type(self).__name__}(\n{inner}\n)"

    def _repr_html_(self) -> str:
        from flowmx.gluon.notebook import html

        return html(self)

    def _repr_items(self) -> Iterator[tuple[str, Block]]:
        """Iterate over the names and blocks that ``repr`` shows."""
        return ((key, value) for key, value in self.__dict__.items() if isinstance(value, Block))

    if TYPE_CHECKING:  # net[0].weight

        def __getattr__(self, name: str) -> Parameter: ...

    else:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError; point out a missing ``super().__init__()`` in a subclass."""
            kind = type(self).__name__
            if name in _INIT_ATTRIBUTES and name not in self.__dict__:
                raise AttributeError(f"{kind}: call super().__init__() in its __init__, before layers are assigned")
            raise_missing(self, name, BLOCKS)

    def __setattr__(self, name: str, value: Any) -> None:
        """Register children and parameters.

        Raises:
            TypeError: a child or parameter would be replaced by a value of a different type.
            ValueError: a parameter would be replaced.
        """
        existing = getattr(self, name, None)
        if isinstance(existing, (Parameter, Block)) and not isinstance(value, type(existing)):
            raise TypeError(
                f"{type(self).__name__}.{name} is a {type(existing).__name__}, and cannot become a "
                f"{type(value).__name__}"
            )
        if isinstance(value, Block):
            self.register_child(value, name)
        elif isinstance(value, Parameter):
            if name in self._reg_params:
                raise ValueError(
                    f"{type(self).__name__}.{name} is already the parameter {self._reg_params[name].name!r}: to share "
                    "parameters between blocks, give the second one params=first.params"
                )
            self._reg_params[name] = value
        super().__setattr__(name, value)

    def _explain(self, error: Exception, inputs: Sequence[Any]) -> str | None:
        """Return a clearer message for an error of this block's computation; None to keep it.

        Args:
            error: the error.
            inputs: the inputs of the call.
        """
        return None

    # -- names -----------------------------------------------------------------------------------------

    def _alias(self) -> str:
        """Return the stem of default names: the class name in lower case."""
        return type(self).__name__.lower()

    @property
    def prefix(self) -> str:
        """The prefix of the names of this block's parameters."""
        return self._prefix

    @property
    def name(self) -> str:
        """The prefix without the underscore at its end."""
        return self._prefix.removesuffix("_")

    def name_scope(self) -> AbstractContextManager[object]:
        """Return a context manager; the names of children created inside begin with this block's prefix."""
        return self._scope.entered()

    # -- children and parameters -----------------------------------------------------------------------

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Register a block as a child. Assigning a block to an attribute registers it too.

        Args:
            block: the child.
            name: its name in files (default: its number).

        Raises:
            TypeError: it is not a block.
        """
        check_child(self, block)
        self._children[str(len(self._children)) if name is None else name] = block

    @property
    def params(self) -> ParameterDict:
        """The parameters of this block, without those of its children."""
        return self._params

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """Return the parameters of this block and of its children.

        Args:
            select: a regular expression; select parameters whose names match from the beginning.

        Raises:
            ValueError: two different parameters have the same name.
        """
        self._check_container_with_block()
        params = ParameterDict(self._params.prefix)
        pattern = re.compile(select or "")
        params.update({name: param for name, param in self._params.items() if pattern.match(name)})
        for child in self._children.values():
            params.update(child.collect_params(select))
        return params

    def _check_container_with_block(self) -> None:
        """Warn about blocks in lists and dicts, which are not registered as children."""
        children = set(self._children.values())
        for key, value in self.__dict__.items():
            if key == "_children" or not isinstance(value, (list, tuple, dict)):
                continue
            if any(block not in children for block in _blocks_in(value)):
                warnings.warn(
                    f"{type(self).__name__}.{key} holds blocks that are not registered, so their parameters are "
                    "ignored: use nn.Sequential or nn.HybridSequential, or register_child()",
                    stacklevel=3,
                )

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        """Return all parameters by attribute path, such as ``features.0.weight``."""
        prefix = f"{prefix}." if prefix else ""
        params = {prefix + key: param for key, param in self._reg_params.items()}
        for name, child in self._children.items():
            params |= child._collect_params_with_prefix(prefix + name)
        return params

    def initialize(
        self, init: Any = None, ctx: Contexts = None, verbose: bool = False, force_reinit: bool = False
    ) -> None:
        """Enqueue the initialization of the parameters of this block and of its children.

        Args:
            init: the initializer of parameters created without an initializer (default: ``Uniform()``).
            ctx: the device or devices (default: the current one).
            verbose: log each initialization, after waiting for the array.
            force_reinit: initialize again parameters that are already initialized.
        """
        self.collect_params().initialize(init, ctx, verbose, force_reinit)
        for name, param in self._collect_params_with_prefix().items():
            if param._arrays is None and param._deferred is None:
                warnings.warn(
                    f"{type(self).__name__}.{name} is the parameter {param.name!r}, which is not in collect_params(): "
                    "it is neither initialized nor trained; create it with self.params.get(name, ...)",
                    stacklevel=2,
                )

    def cast(self, dtype: DTypeLike) -> None:
        """Change the element type of the parameters of this block and of its children."""
        for child in self._children.values():
            child.cast(dtype)
        for param in self._params.values():
            param.cast(dtype)

    def apply(self: B, fn: Callable[[Block], Any]) -> B:
        """Call a function with each child and then with this block; return this block."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridize the children; see :meth:`HybridBlock.hybridize`."""
        for child in self._children.values():
            child.hybridize(active, **kwargs)

    # -- calling ---------------------------------------------------------------------------------------

    @overload
    def __call__(self: HasForward[P, R_co], *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __call__(self, *args: Any) -> Any: ...

    def __call__(self, *args: Any) -> Any:  # type: ignore[misc]  # keywords are refused
        """Call :meth:`forward`, with the hooks before and after it. An error gets a note with the name of the block."""
        try:
            if self._forward_pre_hooks:
                for hook in list(self._forward_pre_hooks.values()):
                    hook(self, args)
            if origin.layer_name_users:
                with layer_scope(self.name):
                    out = self.forward(*args)
            else:
                out = self.forward(*args)
            if self._forward_hooks:
                for hook in list(self._forward_hooks.values()):
                    hook(self, args, out)
            if out.__class__ in _SEQUENCES and semantics.get().array:
                _check_one_kind(out)
        except Exception as error:  # the user's layers may raise anything
            add_location(error)
            raise
        return out

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs. Subclasses override this method."""
        raise NotImplementedError(f"{type(self).__name__} must define forward()")

    @overload
    def register_forward_pre_hook(self, hook: Callable[[Self, tuple[nd.NDArray, ...]], object]) -> HookHandle: ...

    @overload
    def register_forward_pre_hook(self, hook: Callable[..., object]) -> HookHandle: ...

    def register_forward_pre_hook(self, hook: Callable[..., object]) -> HookHandle:
        """Register ``hook(block, inputs)``, called before each :meth:`forward`; the handle removes it."""
        return HookHandle(self._forward_pre_hooks, hook)

    @overload
    def register_forward_hook(
        self, hook: Callable[[Self, tuple[nd.NDArray, ...], nd.NDArray], object]
    ) -> HookHandle: ...  # fmt: skip

    @overload
    def register_forward_hook(self, hook: Callable[..., object]) -> HookHandle: ...

    def register_forward_hook(self, hook: Callable[..., object]) -> HookHandle:
        """Register ``hook(block, inputs, outputs)``, called after each :meth:`forward`."""
        return HookHandle(self._forward_hooks, hook)

    def register_op_hook(self, callback: Callable[[str, str, Any], Any], monitor_all: bool = False) -> None:
        """Register ``callback(name, operator, array)``, called for every operator of hybridized blocks.

        Args:
            callback: the function; the array may still be pending when it is called.
            monitor_all: call it with inputs and gradients of inputs too.
        """
        self._add_op_hook(callback, monitor_all, lambda: True)

    def _add_op_hook(self, callback: Callable[..., Any], monitor_all: bool, is_active: Callable[[], bool]) -> None:
        for child in self._children.values():
            child._add_op_hook(callback, monitor_all, is_active)

    def restore_structure(self, names: Iterable[str], is_hybridized: bool) -> None:
        """Rename the children; if the saved block was hybridized, hybridize this one without its children."""
        self._children = dict(zip(names, self._children.values(), strict=True))
        if is_hybridized:
            self._active = True

    def summary(self, *inputs: Any) -> None:
        """Print the layers with their output shapes and parameter counts.

        Args:
            *inputs: the arguments of the call.

        Raises:
            RuntimeError: the block or a child is hybridized.
            TypeError: there are no inputs, but the block has some.
        """
        if not inputs and hasattr(self, "hybrid_forward"):
            raise TypeError(
                "summary: the shapes depend on the input: pass one, such as net.summary(mx.nd.ones((1, 3)))"
            )
        from flowmx.gluon.summary import summary

        summary(self, *inputs)

    # -- files -----------------------------------------------------------------------------------------

    def save_parameters(self, filename: str | os.PathLike[str], deduplicate: bool = False) -> None:
        """Save the parameters under their attribute paths. Blocks until they are on disk.

        In a coroutine, ``await block.collect_params().ready()`` first.

        Args:
            filename: the file, in MXNet's format.
            deduplicate: save a shared parameter only once.
        """
        params = self._collect_params_with_prefix()
        if deduplicate:
            params = {name: param for param, name in {param: name for name, param in params.items()}.items()}
        nd.save(filename, {name: param._reduce() for name, param in params.items()})

    def load_parameters(
        self, filename: str | os.PathLike[str], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False, cast_dtype: bool = False, dtype_source: str = "current",
    ) -> None:  # fmt: skip
        """Load parameters saved by :meth:`save_parameters`, or by ``collect_params().save`` under full names.

        Args:
            filename: the file.
            ctx: the device of parameters that are not initialized (default: the CPU).
            allow_missing: do not change parameters that are missing in the file.
            ignore_extra: ignore arrays that belong to no parameter.
            cast_dtype: cast if the dtypes differ.
            dtype_source: the dtype to keep when casting: ``"current"`` or ``"saved"``.

        Raises:
            ValueError: a parameter is missing or superfluous, or shapes or dtypes differ.
            OSError: the file cannot be read.
        """
        arrays = load_named(filename)
        params = self._collect_params_with_prefix()
        if not arrays and not params:
            return
        if not any("." in name for name in arrays):
            prefix = "" if any(name in self.collect_params() for name in _strip_kinds(arrays)) else self.prefix
            self.collect_params().load_dict(
                arrays, ctx, allow_missing, ignore_extra, prefix, str(filename), cast_dtype, dtype_source
            )
            return
        matches = {param for name, param in params.items() if name in arrays}
        missing = [name for name, param in params.items() if param not in matches]
        if missing and not allow_missing:
            raise ArgumentError(
                f"load_parameters: parameter {missing[0]!r} is missing in {filename}, which holds "
                f"{brief_list(arrays)}: pass allow_missing=True to leave it unchanged"
            )
        extra = [name for name in arrays if name not in params]
        if extra and not ignore_extra:
            raise ValueError(
                f"load_parameters: {filename} holds {extra[0]!r}, which is not among the parameters "
                f"{brief_list(params)}: pass ignore_extra=True to ignore it"
            )
        for name, array in arrays.items():
            if name in params:
                params[name]._load_init(array, ctx, cast_dtype, dtype_source)

    def save_params(self, filename: str | os.PathLike[str]) -> None:
        """Save the parameters under their full names without the block's prefix, as in old MXNet scripts.

        :meth:`save_parameters` writes different names; :meth:`load_parameters` reads both.
        """
        warnings.warn("save_params is deprecated: use save_parameters", DeprecationWarning, stacklevel=2)
        self.collect_params().save(filename, strip_prefix=self.prefix)

    def load_params(
        self, filename: str | os.PathLike[str], ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> None:  # fmt: skip
        """Old name of :meth:`load_parameters`, for MXNet's scripts."""
        warnings.warn("load_params is deprecated: use load_parameters", DeprecationWarning, stacklevel=2)
        self.load_parameters(filename, ctx, allow_missing, ignore_extra)


def _strip_kinds(names: dict[str, Any]) -> list[str]:
    return [name.removeprefix("arg:").removeprefix("aux:") for name in names]


def _blocks_in(value: Any) -> Iterator[Block]:
    if isinstance(value, Block):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _blocks_in(item)


_SEQUENCES = (tuple, list)


def _check_one_kind(outputs: Any) -> None:
    """Reject outputs that mix both kinds of arrays, as MXNet does in ``npx.set_np`` mode.

    Raises:
        TypeError: the outputs hold arrays of ``mx.nd`` and of ``mx.np``.
    """
    kinds = {output.__class__ for output in outputs if isinstance(output, nd.NDArray)}
    if len(kinds) > 1:
        raise TypeError("the block's outputs are arrays of mx.nd and of mx.np, expected only one kind in NumPy's mode")


def check_child(owner: Block, value: object) -> None:
    """Raise ArgumentKindError unless a child is a block."""
    if isinstance(value, Block):
        return
    kind = type(value).__name__
    if isinstance(value, type):
        text = f"the class {value.__name__}, expected an object of it: {value.__name__}(...)"
    elif callable(value):
        text = f"a {kind}, expected a Block: wrap it in gluon.nn.HybridLambda or gluon.nn.Lambda"
    else:
        text = f"a {kind}, expected a Block, such as gluon.nn.Dense(10)"
    raise ArgumentKindError(f"{type(owner).__name__} {owner.name!r}: a child is {text}")
