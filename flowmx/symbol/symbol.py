"""``mx.sym.Symbol``: an expression over variables, composed now and computed when it is bound."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import attribute, name
from flowmx.engine import Origin, capture
from flowmx.errors import MXNetError, NoTruthValue, ParameterError, ShapeError, raised_as_mxnet
from flowmx.graph import infer
from flowmx.graph.casts import remove_casts
from flowmx.graph.node import Entry, Node, auxiliary_nodes, input_versions, topological
from flowmx.graph.storage_types import storage_number
from flowmx.graph.subgraph import Body
from flowmx.ops.registry import calling
from flowmx.ops.registry.dtypes import FLAGS, as_dtype, name_of
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone, lookup
from flowmx.semantics import semantics
from flowmx.serialization import symbol_json
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole
from flowmx.suggestions import did_you_mean
from flowmx.symbol.initial_values import default_initializers
from flowmx.symbol.methods import Methods

if TYPE_CHECKING:
    from flowmx.executor import Executor
    from flowmx.graph.reports.estimate import MemoryEstimate


def _binary(array_op: str, scalar_op: str, swapped: bool = False) -> Callable[[Symbol, Any], Symbol]:
    """The method for one of Python's operators: with a symbol of the same shape, or with a number."""

    def method(self: Symbol, other: Any) -> Any:
        if isinstance(other, Symbol):
            return apply(array_op, [other, self] if swapped else [self, other])
        if isinstance(other, (int, float, np.generic)):
            return apply(scalar_op, [self], {"scalar": other})
        return NotImplemented

    return method


class Symbol(Methods):
    """One or more outputs of a graph of operators.

    Example:
        >>> data = mx.sym.Variable("data")
        >>> net = mx.sym.FullyConnected(data, num_hidden=10, name="fc")
        >>> net.list_arguments()
        ['data', 'fc_weight', 'fc_bias']
    """

    __slots__ = ("_entries", "_order", "_parted")
    __array_ufunc__ = None
    """NumPy leaves operators with a number of its own on the left to the symbol."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(entries)
        self._order: list[Node] | None = None
        self._parted: tuple[list[Node], list[Node]] | None = None
        """The arguments and the auxiliary states, once they were asked for."""

    # -- structure -------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The name of its node, or None for a group of several."""
        nodes = {entry.node for entry in self._entries}
        return next(iter(nodes)).name if len(nodes) == 1 else None

    def _nodes(self) -> list[Node]:
        if self._order is None:
            self._order = topological(self._entries)
        return list(self._order)

    def _variables(self) -> tuple[list[Node], list[Node]]:
        """The arguments and the auxiliary states."""
        if self._parted is None:
            nodes = self._nodes()
            auxiliary = auxiliary_nodes(nodes)
            self._parted = [n for n in nodes if n.op is None and n not in auxiliary], list(auxiliary)
        arguments, states = self._parted
        return list(arguments), list(states)

    def list_arguments(self) -> list[str]:
        """Names of the variables to bind, in the order that ``bind`` takes them."""
        return [node.name for node in self._variables()[0]]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the auxiliary states (a BatchNorm's moving mean)."""
        return [node.name for node in self._variables()[1]]

    def list_inputs(self) -> list[str]:
        """Names of all variables, arguments and auxiliary states."""
        return [node.name for node in self._nodes() if node.is_variable]

    def list_outputs(self) -> list[str]:
        """Names of the outputs, such as ``fc_output``."""
        return [entry.node.output_name(entry.index) for entry in self._entries]

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([entry]) for entry in self._entries)

    def __getitem__(self, index: int | str | slice) -> Symbol:
        """One output, by position or name.

        Raises:
            ValueError: no output, or more than one, has that name.
            IndexError: there is no such position.
        """
        if isinstance(index, str):
            names = self.list_outputs()
            found = [i for i, each in enumerate(names) if each == index]
            if len(found) != 1:
                raise ValueError(f"{len(found)} outputs are called {index!r}, expected one of {names}")
            index = found[0]
        if isinstance(index, slice):
            return Symbol(self._entries[index])
        if not -len(self._entries) <= index < len(self._entries):
            raise IndexError(f"output {index} was asked for, the symbol has {len(self._entries)}")
        return Symbol([self._entries[index]])

    def get_internals(self) -> Symbol:
        """A group of every output of every node, for picking inner layers by name."""
        return Symbol([Entry(node, index) for node in self._nodes() for index in range(node.visible_outputs())])

    def get_children(self) -> Symbol | None:
        """A group of the inputs of its nodes, or None for variables."""
        inputs = [entry for node in dict.fromkeys(e.node for e in self._entries) for entry in node.inputs]
        return Symbol(inputs) if inputs else None

    def get_inputs(self) -> Symbol:
        """A group of all its variables."""
        return Symbol([Entry(node, 0) for node in self._nodes() if node.is_variable])

    def __copy__(self) -> Symbol:
        return Symbol(self._entries)

    def __deepcopy__(self, memo: Any) -> Symbol:
        return Symbol(self._entries)  # nodes never change, so sharing them is a copy

    def __reduce__(self) -> Any:
        return load_json, (self.tojson(),)

    def __repr__(self) -> str:
        if self.name is not None:
            return f"<Symbol {self.name}>"
        return f"<Symbol group [{', '.join(str(entry.node.name) for entry in self._entries)}]>"

    def _repr_html_(self) -> str:
        from flowmx.visualization.notebook import symbol_html

        return symbol_html(self)

    def __bool__(self) -> bool:
        raise NoTruthValue(
            "a Symbol can not be converted to bool: it is computed only when it is bound (compare names, or use len)"
        )

    # -- composition -----------------------------------------------------------------------------------

    def __call__(self, *args: Symbol, **kwargs: Any) -> Symbol:
        """Replace variables by other symbols, by position (of ``list_arguments``) or by name.

        Raises:
            TypeError: both positions and names, or no symbol in a variable's place.
            ValueError: a name that is no argument.
        """
        new_name = kwargs.pop("name", None)
        if args and kwargs:
            raise TypeError("compose: give the inputs by position or by name, not both")
        names = self.list_arguments()
        if len(args) > len(names):
            raise TypeError(f"compose: {len(args)} inputs were given, the symbol has {len(names)} arguments")
        given = dict(zip(names, args, strict=False)) if args else kwargs
        replacements: dict[str, Entry] = {}
        for key, value in given.items():
            if not isinstance(value, Symbol) or len(value) != 1:
                raise TypeError(f"compose: input {key} is {value!r}, expected a symbol with one output")
            if key not in names:
                raise ParameterError(f"compose: there is no argument {key!r}, expected one of {names}")
            replacements[key] = value._entries[0]
        return Symbol(self._replace(replacements, new_name))

    def _compose(self, *args: Symbol, **kwargs: Any) -> None:
        """As calling the symbol, which becomes the result itself; arguments and errors are the same."""
        self._entries, self._order, self._parted = self(*args, **kwargs)._entries, None, None

    def _replace(self, replacements: Mapping[str, Entry], new_name: str | None) -> list[Entry]:
        moved: dict[Node, Node] = {}

        def move(entry: Entry) -> Entry:
            if entry.node.is_variable and entry.node.name in replacements:
                return replacements[entry.node.name]
            return Entry(moved.get(entry.node, entry.node), entry.index)

        top = {entry.node for entry in self._entries}
        for node in self._nodes():
            inputs = tuple(move(entry) for entry in node.inputs)
            rename = new_name is not None and node in top and not node.is_variable
            if inputs != node.inputs or rename:
                label = new_name if rename and new_name else node.name
                moved[node] = Node(node.op, label, inputs, node.attributes, node.given, node.origin, node.versions)
        return [move(entry) for entry in self._entries]

    # -- attributes ------------------------------------------------------------------------------------

    def attr(self, key: str) -> str | None:
        """One attribute of its node (parameters are attributes too), or None."""
        node = self._entries[0].node
        return {**attribute.shown(node.attributes), **node.given}.get(key, node.attributes.get(f"__{key}__"))

    def list_attr(self, recursive: bool = False) -> dict[str, str]:
        """The attributes and parameters of its own node."""
        if recursive:
            raise DeprecationWarning("list_attr(recursive=True) is gone since MXNet 0.9: use attr_dict()")
        node = self._entries[0].node
        return {**node.given, **attribute.shown(node.attributes)}

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Attributes and parameters of every node that has some, by node name."""
        table = {node.name: {**node.given, **attribute.shown(node.attributes)} for node in self._nodes()}
        return {key: value for key, value in table.items() if value}

    def _set_attr(self, **attributes: str) -> None:
        for key, value in attributes.items():
            if not isinstance(value, str):
                raise ValueError(f"attribute {key} is {value!r}, expected text")
        self._entries[0].node.attributes.update(attribute.kept(attributes))

    # -- inference -------------------------------------------------------------------------------------

    def infer_shape(
        self, *args: Sequence[int] | None, **kwargs: Sequence[int]
    ) -> tuple[list[Shape] | None, list[Shape] | None, list[Shape] | None]:
        """The shapes of arguments, outputs and auxiliary states, given some of the arguments'.

        Args:
            *args: shapes in the order of ``list_arguments`` (None: unknown), or
            **kwargs: by name; 0 stands for an unknown length.

        Returns:
            three lists, or three None where what is given is not enough.

        Raises:
            ShapeError: the shapes contradict each other; names the node, its inputs and the line that made it.
            ParameterError: the symbol has no variable of a name.
        """
        self._refuse_others("infer_shape", kwargs)
        found = self._infer_shape(args, kwargs)
        if not all(infer.complete(shape) for shapes in found for shape in shapes):
            return None, None, None
        arguments, outputs, auxiliary = found
        return arguments, outputs, auxiliary  # type: ignore[return-value]  # all complete, seen above

    def infer_shape_partial(
        self, *args: Sequence[int] | None, **kwargs: Sequence[int]
    ) -> tuple[list[ShapeOrNone], list[ShapeOrNone], list[ShapeOrNone]]:
        """As :meth:`infer_shape`, with what is unknown as 0 (an unknown shape as the empty tuple).

        Within :func:`mx.np_shape`, where 0 is a length, what is unknown is -1, and an unknown shape None.
        """

        def shown(shape: ShapeOrNone) -> ShapeOrNone:
            if semantics.get().shape:
                return shape
            return () if shape is None else tuple(max(0, n) for n in shape)

        self._refuse_others("infer_shape_partial", kwargs)
        arguments, outputs, auxiliary = self._infer_shape(args, kwargs)
        return [shown(s) for s in arguments], [shown(s) for s in outputs], [shown(s) for s in auxiliary]

    def _refuse_others(self, function: str, given: Iterable[str]) -> None:
        names = [node.name for node in self._nodes() if node.is_variable]
        for other in set(given).difference(names):
            known = ", ".join(names)
            raise ParameterError(
                f"{function}: the symbol has no variable {other!r}, only {known}{did_you_mean(other, names)}"
            )

    def _infer_shape(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[ShapeOrNone], list[ShapeOrNone], list[ShapeOrNone]]:
        arguments, auxiliary = self._variables()
        known = {
            node: None if shape is None else _as_known(node.name, shape)
            for node, shape in _by_node("infer_shape", arguments, auxiliary, args, kwargs).items()
        }
        shapes = infer.infer_shapes(self._nodes(), known)
        return (
            [shapes[Entry(node, 0)] for node in arguments],
            [shapes[entry] for entry in self._entries],
            [shapes[Entry(node, 0)] for node in auxiliary],
        )

    def infer_type(self, *args: Any, **kwargs: Any) -> tuple[list[Any] | None, list[Any] | None, list[Any] | None]:
        """The dtypes of arguments, outputs and auxiliary states, as NumPy's type objects.

        Returns:
            three lists, or three None where what is given is not enough (what is then bound is float32).

        Raises:
            TypeInferenceError: they contradict each other.
        """
        found = self.infer_type_partial(*args, **kwargs)
        return found if not any(None in types for types in found) else (None, None, None)

    def infer_type_partial(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """As :meth:`infer_type`, with None for what is unknown."""
        self._refuse_others("infer_type", kwargs)
        arguments, auxiliary = self._variables()
        known = {
            node: None if value is None else as_dtype(value)
            for node, value in _by_node("infer_type", arguments, auxiliary, args, kwargs).items()
        }
        dtypes = infer.partial_types(self._nodes(), known)

        def shown(entries: Iterable[Entry]) -> list[Any]:
            found = [dtypes[entry] for entry in entries]
            return [None if dtype is None else dtype.type for dtype in found]

        return (
            shown(Entry(node, 0) for node in arguments),
            shown(self._entries),
            shown(Entry(node, 0) for node in auxiliary),
        )

    # -- binding ---------------------------------------------------------------------------------------

    def bind(
        self, ctx: Any, args: Any, args_grad: Any = None, grad_req: Any = "write", aux_states: Any = None,
        group2ctx: Any = None, shared_exec: Executor | None = None,
    ) -> Executor:  # fmt: skip
        """Bind arrays to the variables; returns an executor.

        Args:
            ctx: the device.
            args: arrays for the arguments, a list in their order or a dict by name.
            args_grad: arrays for gradients, likewise (those left out get none).
            grad_req: ``write``, ``add`` or ``null``, for all, as a list, or as a dict by name.
            aux_states: arrays for the auxiliary states.
            group2ctx: the device of each ``ctx_group``.
            shared_exec: an executor to take turns with in the memory for internal values.

        Raises:
            ValueError: an array is missing or one too many.
            ShapeError, TypeInferenceError: the arrays do not fit the graph.
        """
        from flowmx.executor import bind

        return bind(self, ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec)

    def simple_bind(
        self, ctx: Any = None, grad_req: Any = "write", type_dict: Mapping[str, Any] | None = None,
        group2ctx: Any = None, shared_arg_names: Sequence[str] | None = None, shared_exec: Executor | None = None,
        shared_buffer: dict[str, Any] | None = None, **kwargs: Sequence[int],
    ) -> Executor:  # fmt: skip
        """Infer all shapes from those given, make the arrays (zeros), and bind them.

        Args:
            ctx: the device (default: the current one).
            grad_req: ``write``, ``add`` or ``null``, for all, or as a dict by name.
            type_dict: dtypes of arguments by name.
            group2ctx: the device of each ``ctx_group``.
            shared_arg_names: arguments whose arrays may come from ``shared_exec`` or ``shared_buffer``.
            shared_exec: an executor to share parameter arrays with, where shapes and dtypes agree, and to take turns
                with in the memory for internal values.
            shared_buffer: arrays by name, likewise; new ones are added to it.
            **kwargs: shapes of arguments by name.

        Raises:
            ShapeError: the shapes are not enough, or contradict each other.
        """
        from flowmx.executor import simple_bind

        return simple_bind(
            self, ctx, grad_req, type_dict, group2ctx, shared_arg_names, shared_exec, shared_buffer, kwargs
        )

    def memory_estimate(
        self, ctx: Any = None, grad_req: Any = "write", type_dict: Mapping[str, Any] | None = None,
        group2ctx: Any = None, optimizer: Any = None, budget: int | None = None, **kwargs: Sequence[int],
    ) -> MemoryEstimate:  # fmt: skip
        """Estimate the memory that :meth:`simple_bind` would take with these arguments; nothing is allocated.

        Arguments whose shapes are given count as inputs, and so do those whose names end in ``label``; the others are
        parameters.

        Args:
            ctx: the device (default: the current one); it need not be there.
            grad_req: as for :meth:`simple_bind`; ``null`` estimates prediction.
            type_dict: dtypes of arguments by name.
            group2ctx: the device of each ``ctx_group``.
            optimizer: an optimizer, or the name of one with default arguments, whose state counts too.
            budget: the most bytes for internal values, kept by micro-batches or by computing some of them again.
            **kwargs: shapes of arguments by name.

        Returns:
            the bytes by kind and by layer; its text is a table.

        Raises:
            ShapeError: the shapes are not enough, or contradict each other.
            ValueError: there is no such optimizer.

        Example:
            >>> estimate = net.memory_estimate(data=(64, 3, 224, 224), optimizer="adam")
            >>> estimate.peak, estimate.fits(mx.gpu(0))
        """
        from flowmx.executor.estimate import memory_estimate
        from flowmx.optimizer.footprint import Footprint

        state = Footprint(optimizer).nbytes if optimizer is not None else lambda index, shape, dtype: 0
        return memory_estimate(self, ctx, grad_req, type_dict, group2ctx, budget, kwargs, state)

    def eval(self, ctx: Any = None, **kwargs: Any) -> list[Any]:
        """Bind arrays by name, compute, and return the outputs."""
        return self.bind(ctx, kwargs, grad_req="null").forward()

    def grad(self, wrt: Sequence[str]) -> Symbol:
        """MXNet's own was never finished; bind with gradients and call backward."""
        raise NotImplementedError("Symbol.grad: bind with args_grad and call backward instead")

    gradient = grad

    def as_np_ndarray(self) -> Symbol:
        """The same with NumPy's arithmetic, indices and methods, as the functions of ``mx.sym.np`` take it."""
        made: Symbol = importlib.import_module("flowmx.numpy.symbols").as_np(self)  # of a higher floor
        return made

    def as_nd_ndarray(self) -> Symbol:
        """This symbol."""
        return self

    def get_backend_symbol(self, backend: str) -> Symbol:
        """The graph as a backend has it: a node in the place of each region that its partitioner chooses.

        ``"MKLDNN_QUANTIZE"`` makes it ready for quantization, or ends that: layers go together with what follows them.
        ``"MKLDNN"`` gives this symbol, in which layers are fused when it is bound.

        Raises:
            MXNetError: the backend is unknown.
        """
        from flowmx.symbol.backends import check_backend

        check_backend(backend)
        return self.optimize_for(backend)

    def optimize_for(
        self, backend: str, args: Any = None, aux: Any = None, ctx: Any = None,
        shape_dict: Mapping[str, Any] | None = None, type_dict: Mapping[str, Any] | None = None,
        stype_dict: Mapping[str, str] | None = None, skip_infer: bool = False, **kwargs: Any,
    ) -> Symbol:  # fmt: skip
        """As :meth:`get_backend_symbol`, with what the partitioner may want to know.

        An unknown backend is warned of, and leaves the graph as it is.

        Args:
            backend: its name, as given to ``mx.sym.register_partitioner``.
            args: arrays for the arguments, a list in their order or a dict by name.
            aux: arrays for the auxiliary states, likewise.
            ctx: kept for MXNet's scripts.
            shape_dict: shapes of further inputs, by name.
            type_dict: their dtypes.
            stype_dict: kept for MXNet's scripts.
            skip_infer: do not look for the shapes and dtypes of nodes.
            **kwargs: options for the partitioner.

        Raises:
            MXNetError: the partitioner's replacement of a region does not fit.
            ValueError: a list has another length than the names.
            ShapeError, TypeInferenceError: what is given contradicts the graph.
        """
        from flowmx.symbol.backends import optimized

        return optimized(
            self, backend, args, aux, kwargs, shape_dict=shape_dict, type_dict=type_dict, skip_infer=skip_infer
        )

    # -- text ------------------------------------------------------------------------------------------

    def debug_str(self) -> str:
        """Every node with its inputs, and what its variables' declared shapes say of memory."""
        from flowmx.executor import describe_graph

        return describe_graph(self._entries)

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """The graph in MXNet's JSON format, without the casts of mixed precision or with them."""
        return symbol_json.render(_to_plain(remove_casts(self._entries) if remove_amp_cast else self._entries))

    def save(self, fname: str | Path, remove_amp_cast: bool = True) -> None:
        """Write the JSON to a file (replaced as a whole)."""
        replace_file(fname, [self.tojson(remove_amp_cast).encode()])

    # -- arithmetic (by the names that MXNet's frontend calls: automatic node names come from them) -----

    __add__ = _binary("_Plus", "_PlusScalar")
    __sub__ = _binary("_Minus", "_MinusScalar")
    __mul__ = _binary("_Mul", "_MulScalar")
    __truediv__ = __div__ = _binary("_Div", "_DivScalar")
    __mod__ = _binary("_Mod", "_ModScalar")
    __pow__ = _binary("_Power", "_PowerScalar")

    __radd__ = _binary("_Plus", "_PlusScalar", swapped=True)
    __rsub__ = _binary("_Minus", "_RMinusScalar", swapped=True)
    __rmul__ = _binary("_Mul", "_MulScalar", swapped=True)
    __rtruediv__ = __rdiv__ = _binary("_Div", "_RDivScalar", swapped=True)
    __rmod__ = _binary("_Mod", "_RModScalar", swapped=True)
    __rpow__ = _binary("_Power", "_RPowerScalar", swapped=True)

    __eq__ = _binary("_Equal", "_equal_scalar")  # type: ignore[assignment]
    __ne__ = _binary("_Not_Equal", "_not_equal_scalar")  # type: ignore[assignment]
    __gt__ = _binary("_Greater", "_greater_scalar")
    __ge__ = _binary("_Greater_Equal", "_greater_equal_scalar")
    __lt__ = _binary("_Lesser", "_lesser_scalar")
    __le__ = _binary("_Lesser_Equal", "_lesser_equal_scalar")

    def __neg__(self) -> Symbol:
        return apply("_MulScalar", [self], {"scalar": -1.0})

    def __abs__(self) -> Symbol:
        return apply("abs", [self])

    __hash__ = object.__hash__

    if TYPE_CHECKING:  # the methods that are operators are made in methods.py

        def __getattr__(self, name: str) -> Callable[..., Symbol]: ...

    def _call(self, called: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Symbol:
        return call(called, (self, *args), kwargs)


# -- making symbols ----------------------------------------------------------------------------------------


def is_symbol(value: Any) -> bool:
    """True for a symbol."""
    return isinstance(value, Symbol)


is_symbol.__name__ = "a Symbol"


_SPACE = re.compile("^_(contrib|linalg|image|sparse)_")
"""Beginnings of operators' names that say in which namespace they are: MXNet leaves them out of the names of nodes."""


def call(called: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Symbol:
    """Compose the operator of a name or alias, with arguments as the user wrote them."""
    cls = lookup(called)
    label = kwargs.pop("name", None)
    attributes = kwargs.pop("attr", None)
    kwargs.pop("out", None)
    if "ctx" in kwargs:
        kwargs["ctx"] = str(kwargs["ctx"])
    # Attributes such as __layout__ and lr_mult may come as keywords.
    extra = {key: kwargs.pop(key) for key in list(kwargs) if attribute.is_attribute(key)}
    inputs, parameters = calling.split(cls, args, kwargs, is_symbol, partial=True)
    extra |= calling.drop_unknown(cls, parameters)
    return compose(cls, inputs, parameters, label, {**(attributes or {}), **extra}, called)


def apply(called: str, inputs: Sequence[Symbol], parameters: dict[str, Any] | None = None) -> Symbol:
    """Compose an operator whose inputs are all given."""
    cls = lookup(called)
    names = (*cls.arguments, *cls.auxiliary)
    return compose(cls, dict(zip(names, inputs, strict=True)), parameters or {}, None, None, called)


def compose(
    cls: type[Operator],
    inputs: Mapping[str, Symbol],
    parameters: Mapping[str, Any],
    label: str | None,
    attributes: Mapping[str, str] | None,
    called: str,
) -> Symbol:
    """Make a node; inputs that are not given become variables called ``<node>_<input>``, as in MXNet."""
    given = {key: _text(value) for key, value in parameters.items()}
    op = cls.create(**parameters)
    label = name.current().get(label, _hint(called))
    scope = {**attribute.current(), **attributes} if attributes else attribute.current()
    scope = _attributes_of(cls, scope) if scope else {}
    origin = capture(3)
    entries: list[Entry] = []
    names = (*op.inputs(), *op.auxiliary)
    inputs = calling.settle(op, inputs)
    for extra in inputs:
        if extra not in names:
            raise TypeError(f"{cls.name} {label!r}: input {extra} is not taken by {op!r}; it takes {', '.join(names)}")
    for argument in names:
        symbol = inputs.get(argument)
        if symbol is None:
            # MXNet gives such a variable all of its operator's attributes.
            variable = Node(None, f"{label}_{argument}", attributes={**given, **scope}, origin=origin)
            entries.append(Entry(variable, 0))
        elif len(symbol) != 1:
            raise TypeError(
                f"{cls.name} {label!r}: input {argument} is {symbol!r} with {len(symbol)} outputs: pick one with [i]"
            )
        else:
            entries.append(symbol._entries[0])
    _begin(op, entries)
    node = Node(op, label, tuple(entries), scope, given, origin)
    # What is composed of symbols of mx.sym.np is one, as results of arrays of mx.np are.
    made_of = next((each.__class__ for each in inputs.values()), Symbol)
    return made_of([Entry(node, index) for index in range(op.visible_outputs())])


@lru_cache(None)
def _hint(called: str) -> str:
    """The beginning of the names of an operator's nodes."""
    return _SPACE.sub("", called).lower()


def _attributes_of(cls: type[Operator], given: Mapping[str, Any]) -> dict[str, str]:
    """A node's attributes; where the operator has parameters, MXNet takes a name without underscores for one."""
    return {
        name if name.startswith("__") or not cls.parameters else f"__{name}__": value
        for name, value in attribute.kept(given).items()
    }


def _begin(op: Operator, entries: Sequence[Entry]) -> None:
    """Set the operator's default initializers on its variables that have none."""
    defaults = default_initializers(op.name)
    if not defaults:  # as of nearly all
        return
    for argument, entry in zip((*op.inputs(), *op.auxiliary), entries, strict=True):
        if argument in defaults and entry.node.is_variable:
            entry.node.attributes.setdefault("__init__", defaults[argument])


def _text(value: Any) -> str:
    """A parameter as MXNet's frontends write it."""
    if isinstance(value, (np.dtype, type)):
        try:
            return name_of(as_dtype(value))
        except MXNetError:
            return str(value)
    return str(value)


def Variable(
    name: str, attr: Mapping[str, str] | None = None, shape: int | Sequence[int] | None = None,
    lr_mult: float | None = None, wd_mult: float | None = None, dtype: Any = None, init: Any = None,
    stype: str | None = None, profiler_scope: str | None = None, **kwargs: str,
) -> Symbol:  # fmt: skip
    """A variable: an input of a graph.

    Args:
        name: its name.
        attr: further attributes, as text.
        shape: its shape as far as it is known (0: an unknown length; one number: a vector).
        lr_mult: multiplies the learning rate.
        wd_mult: multiplies the weight decay.
        dtype: its element type.
        init: the initializer, by name or as an object with ``dumps``.
        stype: the storage type, ``default``, ``row_sparse`` or ``csr``, of the array that ``simple_bind`` makes.
        profiler_scope: kept for MXNet's scripts.
        **kwargs: further attributes whose names begin and end with two underscores.

    Raises:
        TypeError: the name is no text.
        ValueError: an unknown keyword, or no storage type.
    """
    if not isinstance(name, str):
        raise TypeError(f"Variable: name is {name!r}, expected text")
    attributes = attribute.kept({**attribute.current(), **(attr or {})})
    if shape is not None:
        lengths = [shape] if isinstance(shape, (int, np.integer)) else shape
        attributes["__shape__"] = str(tuple([int(n) for n in lengths]))
    if lr_mult is not None:
        attributes["__lr_mult__"] = str(lr_mult)
    if wd_mult is not None:
        attributes["__wd_mult__"] = str(wd_mult)
    if dtype is not None:
        attributes["__dtype__"] = str(FLAGS[as_dtype(dtype)])
    if stype is not None:
        attributes["__storage_type__"] = str(storage_number(stype))
    if init is not None:
        attributes["__init__"] = init if isinstance(init, str) else init.dumps()
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
            raise ValueError(f"Variable: unknown keyword {key!r}; attributes begin and end with two underscores")
        attributes[key] = str(value)
    return Symbol([Entry(Node(None, name, attributes=attributes, origin=capture()), 0)])


def Group(symbols: Sequence[Symbol]) -> Symbol:
    """One symbol with the outputs of several.

    Raises:
        TypeError: something that is no symbol.
    """
    for symbol in symbols:
        if not isinstance(symbol, Symbol):
            raise TypeError(f"Group: {symbol!r} is no Symbol")
    return Symbol([entry for symbol in symbols for entry in symbol._entries])


# -- JSON --------------------------------------------------------------------------------------------------


def _to_plain(entries: Sequence[Entry]) -> symbol_json.GraphJSON:
    nodes = topological(entries)
    position = {node: index for index, node in enumerate(nodes)}
    versions, final = input_versions(nodes)
    plain = symbol_json.NodeEntry
    attrs = {"is_np_shape": ("int", 1)} if semantics.get().shape else {}
    return symbol_json.GraphJSON(
        tuple(
            symbol_json.NodeJSON(
                "null" if node.op is None else node.op.name,
                node.name,
                {**node.given, **node.attributes},
                tuple(
                    plain(position[entry.node], entry.index, version)
                    for entry, version in zip(node.inputs, versions.get(node, ()), strict=True)
                ),
                subgraphs=tuple(
                    replace(_to_plain(body.entries), attrs={}) for body in (node.op.subgraphs if node.op else ())
                ),
                num_outputs=1 if node.op is None else node.op.counted_outputs(),
            )
            for node in nodes
        ),
        tuple(plain(position[entry.node], entry.index, final.get(entry.node, 0)) for entry in entries),
        {**attrs, "mxnet_version": ("int", symbol_json.MXNET_VERSION)},
    )


def load_json(json_str: str | bytes) -> Symbol:
    """The symbol in MXNet's JSON text.

    Raises:
        SymbolFormatError: the text is no graph.
        MXNetError: an operator is unknown here, or its parameters do not fit; names the node.
    """
    plain = symbol_json.upgrade(symbol_json.parse(json_str), _input_names, lambda node: _beginnings_of(node.op))
    return Symbol(_from_plain(plain, capture()))


def _from_plain(graph: symbol_json.GraphJSON, origin: Origin) -> list[Entry]:
    nodes: list[Node] = []
    for plain in graph.nodes:
        inputs = tuple(_entry(nodes, e) for e in plain.inputs)
        if plain.is_variable:
            nodes.append(Node(None, plain.name, attributes=plain.attrs, origin=origin))
            continue
        attributes = {k: v for k, v in plain.attrs.items() if k.startswith("__") and k.endswith("__")}
        given = {k: v for k, v in plain.attrs.items() if k not in attributes}
        try:
            cls = lookup(plain.op)
            known = {k: v for k, v in given.items() if cls.takes(k)}
            attributes |= {k: v for k, v in given.items() if not cls.takes(k)}
            bodies = tuple(Body(_from_plain(each, origin)) for each in plain.subgraphs)
            op = cls.create(**known, **({"subgraphs": bodies} if bodies else {}))
        except (AttributeError, ParameterError) as error:
            raise MXNetError(f"node {plain.name!r} of the loaded symbol: {error}") from None
        expected = len(op.inputs()) + len(op.auxiliary)
        if len(inputs) != expected:
            raise MXNetError(f"node {plain.name!r} ({plain.op}) has {len(inputs)} inputs, expected {expected}")
        versions = tuple(e.version for e in plain.inputs)
        nodes.append(Node(op, plain.name, inputs, attributes, known, origin, versions))
    return [_entry(nodes, e) for e in graph.heads]


def _entry(nodes: Sequence[Node], plain: symbol_json.NodeEntry) -> Entry:
    node = nodes[plain.node]
    count = 1 if node.op is None else len(node.op.outputs())
    if plain.output >= count:
        raise MXNetError(f"output {plain.output} of node {node.name!r} of the loaded symbol is read; it has {count}")
    return Entry(node, plain.output)


def _input_names(plain: symbol_json.NodeJSON) -> Sequence[str]:
    try:
        cls = lookup(plain.op)
        op = cls.create(**{k: v for k, v in plain.attrs.items() if cls.takes(k) and not k.startswith("__")})
    except (AttributeError, ParameterError):
        return ()
    return (*op.inputs(), *op.auxiliary)


def _beginnings_of(called: str) -> Mapping[str, str]:
    try:
        return default_initializers(lookup(called).name)
    except AttributeError:
        return {}


@raised_as_mxnet(OSError)
def load(fname: str | Path) -> Symbol:
    """The symbol in a ``-symbol.json`` file of MXNet or flowmx.

    Raises:
        OSError: there is no such file, or it is a device.
        SymbolFormatError, MXNetError: as :func:`load_json`, with the file's name.
    """
    try:
        return load_json(read_whole(fname))
    except MXNetError as error:
        raise type(error)(f"{fname}: {error}") from None


# -- arguments of the inference methods --------------------------------------------------------------------


def _as_known(variable: str, shape: Any) -> Shape:
    try:
        lengths = tuple(int(n) for n in ([shape] if isinstance(shape, (int, np.integer)) else shape))
    except (TypeError, ValueError):
        raise ShapeError(f"the shape of {variable!r} is {shape!r}, expected ints") from None
    least = 0 if semantics.get().shape else 1  # NumPy's shapes have lengths of 0
    return tuple(n if n >= least else -1 for n in lengths)


def _by_node(
    function: str, arguments: Sequence[Node], auxiliary: Sequence[Node], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[Node, Any]:
    if args and kwargs:
        raise TypeError(f"{function}: give values by position or by name, not both")
    if len(args) > len(arguments):
        raise TypeError(f"{function}: {len(args)} values were given, the symbol has {len(arguments)} arguments")
    if args:
        return dict(zip(arguments, args, strict=False))
    # Names that are no variable are passed over, as MXNet's simple_bind does: a label shape for a net without a loss.
    return {node: kwargs[node.name] for node in (*arguments, *auxiliary) if node.name in kwargs}
