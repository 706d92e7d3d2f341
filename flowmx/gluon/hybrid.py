"""Blocks whose code runs on arrays and on symbols alike; hybridized blocks run a compiled graph.

A hybridized block calls its ``hybrid_forward`` once with symbols for each structure of its inputs, and passes the graph
to a :class:`~flowmx.cached_op.CachedOp`. The graph's inputs are the block's inputs and the parameters' arrays.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, overload

import numpy as np

from flowmx import forks
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.cached_op import CachedOp
from flowmx.cached_op.operator_hooks import OpHook, observed
from flowmx.devices import Context, current_context
from flowmx.errors import ArgumentKindError
from flowmx.gluon.base_block import A, Block, R_co, check_child
from flowmx.gluon.hook_watch import HookWatch
from flowmx.gluon.parameter import DeferredInitializationError, Parameter, _is_known
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.graph import collector
from flowmx.graph.nesting import Format, flatten, regroup
from flowmx.ndarray import NDArray
from flowmx.ops import kernels
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Namespace
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.overrides import is_replaced
from flowmx.symbol import Symbol

__all__ = ["HybridBlock", "Operators"]

Operators: TypeAlias = Namespace[NDArray]
"""The type of ``F`` in :meth:`HybridBlock.hybrid_forward`, for annotations: the operators of ``mx.nd``.

``F`` may also be ``mx.sym``. A method that is correct for arrays is correct for symbols too, except where it reads
values or shapes.
"""


_composition_lock = forks.lock()
"""Held while a graph is composed of parameters' variables: a call in another thread may set their shapes."""


class Traced(NamedTuple):
    """The symbol that a block was traced into.

    Attributes:
        inputs: the names of the variables of its inputs.
        symbol: all outputs.
        form: the nesting of the outputs.
        classic: the positions of outputs that are arrays of ``mx.nd`` although the inputs are of ``mx.np``.
    """

    inputs: list[str]
    symbol: Symbol
    form: Format
    classic: tuple[int, ...] = ()


class Sources:
    """The inputs of a compiled graph: positions among the block's inputs, and parameters.

    Reading the parameters one by one takes as long as a layer, so their arrays are read again only after a change.

    Args:
        sources: for each input, a position or a parameter.
    """

    def __init__(self, sources: Sequence[int | Parameter]) -> None:
        self._sources = sources
        self._positions = [(at, source) for at, source in enumerate(sources) if isinstance(source, int)]
        self._parameters = [source for source in sources if not isinstance(source, int)]
        self._is_cacheable = not any(is_replaced(each, "data", Parameter.data) for each in self._parameters)
        self._last: tuple[Context, list[Any], list[Any]] | None = None
        """The context of the last call, the tables of the parameters' arrays, and its inputs."""

    def call(self, op: CachedOp, arrays: Sequence[Any], context: Context) -> Any:
        """Call a graph with the inputs of the block on a device."""
        if not self._is_cacheable:
            return op(*self.inputs(arrays, context))
        last = self._last
        if last is None or last[0] != context or not all(map(is_, map(_tables_of, self._parameters), last[1])):
            tables = [*map(_tables_of, self._parameters)]  # first, so that the next call sees a change in between
            inputs = self.inputs(arrays, context)
            for at, _ in self._positions:
                inputs[at] = None
            self._last = last = context, tables, inputs
        return op.call_with(last[2], [arrays[position] for _, position in self._positions])

    def inputs(self, arrays: Sequence[Any], context: Context) -> list[Any]:
        """Return the inputs of the graph for inputs of the block on a device."""
        return [arrays[source] if isinstance(source, int) else source.data(context) for source in self._sources]


_tables_of = attrgetter("_arrays")


class Compiled(NamedTuple):
    """A traced block with its compiled graph.

    Attributes:
        traced: the traced symbol.
        op: computes the symbol.
        sources: the inputs of ``op``.
    """

    traced: Traced
    op: CachedOp
    sources: Sources


class HasHybridForward(Protocol[R_co]):
    """A hybrid block, seen by type checkers: ``forward`` returns what ``hybrid_forward`` does."""

    @property
    def hybrid_forward(self) -> Callable[..., R_co]: ...


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
        self._by_classes: dict[tuple[type, ...], Compiled] = {}
        """The graphs for inputs that are not nested, by the classes of the arrays."""
        self._op_hooks: list[OpHook] = []
        self._hook_watch = HookWatch()
        self._backend: tuple[str, dict[str, Any]] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (HybridBlock, Parameter)):
            self._clear_cached_op()

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Register a block as a child.

        Raises:
            TypeError: the block is not a HybridBlock.
        """
        check_child(self, block)
        if not isinstance(block, HybridBlock):
            raise ArgumentKindError(
                f"{type(self).__name__} {self.name!r}: children of a HybridBlock must be HybridBlocks, and "
                f"{type(block).__name__} is not one: derive it from HybridBlock, or use nn.Sequential instead of "
                "nn.HybridSequential"
            )
        super().register_child(block, name)
        self._clear_cached_op()

    def _clear_cached_op(self) -> None:
        self._compiled, self._by_classes = {}, {}

    @property
    def _cached_graph(self) -> tuple[list[str], Symbol] | tuple[()]:
        """The names of the inputs and the graph of the first call, for MXNet's scripts; empty before the first call."""
        for compiled in self._compiled.values():
            return compiled.traced.inputs, compiled.traced.symbol
        return ()

    def __getstate__(self) -> dict[str, Any]:
        # A copy compiles its graphs again.
        return {**self.__dict__, "_compiled": {}, "_by_classes": {}, "_hook_watch": HookWatch()}

    def cast(self, dtype: DTypeLike) -> None:
        """Change the element type of the parameters of this block and its children."""
        self._clear_cached_op()
        super().cast(dtype)

    def hybridize(
        self, active: bool = True, backend: str | None = None, clear: bool = True, static_alloc: bool = False,
        static_shape: bool = False, inline_limit: int = 2, forward_bulk_size: int | None = None,
        backward_bulk_size: int | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Switch this block and its children to compiled graphs, or back.

        Args:
            active: whether to compile graphs.
            backend: the partitioner that changes the graph first (``mx.sym.register_partitioner``); an unknown one
                causes a warning when the graph is compiled.
            clear: compile again at the next call.
            static_alloc: keep the memory of intermediate values between calls.
            static_shape: plan for constant shapes; other shapes work, but slowly. Needs ``static_alloc``.
            inline_limit: ignored; accepted for MXNet's scripts.
            forward_bulk_size: ignored; accepted for MXNet's scripts.
            backward_bulk_size: ignored; accepted for MXNet's scripts.
            **kwargs: options of the partitioner.

        Raises:
            ValueError: ``static_shape`` is set without ``static_alloc``.
        """
        if static_shape and not static_alloc:
            raise ValueError("hybridize: static_shape=True needs static_alloc=True")
        if active and (self._forward_hooks or self._forward_pre_hooks):
            warnings.warn(
                f"hybridize: block {self.name!r} has hooks, which are not called if its parent is hybridized too",
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
        """Hybridize, and compile the graph for inputs like these now, without computing anything.

        Args:
            x: an input.
            *args: the other inputs.
            backend: as for :meth:`hybridize`.
            clear: compile existing graphs again.
            partition_if_dynamic: ignored; accepted for MXNet's scripts.
            **kwargs: as for :meth:`hybridize`.

        Raises:
            ValueError: ``backend`` is missing (as in MXNet).
        """
        if not backend:
            raise ValueError("optimize_for: backend is missing: pass a partitioner's name, or call hybridize()")
        self.hybridize(True, backend, clear, **kwargs)
        if _key(*self._flat_inputs((x, *args))) not in self._compiled:
            self._build_cache(x, *args)

    # -- calling ---------------------------------------------------------------------------------------

    @overload
    def forward(self: HasHybridForward[R_co], *args: Any, **kwargs: Any) -> R_co: ...

    @overload
    def forward(self, *args: Any, **kwargs: Any) -> Any: ...

    def forward(self, x: Any, *args: Any) -> Any:
        """Compute with arrays, or compose symbols, with :meth:`hybrid_forward`.

        Raises:
            ValueError: the inputs hold arrays and symbols, or neither, or arrays of several devices (hybridized).
        """
        if isinstance(x, NDArray) and not args:
            return self._compute(x.context, (x,))
        contexts, has_symbols = _kinds((x, *args))
        if has_symbols == bool(contexts):
            raise ValueError(f"{type(self).__name__} {self.name!r}: {_wrong_inputs((x, *args), has_symbols)}")
        if has_symbols:
            return self._compose((x, *args))
        if self._active and len(contexts) > 1:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: the inputs are on {', '.join(map(str, contexts))}; hybridized, "
                "a block takes inputs of one device: move them with as_in_context"
            )
        return self._compute(next(iter(contexts)), (x, *args))

    def hybrid_forward(self, F: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; implemented by subclasses.

        Args:
            F: ``mx.nd`` or ``mx.sym``.
            *args: the inputs, arrays or symbols.
            **kwargs: the block's parameters, by the names of their attributes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define hybrid_forward()")

    def _compute(self, context: Context, args: tuple[Any, ...]) -> Any:
        if self._active and not self._hook_watch.has_new(self):
            return self._call_cached_op(*args)
        if context is not current_context():
            with context:
                return self._compute(context, args)
        params = self._data(context)
        if params is None:
            self._finish_params(self._params.values(), None, args)
            params = {key: param.data(context) for key, param in self._reg_params.items()}
        return self.hybrid_forward(nd, *args, **params)

    def _data(self, context: Context) -> dict[str, NDArray] | None:
        """Return the block's parameters, or None if they are not initialized before the first call."""
        try:
            return {key: param.data(context) for key, param in self._reg_params.items()}
        except DeferredInitializationError:
            return None

    def _compose(self, args: Sequence[Any]) -> Any:
        is_np = any(leaf.__class__ is not Symbol for leaf in _leaves(args) if leaf is not None)
        if is_np and all(map(_is_builtin, _blocks(self))):  # built-in blocks use the operators of mx.sym
            outputs = self._compose(_map_symbols(args, lambda symbol: symbol.as_nd_ndarray()))
            return _map_symbols(outputs, lambda symbol: symbol.as_np_ndarray())
        params = {key: param.var() for key, param in self._reg_params.items()}
        if is_np:
            params = {key: variable.as_np_ndarray() for key, variable in params.items()}
        try:
            with self.name_scope():
                return self.hybrid_forward(sym, *args, **params)
        except Exception as error:  # the user's hybrid_forward may raise anything
            if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
                error.add_note(
                    f"{_NOTE} {type(self).__name__} {self.name!r}: hybrid_forward was called with symbols, which have "
                    "no values and no shape; choose by values with F.where or F.contrib.cond, leave lengths "
                    "to reshape (0 keeps one, -1 infers it), or do not hybridize it"
                )
            raise

    # -- compiled graphs -------------------------------------------------------------------------------
    # Subclasses and other packages override methods of these names, which are called as in MXNet.

    def _call_cached_op(self, *args: Any) -> Any:
        """Compute the outputs with the compiled graph."""
        arrays: Sequence[Any] = args
        compiled = self._by_classes.get(tuple(map(type, args)))
        if compiled is None:
            arrays, compiled = self._compiled_for(args)
        context = _context_of(arrays)
        hooks = [hook for hook in self._op_hooks if hook.is_active()] if self._op_hooks else None
        if hooks:
            outputs = self._observe(compiled, compiled.sources.inputs(arrays, context), hooks)
        else:
            outputs = compiled.sources.call(compiled.op, arrays, context)
        form, classic = compiled.traced.form, compiled.traced.classic
        if classic:
            results = [outputs] if isinstance(outputs, NDArray) else outputs
            for index in classic:
                results[index].__class__ = NDArray  # a new array without other references
        if form == 0:
            return outputs
        return regroup([outputs] if isinstance(outputs, NDArray) else outputs, form)

    def _compiled_for(self, args: tuple[Any, ...]) -> tuple[Sequence[Any], Compiled]:
        """Return the arrays of nested inputs, and the graph for them, which is compiled if it is new."""
        arrays, form = self._flat_inputs(args)
        compiled = self._compiled.get(_key(arrays, form))
        if compiled is None:
            kernels.expect_graph(_context_of(arrays).kernels)
            with collector.paused():
                self._build_cache(*args)
                compiled = self._compiled.get(_key(arrays, form)) or self._compile(arrays, form, args)
        if all(isinstance(arg, NDArray) for arg in args):
            self._by_classes[tuple(map(type, args))] = compiled
        return arrays, compiled

    def _observe(self, compiled: Compiled, inputs: Sequence[NDArray], hooks: Sequence[OpHook]) -> Any:
        """Run the graph operator by operator, so that hooks and monitors receive every output."""
        symbol = compiled.traced.symbol
        outputs = observed(symbol, dict(zip(symbol.list_inputs(), inputs, strict=True)), hooks)
        return outputs[0] if len(outputs) == 1 else outputs

    def _add_op_hook(self, callback: Callable[..., Any], monitor_all: bool, is_active: Callable[[], bool]) -> None:
        self._op_hooks.append(OpHook(callback, monitor_all, is_active))
        super()._add_op_hook(callback, monitor_all, is_active)

    def _build_cache(self, *args: Any) -> None:
        """Compile the graph for inputs like these."""
        self._compile(*self._flat_inputs(args), args)

    def _get_graph(self, *args: Any) -> tuple[list[Symbol], Symbol]:
        """Return the graph for inputs like these: the variables of the inputs, and all outputs."""
        traced = self._trace(args)
        self.__dict__["_last_traced"] = traced
        return [sym.var(name) for name in traced.inputs], traced.symbol

    def _graph(self, args: tuple[Any, ...]) -> Traced:
        """Trace the block; a subclass may override `_get_graph`."""
        if not is_replaced(self, "_get_graph", _BUILTIN_METHODS["_get_graph"]):
            return self._trace(args)
        self.__dict__.pop("_last_traced", None)
        inputs, symbol = self._get_graph(*args)
        traced: Traced | None = self.__dict__.pop("_last_traced", None)
        if traced is None:  # the nesting of the outputs is unknown
            traced = Traced([], symbol, 0 if len(symbol) == 1 else [0] * len(symbol))
        return traced._replace(inputs=[str(variable.name) for variable in inputs], symbol=symbol)

    def _flat_inputs(self, args: tuple[Any, ...]) -> tuple[list[Any], Format]:
        if all(isinstance(arg, NDArray) for arg in args):  # as usual
            return list(args), [0] * len(args)
        return flatten(args, NDArray, f"hybridized {type(self).__name__} {self.name!r}: inputs", optional=True)

    def _compile(self, arrays: Sequence[NDArray], form: Format, args: tuple[Any, ...]) -> Compiled:
        if not self._compiled:
            self._hook_watch.begin(self)
        traced = self._graph(args)
        all_params = self.collect_params()  # visits all blocks
        params = self._graph_params(traced, all_params)
        names = traced.symbol.list_inputs()
        self._warn_of_unused({*names}, traced.inputs, all_params)
        self._finish_params(params.values(), traced, args)
        traced = self._partition(traced, params)
        names = traced.symbol.list_inputs()
        position = {name: index for index, name in enumerate(traced.inputs)}
        sources = Sources([position[name] if name in position else params[name] for name in names])
        op = CachedOp(traced.symbol, **self._flags, data_names=traced.inputs, owner=self.name)
        # Another thread may have compiled the graph in the meantime.
        return self._compiled.setdefault(_key(arrays, form), Compiled(traced, op, sources))

    def _partition(self, traced: Traced, params: Mapping[str, Parameter]) -> Traced:
        """Replace the regions that the backend chooses by single nodes."""
        if self._backend is None:
            return traced
        backend, options = self._backend
        auxiliary = set(traced.symbol.list_auxiliary_states())
        arrays = {name: param._reduce() for name, param in params.items()}
        aux = {name: arrays.pop(name) for name in auxiliary if name in arrays}
        symbol = traced.symbol.optimize_for(backend, arrays, aux, **options)
        extra = [name for name in symbol.list_inputs() if name not in params and name not in traced.inputs]
        if extra:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: the backend {backend!r} adds the variables {', '.join(extra)}, "
                "but may only use the block's parameters: change its symbol instead, and create a SymbolBlock from it"
            )
        return traced._replace(symbol=symbol)

    def _trace(self, args: tuple[Any, ...]) -> Traced:
        """Compose the graph for inputs with this nesting."""
        arrays, form = flatten(args, NDArray, f"{type(self).__name__} {self.name!r}: inputs", optional=True)
        names = ["data"] if len(arrays) == 1 else [f"data{index}" for index in range(len(arrays))]
        variables = [sym.var(name) for name in names]
        if _is_np(arrays):
            variables = [variable.as_np_ndarray() for variable in variables]
        with _composition_lock:
            result = self._compose(regroup(variables, form))
        if result is None:
            raise TypeError(f"{type(self).__name__} {self.name!r}: hybrid_forward returned None: return its outputs")
        outputs, out_form = flatten(
            result, Symbol, f"{type(self).__name__} {self.name!r}: outputs of hybrid_forward", optional=True
        )
        classic = tuple(i for i, output in enumerate(outputs) if output.__class__ is Symbol) if _is_np(arrays) else ()
        return Traced(names, sym.Group(outputs), out_form, classic)

    def _graph_params(self, traced: Traced, all_params: ParameterDict | None = None) -> dict[str, Parameter]:
        """Return the parameters of a graph, by name; ``all_params`` are the block's.

        Raises:
            ValueError: a variable is neither an input nor a parameter.
        """
        all_params = self.collect_params() if all_params is None else all_params
        names = [name for name in traced.symbol.list_inputs() if name not in traced.inputs]
        unknown = [name for name in names if name not in all_params]
        if unknown:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: hybrid_forward uses the variable {unknown[0]!r}, which is "
                "neither an input nor a parameter of the block or its children: register its block"
            )
        return {name: all_params[name] for name in names}

    def _warn_of_unused(self, used: Collection[str], inputs: Sequence[str], params: ParameterDict) -> None:
        label = f"{type(self).__name__} {self.name!r}"
        for name in inputs:
            if name not in used:
                warnings.warn(f"{label}: its input {name!r} is not used: is that intended?", stacklevel=7)
        unused = [name for name, param in params.items() if name not in used and not param.may_be_unused]
        if unused:
            warnings.warn(f"{label}: the parameters {', '.join(unused)} are not used: is that intended?", stacklevel=7)

    # -- inference -------------------------------------------------------------------------------------

    def infer_shape(self, *args: Any) -> None:
        """Infer the unknown lengths of the parameters' shapes from the shapes of the inputs.

        Raises:
            ShapeError: the inputs' shapes contradict the graph.
        """
        self._infer_attrs("infer_shape", "shape", *args)

    def infer_type(self, *args: Any) -> None:
        """Infer the parameters' dtypes from the dtypes of the inputs.

        Raises:
            TypeInferenceError: the inputs contradict each other.
        """
        self._infer_attrs("infer_type", "dtype", *args)

    def _deferred_infer_shape(self, *args: Any) -> None:
        """Infer the shapes of parameters with deferred initialization."""
        self.infer_shape(*args)

    def _infer_attrs(self, infer_fn: str, attr: str, *args: Any) -> None:
        """Infer ``"shape"`` or ``"dtype"`` of the parameters from the inputs."""
        traced = self._graph(args)
        if attr == "shape":
            self._infer_shape(traced, args)
        else:
            self._infer_type(traced, args)

    def _infer_type(self, traced: Traced, args: Any) -> None:
        # New variables, because the parameters' current dtypes would constrain the inference.
        untyped = traced.symbol(**{name: sym.var(name) for name in traced.symbol.list_arguments()})
        arguments, _, auxiliary = untyped.infer_type_partial(**_attribute("dtype", traced, args))
        self._set("dtype", traced, arguments, auxiliary)

    def _infer_shape(self, traced: Traced, args: Any) -> None:
        arguments, _, auxiliary = traced.symbol.infer_shape_partial(**_attribute("shape", traced, args))
        self._set("shape", traced, arguments, auxiliary)

    def _set(self, attribute: str, traced: Traced, arguments: Any, auxiliary: Any) -> None:
        params = self._graph_params(traced)
        names = [*traced.symbol.list_arguments(), *traced.symbol.list_auxiliary_states()]
        with _composition_lock:
            for name, value in zip(names, [*arguments, *auxiliary], strict=True):
                if name in params and value is not None and value != ():
                    setattr(params[name], attribute, value)

    def _finish_params(self, params: Any, traced: Traced | None, args: tuple[Any, ...]) -> None:
        """Finish deferred initialization; a user's block may override how shapes are inferred.

        Raises:
            ValueError: the shapes cannot be inferred from the inputs.
        """
        deferred = [param for param in params if param._deferred is not None]
        if not deferred:
            return
        if traced is None or any(is_replaced(self, name, _BUILTIN_METHODS[name]) for name in _INFERENCE_METHODS):
            self._deferred_infer_shape(*args)
        else:
            self._infer_shape(traced, args)
        for param in deferred:
            if not _is_known(param.shape):
                raise ValueError(
                    f"{type(self).__name__} {self.name!r}: the shape of parameter {param.name!r} cannot be inferred "
                    f"from those of the inputs (known: {param.shape}): pass in_units, in_channels or the "
                    "like to the layer"
                )
            param._finish_deferred_init()

    # -- files -----------------------------------------------------------------------------------------

    def export(self, path: str | os.PathLike[str], epoch: int = 0, remove_amp_cast: bool = True) -> tuple[str, str]:
        """Save the graph and the parameters as a checkpoint; blocks until they are on disk.

        ``SymbolBlock.imports``, ``mx.mod.Module.load`` and MXNet can load it. The first call determines the graph.

        Args:
            path: the prefix of the files' names, ``<path>-symbol.json`` and ``<path>-<epoch, four digits>.params``.
            epoch: the number in the second name.
            remove_amp_cast: remove casts of mixed precision.

        Returns:
            The names of the two files.

        Raises:
            RuntimeError: the block has not been hybridized and called.
        """
        if not self._compiled:
            raise RuntimeError(
                f"export: {type(self).__name__} {self.name!r} has no graph: call hybridize(), then the block once"
            )
        traced = next(iter(self._compiled.values())).traced
        files = f"{os.fspath(path)}-symbol.json", f"{os.fspath(path)}-{epoch:04d}.params"
        traced.symbol.save(files[0], remove_amp_cast=remove_amp_cast)
        auxiliary = set(traced.symbol.list_auxiliary_states())
        params = self._graph_params(traced)
        nd.save(files[1], {f"{'aux' if n in auxiliary else 'arg'}:{n}": p._reduce() for n, p in params.items()})
        return files


_INFERENCE_METHODS = ("_deferred_infer_shape", "infer_shape", "_infer_attrs")
_BUILTIN_METHODS = {name: getattr(HybridBlock, name) for name in (*_INFERENCE_METHODS, "_get_graph")}
_NOTE = "while composing"


def _leaves(args: Sequence[Any]) -> list[Any]:
    leaves: list[Any] = []
    for arg in args:
        if isinstance(arg, (list, tuple)):
            leaves += _leaves(arg)
        else:
            leaves.append(arg)
    return leaves


def _is_np(arrays: Sequence[Any]) -> bool:
    """Return whether inputs include arrays of ``mx.np``."""
    return any(
        array is not None and array.__class__ is not NDArray and not isinstance(array.dims, SparseShape)
        for array in arrays
    )


def _context_of(arrays: Sequence[Any]) -> Context:
    """Return the context of the first array; optional inputs are None."""
    context: Context = (arrays[0] if arrays[0] is not None else next(array for array in arrays if array)).context
    return context


def _key(arrays: Sequence[Any], form: Format) -> str:
    """Return the key of a graph: the nesting of inputs as JSON; a space before it marks arrays of ``mx.np``."""
    return f" {form}" if _is_np(arrays) else str(form)


def _map_symbols(nested: Any, change: Callable[[Symbol], Symbol]) -> Any:
    """Apply a function to nested symbols."""
    if isinstance(nested, (list, tuple)):
        return type(nested)([_map_symbols(part, change) for part in nested])
    return change(nested) if isinstance(nested, Symbol) else nested


def _kinds(args: Sequence[Any]) -> tuple[dict[Context, None], bool]:
    """Return the devices of the arrays among nested inputs, and whether there are symbols."""
    contexts: dict[Context, None] = {}
    has_symbols = False
    for leaf in _leaves(args):
        if isinstance(leaf, NDArray):
            contexts[leaf.storage.device.context] = None
        elif isinstance(leaf, Symbol):
            has_symbols = True
    return contexts, has_symbols


def _attribute(attribute: str, traced: Traced, args: Sequence[Any]) -> Mapping[str, Any]:
    """Return the shapes or dtypes of inputs, by the names of their variables."""
    arrays = [leaf for leaf in _leaves(args) if leaf is not None]
    used = set(traced.symbol.list_inputs())
    return {name: getattr(array, attribute) for name, array in zip(traced.inputs, arrays, strict=True) if name in used}


class Layer(HybridBlock):
    """A hybrid block with one input and one output of the same type, for type checkers."""

    if TYPE_CHECKING:

        def __call__(self, x: A, /, *args: Any) -> A: ...


def _blocks(block: Any) -> Iterator[Any]:
    """Iterate over a block and all blocks in it."""
    yield block
    for child in block._children.values():
        yield from _blocks(child)


def _is_builtin(block: Any) -> bool:
    """Return whether a block runs only flowmx's code."""
    cls = type(block)
    methods = (getattr(cls, "hybrid_forward", None), getattr(cls, "forward", None))
    is_builtin = all(method is None or method.__module__.startswith("flowmx.") for method in methods)
    return is_builtin and not callable(getattr(block, "_function", None))  # a HybridLambda has a user's function


def _wrong_inputs(args: Sequence[Any], has_symbols: bool) -> str:
    """Describe inputs that hold both arrays and symbols, or neither."""
    if has_symbols:
        return "the inputs hold both arrays and symbols, expected one of them"
    wrong = args[0]
    kind = type(wrong)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if kind.__module__.partition(".")[0] in ("torch", "jax", "jaxlib", "tensorflow", "cupy"):
        advice = ": convert it with mx.nd.from_dlpack(x)"
    elif isinstance(wrong, (list, tuple, np.ndarray, int, float)) or hasattr(wrong, "__array__"):
        advice = ": convert it with mx.nd.array(x)"
    else:
        advice = ""
    return f"the input is {name}, expected an NDArray{advice}"
