"""Blocks that compute with arrays or compose symbols by the same code; hybridized, they compute a compiled graph.

A hybridized block calls its ``hybrid_forward`` once with symbols for each structure of its inputs, and gives the graph
to a :class:`~flowmx.cached_op.CachedOp`. Its inputs are the block's inputs and the parameters' arrays on their device.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.cached_op import CachedOp
from flowmx.cached_op.observed import OpHook, observed
from flowmx.devices import Context, current_context
from flowmx.errors import ArgumentKindError
from flowmx.gluon.base import A, Block
from flowmx.gluon.parameter import DeferredInitializationError, Parameter, _is_known
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.graph import collector
from flowmx.graph.nesting import Format, flatten, regroup
from flowmx.ndarray import NDArray
from flowmx.ops import kernels
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.symbol import Symbol

__all__ = ["HybridBlock"]


class Traced(NamedTuple):
    """The symbol that a block was traced into.

    Attributes:
        inputs: names of the variables for its inputs.
        symbol: all its outputs.
        form: the nesting of its outputs.
        classic: the positions of outputs that are arrays of ``mx.nd``, though inputs are of ``mx.np``.
    """

    inputs: list[str]
    symbol: Symbol
    form: Format
    classic: tuple[int, ...] = ()


class Compiled(NamedTuple):
    """A traced block, ready to be called.

    Attributes:
        traced: the traced symbol.
        op: computes it.
        sources: for each input of ``op``, a position among the block's inputs or a parameter.
    """

    traced: Traced
    op: CachedOp
    sources: list[int | Parameter]


class HybridBlock(Block):
    """A block whose :meth:`hybrid_forward` takes arrays or symbols.

    Args:
        prefix: as for :class:`Block`.
        params: as for :class:`Block`.

    Example:
        >>> class Model(mx.gluon.HybridBlock):
        ...     def __init__(self, **kwargs):
        ...         super().__init__(**kwargs)
        ...         with self.name_scope():
        ...             self.hidden = mx.gluon.nn.Dense(20)
        ...             self.scale = self.params.get("scale", shape=(1,), init="ones")
        ...     def hybrid_forward(self, F, x, scale):
        ...         return F.broadcast_mul(F.relu(self.hidden(x)), scale)
        >>> model = Model()
        >>> model.initialize()
        >>> model.hybridize()
        >>> y = model(mx.nd.ones((2, 5)))
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None, **unknown: Any) -> None:
        super().__init__(prefix, params, **unknown)
        self._active = False
        self._flags: dict[str, bool] = {}
        self._compiled: dict[str, Compiled] = {}
        self._op_hooks: list[OpHook] = []
        self._backend: tuple[str, dict[str, Any]] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (HybridBlock, Parameter)):
            self._clear_cached_op()

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Make a block a child.

        Raises:
            TypeError: it is no HybridBlock.
        """
        if not isinstance(block, HybridBlock):
            raise ArgumentKindError(
                f"{type(self).__name__} {self.name!r}: children of a HybridBlock must be HybridBlocks, and "
                f"{type(block).__name__} is none: derive it from HybridBlock, or use nn.Sequential in the place of "
                "nn.HybridSequential"
            )
        super().register_child(block, name)
        self._clear_cached_op()

    def _clear_cached_op(self) -> None:
        self._compiled = {}

    @property
    def _cached_graph(self) -> tuple[list[str], Symbol] | tuple[()]:
        """The names of the inputs and the graph of the first call, as MXNet's scripts look for them; or nothing."""
        for compiled in self._compiled.values():
            return compiled.traced.inputs, compiled.traced.symbol
        return ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}}  # a copy compiles for itself

    def cast(self, dtype: Any) -> None:
        """Change the element type of its parameters and those of its children."""
        self._clear_cached_op()
        super().cast(dtype)

    def hybridize(
        self, active: bool = True, backend: str | None = None, clear: bool = True, static_alloc: bool = False,
        static_shape: bool = False, inline_limit: int = 2, forward_bulk_size: int | None = None,
        backward_bulk_size: int | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Have the block, and its children, compute compiled graphs (or no longer).

        Args:
            active: compile it.
            backend: the partitioner that changes the graph first (``mx.sym.register_partitioner``); an unknown one is
                warned of when the graph is compiled.
            clear: compile anew at the next call.
            static_alloc: keep the memory for inner values between calls.
            static_shape: plan for shapes that do not change; they may, which is slower. Needs ``static_alloc``.
            inline_limit: kept for MXNet's scripts.
            forward_bulk_size: kept for MXNet's scripts.
            backward_bulk_size: kept for MXNet's scripts.
            **kwargs: options for the partitioner.

        Raises:
            ValueError: ``static_shape`` without ``static_alloc``.
        """
        if static_shape and not static_alloc:
            raise ValueError("hybridize: static_shape=True needs static_alloc=True")
        if active and (self._forward_hooks or self._forward_pre_hooks):
            warnings.warn(
                f"hybridize: block {self.name!r} has hooks, which are not called where it is a child of a block that "
                "is hybridized too",
                stacklevel=2,
            )
        if active:
            kernels.expect_graph("cpu")
        self._active = active
        self._flags = {"static_alloc": static_alloc, "static_shape": static_shape}
        self._backend = (backend, kwargs) if backend and active else None
        if clear:
            self._clear_cached_op()
        super().hybridize(active, clear=clear, **self._flags)

    def optimize_for(
        self, x: NDArray, *args: Any, backend: str | None = None, clear: bool = False,
        partition_if_dynamic: bool = True, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Hybridize, and compile the graph for inputs such as these now, without computing anything.

        Args:
            x: an input.
            *args: the others.
            backend: as for :meth:`hybridize`.
            clear: compile anew what is compiled.
            partition_if_dynamic: kept for MXNet's scripts.
            **kwargs: as for :meth:`hybridize`.

        Raises:
            ValueError: ``backend`` is missing, as in MXNet.
        """
        if not backend:
            raise ValueError("optimize_for: backend is missing: give that of a partitioner, or call hybridize()")
        self.hybridize(True, backend, clear, **kwargs)
        given, form = flatten(
            (x, *args), NDArray, f"hybridized {type(self).__name__} {self.name!r}: inputs", optional=True
        )
        if _key(given, form) not in self._compiled:
            self._compile(given, form, (x, *args))

    # -- calling ---------------------------------------------------------------------------------------

    def forward(self, x: Any, *args: Any) -> Any:
        """Compute with arrays, or compose symbols, by :meth:`hybrid_forward`.

        Raises:
            ValueError: the inputs hold arrays and symbols, or neither, or arrays of several devices (hybridized).
        """
        if isinstance(x, NDArray) and not args:
            return self._compute(x.context, (x,))
        contexts, symbols = _kinds((x, *args))
        if symbols == bool(contexts):
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: the inputs hold {'both' if symbols else 'neither'} arrays "
                f"{'and' if symbols else 'nor'} symbols, expected one of them"
            )
        if symbols:
            return self._compose((x, *args))
        if self._active and len(contexts) > 1:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: the inputs are on {', '.join(map(str, contexts))}; hybridized, "
                "a block takes inputs of one device: bring them together with as_in_context"
            )
        return self._compute(next(iter(contexts)), (x, *args))

    def hybrid_forward(self, F: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; a subclass overrides it.

        Args:
            F: ``mx.nd`` or ``mx.sym``.
            *args: the inputs, arrays or symbols.
            **kwargs: its own parameters, under the names of their attributes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define hybrid_forward()")

    def _compute(self, context: Context, args: tuple[Any, ...]) -> Any:
        if self._active:
            return self._call_cached_op(context, args)
        if context is not current_context():
            with context:
                return self._compute(context, args)
        try:
            params = {key: param.data(context) for key, param in self._reg_params.items()}
        except DeferredInitializationError:
            self._finish(self._params.values(), None, args)
            params = {key: param.data(context) for key, param in self._reg_params.items()}
        return self.hybrid_forward(nd, *args, **params)

    def _compose(self, args: Sequence[Any]) -> Any:
        is_np = any(each.__class__ is not Symbol for each in _leaves(args) if each is not None)
        if is_np and all(map(_is_own, _blocks(self))):  # which are written in the operators of mx.sym
            made = self._compose(_symbols(args, lambda each: each.as_nd_ndarray()))
            return _symbols(made, lambda each: each.as_np_ndarray())
        params = {key: param.var() for key, param in self._reg_params.items()}
        if is_np:
            params = {key: each.as_np_ndarray() for key, each in params.items()}
        try:
            with self.name_scope():
                return self.hybrid_forward(sym, *args, **params)
        except Exception as error:
            if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
                error.add_note(
                    f"{_NOTE} {type(self).__name__} {self.name!r}: hybrid_forward was called with symbols, which have "
                    "no values and no shape; choose by values with F.where or F.contrib.cond, leave lengths "
                    "to reshape (0 keeps one, -1 infers it), or do not hybridize it"
                )
            raise

    # -- compiled --------------------------------------------------------------------------------------

    def _call_cached_op(self, context: Context, args: tuple[Any, ...]) -> Any:
        given, form = flatten(args, NDArray, f"hybridized {type(self).__name__} {self.name!r}: inputs", optional=True)
        compiled = self._compiled.get(_key(given, form))
        if compiled is None:
            kernels.expect_graph(context.kernels)
            with collector.paused():
                compiled = self._compile(given, form, args)
        inputs = [given[each] if isinstance(each, int) else each.data(context) for each in compiled.sources]
        hooks = [hook for hook in self._op_hooks if hook.is_active()] if self._op_hooks else None
        found = self._observe(compiled, inputs, hooks) if hooks else compiled.op(*inputs)
        form, classic = compiled.traced.form, compiled.traced.classic
        if classic:
            listed = [found] if isinstance(found, NDArray) else found
            for index in classic:
                listed[index].__class__ = NDArray  # new, and nobody else's
        if form == 0:
            return found
        return regroup([found] if isinstance(found, NDArray) else found, form)

    def _observe(self, compiled: Compiled, inputs: Sequence[NDArray], hooks: Sequence[OpHook]) -> Any:
        """Compute operator by operator, so that hooks and monitors see every output."""
        symbol = compiled.traced.symbol
        found = observed(symbol, dict(zip(symbol.list_inputs(), inputs, strict=True)), hooks)
        return found[0] if len(found) == 1 else found

    def _add_op_hook(self, callback: Callable[..., Any], monitor_all: bool, is_active: Callable[[], bool]) -> None:
        self._op_hooks.append(OpHook(callback, monitor_all, is_active))
        super()._add_op_hook(callback, monitor_all, is_active)

    def _compile(self, given: Sequence[NDArray], form: Format, args: tuple[Any, ...]) -> Compiled:
        traced = self._trace(args)
        params = self._params_of(traced)
        names = traced.symbol.list_inputs()
        self._warn_of_unused(names, traced.inputs)
        self._finish(params.values(), traced, args)
        traced = self._partitioned(traced, params)
        names = traced.symbol.list_inputs()
        position = {name: index for index, name in enumerate(traced.inputs)}
        sources = [position[name] if name in position else params[name] for name in names]
        op = CachedOp(traced.symbol, **self._flags, data_names=traced.inputs)
        self._compiled[_key(given, form)] = made = Compiled(traced, op, sources)
        return made

    def _partitioned(self, traced: Traced, params: Mapping[str, Parameter]) -> Traced:
        """The graph with the regions that the backend chooses as single nodes."""
        if self._backend is None:
            return traced
        backend, options = self._backend
        auxiliary = set(traced.symbol.list_auxiliary_states())
        arrays = {name: param._reduce() for name, param in params.items()}
        aux = {name: arrays.pop(name) for name in auxiliary if name in arrays}
        made = traced.symbol.optimize_for(backend, arrays, aux, **options)
        added = [name for name in made.list_inputs() if name not in params and name not in traced.inputs]
        if added:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: the backend {backend!r} adds the variables {', '.join(added)}, "
                "and may use a block's parameters alone: change its symbol instead, and make a SymbolBlock of that"
            )
        return traced._replace(symbol=made)

    def _trace(self, args: tuple[Any, ...]) -> Traced:
        """Compose the graph for inputs that nest as these do."""
        given, form = flatten(args, NDArray, f"{type(self).__name__} {self.name!r}: inputs", optional=True)
        names = ["data"] if len(given) == 1 else [f"data{index}" for index in range(len(given))]
        variables = [sym.var(name) for name in names]
        if _is_np(given):
            variables = [each.as_np_ndarray() for each in variables]
        result = self._compose(regroup(variables, form))
        outputs, out_form = flatten(
            result, Symbol, f"{type(self).__name__} {self.name!r}: outputs of hybrid_forward", optional=True
        )
        classic = tuple(at for at, each in enumerate(outputs) if each.__class__ is Symbol) if _is_np(given) else ()
        return Traced(names, sym.Group(outputs), out_form, classic)

    def _params_of(self, traced: Traced) -> dict[str, Parameter]:
        """The parameters of a graph, by name.

        Raises:
            ValueError: a variable of it is neither an input nor a parameter.
        """
        known = self.collect_params()
        names = [name for name in traced.symbol.list_inputs() if name not in traced.inputs]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: hybrid_forward uses the variable {unknown[0]!r}, which is "
                "neither an input nor a parameter of the block or its children: register the block that it belongs to"
            )
        return {name: known[name] for name in names}

    def _warn_of_unused(self, used: Sequence[str], inputs: Sequence[str]) -> None:
        label = f"{type(self).__name__} {self.name!r}"
        for name in inputs:
            if name not in used:
                warnings.warn(f"{label}: its input {name!r} is not used: is that intended?", stacklevel=7)
        unused = [name for name in self.collect_params() if name not in used]
        if unused:
            warnings.warn(f"{label}: the parameters {', '.join(unused)} are not used: is that intended?", stacklevel=7)

    # -- inference -------------------------------------------------------------------------------------

    def infer_shape(self, *args: Any) -> None:
        """Set what is unknown of the parameters' shapes from those of inputs.

        Raises:
            ShapeError: the inputs do not fit.
        """
        self._infer_shape(self._trace(args), args)

    def infer_type(self, *args: Any) -> None:
        """Set the parameters' dtypes from those of inputs.

        Raises:
            TypeInferenceError: the inputs contradict each other.
        """
        traced = self._trace(args)
        # Variables that have not declared the dtypes that the parameters have now.
        free = traced.symbol(**{name: sym.var(name) for name in traced.symbol.list_arguments()})
        arguments, _, auxiliary = free.infer_type_partial(**_attribute("dtype", traced, args))
        self._set("dtype", traced, arguments, auxiliary)

    def _infer_shape(self, traced: Traced, args: Any) -> None:
        arguments, _, auxiliary = traced.symbol.infer_shape_partial(**_attribute("shape", traced, args))
        self._set("shape", traced, arguments, auxiliary)

    def _set(self, attribute: str, traced: Traced, arguments: Any, auxiliary: Any) -> None:
        params = self._params_of(traced)
        names = [*traced.symbol.list_arguments(), *traced.symbol.list_auxiliary_states()]
        for name, value in zip(names, [*arguments, *auxiliary], strict=True):
            if name in params and value is not None and value != ():
                setattr(params[name], attribute, value)

    def _finish(self, params: Any, traced: Traced | None, args: tuple[Any, ...]) -> None:
        """Make the parameters whose initialization waits for their shapes, which a block of the user's may set itself.

        Raises:
            ValueError: the shapes do not follow from those of the inputs.
        """
        waiting = [param for param in params if param._deferred is not None]
        if not waiting:
            return
        if traced is None or type(self).infer_shape is not HybridBlock.infer_shape:
            self.infer_shape(*args)
        else:
            self._infer_shape(traced, args)
        for param in waiting:
            if not _is_known(param.shape):
                raise ValueError(
                    f"{type(self).__name__} {self.name!r}: the shape of parameter {param.name!r} does not follow from "
                    f"those of the inputs (known of it: {param.shape}): give the layer in_units, in_channels or the "
                    "like"
                )
            param._finish_deferred_init()

    # -- files -----------------------------------------------------------------------------------------

    def export(self, path: str | os.PathLike[str], epoch: int = 0, remove_amp_cast: bool = True) -> tuple[str, str]:
        """Save the graph and the parameters as a checkpoint; blocks until they are on disk.

        ``SymbolBlock.imports``, ``mx.mod.Module.load`` and MXNet read it. The graph is that of the first call.

        Args:
            path: the start of the files' names, ``<path>-symbol.json`` and ``<path>-<epoch, four digits>.params``.
            epoch: the number in the second.
            remove_amp_cast: leave casts of mixed precision out.

        Returns:
            the names of the two files.

        Raises:
            RuntimeError: the block was not hybridized and called.
        """
        if not self._compiled:
            raise RuntimeError(
                f"export: {type(self).__name__} {self.name!r} has no graph: call hybridize(), then the block once"
            )
        traced = next(iter(self._compiled.values())).traced
        files = f"{os.fspath(path)}-symbol.json", f"{os.fspath(path)}-{epoch:04d}.params"
        traced.symbol.save(files[0], remove_amp_cast=remove_amp_cast)
        auxiliary = set(traced.symbol.list_auxiliary_states())
        params = self._params_of(traced)
        nd.save(files[1], {f"{'aux' if n in auxiliary else 'arg'}:{n}": p._reduce() for n, p in params.items()})
        return files


_NOTE = "while composing"


def _leaves(args: Sequence[Any]) -> Iterator[Any]:
    for each in args:
        if isinstance(each, (list, tuple)):
            yield from _leaves(each)
        else:
            yield each


def _is_np(given: Sequence[Any]) -> bool:
    """Tell whether there are arrays of ``mx.np`` among inputs."""
    return any(
        each is not None and each.__class__ is not NDArray and not isinstance(each._shape, SparseShape)
        for each in given
    )


def _key(given: Sequence[Any], form: Format) -> str:
    """The key of a graph: how inputs nest, as JSON, after a space where code of the block gets arrays of ``mx.np``."""
    return f" {form}" if _is_np(given) else str(form)


def _symbols(nested: Any, change: Callable[[Symbol], Symbol]) -> Any:
    """Nested symbols, each changed."""
    if isinstance(nested, (list, tuple)):
        return type(nested)([_symbols(each, change) for each in nested])
    return change(nested) if isinstance(nested, Symbol) else nested


def _kinds(args: Sequence[Any]) -> tuple[dict[Context, None], bool]:
    """The devices of the arrays among nested inputs, and whether there are symbols."""
    contexts: dict[Context, None] = {}
    symbols = False
    for each in _leaves(args):
        if isinstance(each, NDArray):
            contexts[each.context] = None
        elif isinstance(each, Symbol):
            symbols = True
    return contexts, symbols


def _attribute(attribute: str, traced: Traced, args: Sequence[Any]) -> Mapping[str, Any]:
    """The shapes or dtypes of inputs, by the names of the variables in their places."""
    arrays = [each for each in _leaves(args) if each is not None]
    used = set(traced.symbol.list_inputs())
    return {name: getattr(each, attribute) for name, each in zip(traced.inputs, arrays, strict=True) if name in used}


class Layer(HybridBlock):
    """A hybrid block that makes one array of an array, and a symbol of a symbol, as type checkers are to know."""

    if TYPE_CHECKING:

        def __call__(self, x: A, /, *args: Any) -> A: ...


def _blocks(block: Any) -> Iterator[Any]:
    """A block, and all that are in it."""
    yield block
    for child in block._children.values():
        yield from _blocks(child)


def _is_own(block: Any) -> bool:
    """Tell whether a block computes by flowmx's own code alone."""
    cls = type(block)
    methods = (getattr(cls, "hybrid_forward", None), getattr(cls, "forward", None))
    own = all(each is None or each.__module__.startswith("flowmx.") for each in methods)
    return own and not callable(getattr(block, "_function", None))  # HybridLambda's
