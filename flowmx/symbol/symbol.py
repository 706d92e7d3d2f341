"""``mx.sym.Symbol``: an expression over variables that is computed when it is bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import attribute
from flowmx.engine import capture
from flowmx.errors import MXNetError, NoTruthValue, ParameterError, raised_as_mxnet
from flowmx.graph.casts import remove_casts
from flowmx.graph.node import Entry, Node, auxiliary_nodes, topological
from flowmx.graph.storage_types import storage_number
from flowmx.late_binding import late
from flowmx.ops.registry import calling
from flowmx.ops.registry.dtypes import FLAGS, DTypeLike, as_dtype
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole
from flowmx.serialization.suffixes import check_suffix
from flowmx.symbol.inference import Inference
from flowmx.symbol.json_graph import entries_from_json, to_json
from flowmx.symbol.methods import Methods
from flowmx.symbol.node_creation import create_node

if TYPE_CHECKING:
    from flowmx.executor import Executor
    from flowmx.graph.reports.estimate import MemoryEstimate
    from flowmx.ndarray import NDArray


def _binary(array_op: str, scalar_op: str, swapped: bool = False) -> Callable[[Symbol, Any], Symbol]:
    """Return the method for a Python operator whose other operand is a symbol of the same shape, or a number."""

    def method(self: Symbol, other: object) -> Any:
        if isinstance(other, Symbol):
            return apply(array_op, [other, self] if swapped else [self, other])
        if isinstance(other, (int, float, np.generic)):
            return apply(scalar_op, [self], {"scalar": other})
        return NotImplemented

    return method


class Symbol(Methods, Inference):
    """One or more outputs of a graph of operators.

    Example:
        >>> data = mx.sym.Variable("data")
        >>> net = mx.sym.FullyConnected(data, num_hidden=10, name="fc")
        >>> net.list_arguments()
        ['data', 'fc_weight', 'fc_bias']
    """

    __slots__ = ("_order", "_variable_lists", "entries")
    __array_ufunc__ = None
    """Makes NumPy leave operators with a NumPy number on the left to the symbol."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._order: list[Node] | None = None
        self._variable_lists: tuple[list[Node], list[Node]] | None = None
        """The arguments and the auxiliary states, computed at first use."""

    # -- structure -------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The name of its node, or None for a group of several nodes."""
        nodes = {entry.node for entry in self.entries}
        return next(iter(nodes)).name if len(nodes) == 1 else None

    def nodes(self) -> list[Node]:
        if self._order is None:
            self._order = topological(self.entries)
        return list(self._order)

    def _variables(self) -> tuple[list[Node], list[Node]]:
        """Return the arguments and the auxiliary states."""
        if self._variable_lists is None:
            nodes = self.nodes()
            auxiliary = auxiliary_nodes(nodes)
            self._variable_lists = [n for n in nodes if n.op is None and n not in auxiliary], list(auxiliary)
        arguments, states = self._variable_lists
        return list(arguments), list(states)

    def list_arguments(self) -> list[str]:
        """Return the names of the variables to bind, in the order of ``bind``'s list arguments."""
        return [node.name for node in self._variables()[0]]

    def list_auxiliary_states(self) -> list[str]:
        """Return the names of the auxiliary states (such as a BatchNorm's moving mean)."""
        return [node.name for node in self._variables()[1]]

    def list_inputs(self) -> list[str]:
        """Return the names of all variables: arguments and auxiliary states."""
        return [node.name for node in self.nodes() if node.is_variable]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs, such as ``fc_output``."""
        return [entry.node.output_name(entry.index) for entry in self.entries]

    @property
    def num_outputs(self) -> int:
        """The number of outputs."""
        return len(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([entry]) for entry in self.entries)

    def __getitem__(self, index: int | str | slice) -> Symbol:
        """Return one output, by position or name.

        Raises:
            ValueError: not exactly one output has that name.
            IndexError: the position is out of range.
        """
        if isinstance(index, str):
            names = self.list_outputs()
            positions = [position for position, output in enumerate(names) if output == index]
            if len(positions) != 1:
                raise ValueError(f"{len(positions)} outputs are called {index!r}, expected one of {names}")
            index = positions[0]
        if isinstance(index, slice):
            return Symbol(self.entries[index])
        if not -len(self.entries) <= index < len(self.entries):
            raise IndexError(f"output {index} was requested, but the symbol has {len(self.entries)}")
        return Symbol([self.entries[index]])

    def get_internals(self) -> Symbol:
        """Return a group of every output of every node, for selecting inner layers by name."""
        return Symbol([Entry(node, index) for node in self.nodes() for index in range(node.visible_outputs())])

    def get_children(self) -> Symbol | None:
        """Return a group of the inputs of its nodes, or None for variables."""
        inputs = [entry for node in dict.fromkeys(e.node for e in self.entries) for entry in node.inputs]
        return Symbol(inputs) if inputs else None

    def get_inputs(self) -> Symbol:
        """Return a group of all its variables."""
        return Symbol([Entry(node, 0) for node in self.nodes() if node.is_variable])

    def __copy__(self) -> Symbol:
        return Symbol(self.entries)

    def __deepcopy__(self, memo: object) -> Symbol:
        return Symbol(self.entries)  # nodes never change, so they can be shared

    def __reduce__(self) -> Any:
        return load_json, (self.tojson(),)

    def __repr__(self) -> str:
        if self.name is not None:
            return f"<Symbol {self.name}>"
        return f"<Symbol group [{', '.join(str(entry.node.name) for entry in self.entries)}]>"

    def _repr_html_(self) -> str:
        html: str = late("visualization.notebook").symbol_html(self)
        return html

    def __bool__(self) -> bool:
        raise NoTruthValue(
            "a Symbol cannot be converted to bool: it is computed only when it is bound (compare names, or use len)"
        )

    # -- composition -----------------------------------------------------------------------------------

    def __call__(self, *args: Symbol, **kwargs: Any) -> Symbol:
        """Replace variables with other symbols, by position (of ``list_arguments``) or by name.

        Raises:
            TypeError: both positions and names were used, or a value is not a symbol with one output.
            ValueError: a name is not an argument.
        """
        new_name = kwargs.pop("name", None)
        if args and kwargs:
            raise TypeError("compose: pass the inputs by position or by name, not both")
        names = self.list_arguments()
        if len(args) > len(names):
            raise TypeError(f"compose: {len(args)} inputs were given, the symbol has {len(names)} arguments")
        inputs = dict(zip(names, args, strict=False)) if args else kwargs
        replacements: dict[str, Entry] = {}
        for key, value in inputs.items():
            if not isinstance(value, Symbol) or len(value) != 1:
                raise TypeError(f"compose: input {key} is {value!r}, expected a symbol with one output")
            if key not in names:
                raise ParameterError(f"compose: there is no argument {key!r}, expected one of {names}")
            replacements[key] = value.entries[0]
        return Symbol(self._replace(replacements, new_name))

    def _compose(self, *args: Symbol, **kwargs: object) -> None:
        """Replace variables as :meth:`__call__` does, in this symbol."""
        self.entries, self._order, self._variable_lists = self(*args, **kwargs).entries, None, None

    def _replace(self, replacements: Mapping[str, Entry], new_name: str | None) -> list[Entry]:
        copies: dict[Node, Node] = {}

        def move(entry: Entry) -> Entry:
            if entry.node.is_variable and entry.node.name in replacements:
                return replacements[entry.node.name]
            return Entry(copies.get(entry.node, entry.node), entry.index)

        head_nodes = {entry.node for entry in self.entries}
        for node in self.nodes():
            inputs = tuple(move(entry) for entry in node.inputs)
            is_renamed = new_name is not None and node in head_nodes and not node.is_variable
            if inputs != node.inputs or is_renamed:
                label = new_name if is_renamed and new_name else node.name
                copies[node] = Node(
                    node.op, label, inputs, node.attributes, node.user_parameters, node.origin, node.versions
                )
        return [move(entry) for entry in self.entries]

    # -- attributes ------------------------------------------------------------------------------------

    def attr(self, key: str) -> str | None:
        """Return one attribute of its node (parameters are attributes too), or None."""
        node = self.entries[0].node
        return {**attribute.display_form(node.attributes), **node.user_parameters}.get(
            key, node.attributes.get(f"__{key}__")
        )

    def list_attr(self, recursive: bool = False) -> dict[str, str]:
        """Return the attributes and parameters of its node."""
        if recursive:
            raise DeprecationWarning("list_attr(recursive=True) was removed in MXNet 0.9: use attr_dict()")
        node = self.entries[0].node
        return {**node.user_parameters, **attribute.display_form(node.attributes)}

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Return the attributes and parameters of all nodes that have any, by node name."""
        table = {
            node.name: {**node.user_parameters, **attribute.display_form(node.attributes)} for node in self.nodes()
        }
        return {key: value for key, value in table.items() if value}

    def _set_attr(self, **attributes: str) -> None:
        for key, value in attributes.items():
            if not isinstance(value, str):
                raise ValueError(f"attribute {key} is {value!r}, expected text")
        self.entries[0].node.attributes.update(attribute.stored_form(attributes))

    # -- binding ---------------------------------------------------------------------------------------

    def bind(
        self, ctx: object, args: object, args_grad: object = None, grad_req: object = "write",
        aux_states: object = None, group2ctx: object = None, shared_exec: Executor | None = None,
    ) -> Executor:  # fmt: skip
        """Bind arrays to the variables; return an executor.

        Args:
            ctx: the device.
            args: arrays for the arguments, a list in their order or a dict by name.
            args_grad: arrays for the gradients, a list or a dict as for `args` (arguments without an array have no
                gradient).
            grad_req: ``write``, ``add`` or ``null``, for all, as a list, or as a dict by name.
            aux_states: arrays for the auxiliary states.
            group2ctx: the device of each ``ctx_group``.
            shared_exec: an executor to share the memory for internal values with; only one may run at a time.

        Raises:
            ValueError: an array is missing or superfluous.
            ShapeError, TypeInferenceError: the arrays do not match the graph.
        """
        executor: Executor = late("executor").bind(
            self, ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec
        )
        return executor

    def simple_bind(
        self, ctx: object = None, grad_req: object = "write", type_dict: Mapping[str, object] | None = None,
        group2ctx: object = None, shared_arg_names: Sequence[str] | None = None, shared_exec: Executor | None = None,
        shared_buffer: dict[str, Any] | None = None, **kwargs: Sequence[int],
    ) -> Executor:  # fmt: skip
        """Infer all shapes from the arguments, create arrays of zeros, and bind them.

        Args:
            ctx: the device (default: the current one).
            grad_req: ``write``, ``add`` or ``null``, for all, or as a dict by name.
            type_dict: dtypes of arguments by name.
            group2ctx: the device of each ``ctx_group``.
            shared_arg_names: arguments whose arrays may come from ``shared_exec`` or ``shared_buffer``.
            shared_exec: an executor whose parameter arrays are shared if shapes and dtypes match, and whose memory for
                internal values is shared.
            shared_buffer: arrays to share by name; new ones are added.
            **kwargs: shapes of arguments by name.

        Raises:
            ShapeError: the shapes are not sufficient, or contradict each other.
        """
        executor: Executor = late("executor").simple_bind(
            self, ctx, grad_req, type_dict, group2ctx, shared_arg_names, shared_exec, shared_buffer, kwargs
        )
        return executor

    def memory_estimate(
        self, ctx: object = None, grad_req: object = "write", type_dict: Mapping[str, object] | None = None,
        group2ctx: object = None, optimizer: object = None, budget: int | None = None, **kwargs: Sequence[int],
    ) -> MemoryEstimate:  # fmt: skip
        """Estimate the memory that :meth:`simple_bind` would take with these arguments; allocate nothing.

        Arguments with a shape in ``kwargs`` or a name that ends in ``label`` count as inputs, all others as parameters.

        Args:
            ctx: the device (default: the current one); it need not exist.
            grad_req: as for :meth:`simple_bind`; ``null`` estimates prediction.
            type_dict: dtypes of arguments by name.
            group2ctx: the device of each ``ctx_group``.
            optimizer: an optimizer, or the name of one with default arguments, whose state counts too.
            budget: the maximum size of internal values in bytes, enforced with micro-batches or recomputation.
            **kwargs: shapes of arguments by name.

        Returns:
            the bytes by kind and by layer; its text form is a table.

        Raises:
            ShapeError: the shapes are not sufficient, or contradict each other.
            ValueError: the optimizer is unknown.

        Example:
            >>> estimate = net.memory_estimate(data=(64, 3, 224, 224), optimizer="adam")
            >>> estimate.peak, estimate.fits(mx.gpu(0))
        """
        footprint = None if optimizer is None else late("optimizer.footprint").Footprint(optimizer)
        state = (lambda *_: 0) if footprint is None else footprint.nbytes
        estimate: MemoryEstimate = late("executor.estimate").memory_estimate(
            self, ctx, grad_req, type_dict, group2ctx, budget, kwargs, state
        )
        return estimate

    def eval(self, ctx: object = None, **kwargs: object) -> list[NDArray]:
        """Bind arrays by name, compute, and return the outputs."""
        return self.bind(ctx, kwargs, grad_req="null").forward()

    def grad(self, wrt: Sequence[str]) -> Symbol:
        """Raise an error: MXNet never implemented it; bind with gradients and call backward."""
        raise NotImplementedError("Symbol.grad: bind with args_grad and call backward instead")

    gradient = grad

    def as_np_ndarray(self) -> Symbol:
        """Return this symbol with NumPy's arithmetic, indexing and methods, for the functions of ``mx.sym.np``."""
        symbol: Symbol = late("numpy.symbols").as_np(self)
        return symbol

    def as_nd_ndarray(self) -> Symbol:
        """Return this symbol."""
        return self

    def get_backend_symbol(self, backend: str) -> Symbol:
        """Partition the graph for a backend: replace each region that its partitioner selects with a node.

        ``"MKLDNN_QUANTIZE"`` prepares a graph for quantization, or completes the quantization: it fuses layers with the
        operators after them. ``"MKLDNN"`` returns this symbol, whose layers are fused when it is bound.

        Raises:
            MXNetError: the backend is unknown.
        """
        late("symbol.backends").check_backend(backend)
        return self.optimize_for(backend)

    def optimize_for(
        self, backend: str, args: object = None, aux: object = None, ctx: object = None,
        shape_dict: Mapping[str, object] | None = None, type_dict: Mapping[str, object] | None = None,
        stype_dict: Mapping[str, str] | None = None, skip_infer: bool = False, **kwargs: object,
    ) -> Symbol:  # fmt: skip
        """Partition the graph as :meth:`get_backend_symbol` does, with information for the partitioner.

        An unknown backend causes a warning, and the graph is unchanged.

        Args:
            backend: its name in ``mx.sym.register_partitioner``.
            args: arrays for the arguments, a list in their order or a dict by name.
            aux: arrays for the auxiliary states, a list in their order or a dict by name.
            ctx: ignored; accepted for MXNet's scripts.
            shape_dict: shapes of further inputs, by name.
            type_dict: their dtypes.
            stype_dict: ignored; accepted for MXNet's scripts.
            skip_infer: skip the inference of shapes and dtypes.
            **kwargs: options for the partitioner.

        Raises:
            MXNetError: the partitioner's replacement of a region does not match.
            ValueError: a list does not have one array for each name.
            ShapeError, TypeInferenceError: the shapes or dtypes contradict the graph.
        """
        optimized: Symbol = late("symbol.backends").optimize(
            self, backend, args, aux, kwargs, shape_dict=shape_dict, type_dict=type_dict, skip_infer=skip_infer
        )
        return optimized

    # -- text ------------------------------------------------------------------------------------------

    def debug_str(self) -> str:
        """Return every node with its inputs, and the memory that the declared shapes determine."""
        description: str = late("executor").describe_graph(self.entries)
        return description

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """Return the graph in MXNet's JSON format, by default without the casts of mixed precision."""
        return to_json(remove_casts(self.entries) if remove_amp_cast else self.entries)

    def save(self, fname: str | Path, remove_amp_cast: bool = True) -> None:
        """Write the JSON to a file, replacing it atomically.

        Raises:
            ValueError: the file's name has the suffix of a different format.
        """
        check_suffix(fname, "the JSON of a symbol", "name it 'net-symbol.json', for example", (".json",))
        replace_file(fname, [self.tojson(remove_amp_cast).encode()])

    # -- arithmetic (automatic node names come from these operator names, as in MXNet) -----------------

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

    if TYPE_CHECKING:  # methods.py adds the methods that are operators

        def __getattr__(self, name: str) -> Callable[..., Symbol]: ...

    def _call(self, op_name: str, args: Sequence[object], kwargs: dict[str, Any]) -> Symbol:
        return call(op_name, (self, *args), kwargs)


# -- composition -------------------------------------------------------------------------------------------


def is_symbol(value: object) -> bool:
    """Return whether a value is a symbol."""
    return isinstance(value, Symbol)


is_symbol.__name__ = "a Symbol"


def call(op_name: str, args: Sequence[object], kwargs: dict[str, Any]) -> Symbol:
    """Compose an operator, by its name or alias, with the user's arguments."""
    cls = lookup(op_name)
    label = kwargs.pop("name", None)
    attributes = kwargs.pop("attr", None)
    kwargs.pop("out", None)
    if "ctx" in kwargs:
        kwargs["ctx"] = str(kwargs["ctx"])
    # Attributes such as __layout__ and lr_mult may come as keywords.
    extra = {key: kwargs.pop(key) for key in list(kwargs) if attribute.is_attribute(key)}
    inputs, parameters = calling.split(cls, args, kwargs, is_symbol, partial=True)
    extra |= calling.drop_unknown(cls, parameters)
    return compose(cls, inputs, parameters, label, {**(attributes or {}), **extra}, op_name)


def apply(op_name: str, inputs: Sequence[Symbol], parameters: Mapping[str, object] | None = None) -> Symbol:
    """Compose an operator from all its inputs."""
    cls = lookup(op_name)
    names = (*cls.arguments, *cls.auxiliary)
    return compose(cls, dict(zip(names, inputs, strict=True)), parameters or {}, None, None, op_name)


def compose(
    cls: type[Operator],
    inputs: Mapping[str, Symbol],
    parameters: Mapping[str, object],
    label: str | None,
    attributes: Mapping[str, str] | None,
    op_name: str,
) -> Symbol:
    """Compose an operator; missing inputs become variables called ``<node>_<input>``, as in MXNet."""
    node = create_node(cls, inputs, parameters, label, attributes, op_name, capture(3))
    # Results have the class of the inputs, as for arrays: mx.sym.np has its own class.
    symbol_class = next((symbol.__class__ for symbol in inputs.values()), Symbol)
    return symbol_class([Entry(node, index) for index in range(node.visible_outputs())])


def Variable(
    name: str, attr: Mapping[str, str] | None = None, shape: int | Sequence[int] | None = None,
    lr_mult: float | None = None, wd_mult: float | None = None, dtype: DTypeLike = None, init: Any = None,
    stype: str | None = None, profiler_scope: str | None = None, **kwargs: str,
) -> Symbol:  # fmt: skip
    """Create a variable: an input of a graph.

    Args:
        name: its name.
        attr: further attributes, as text.
        shape: its shape (0: an unknown length; one number: a vector).
        lr_mult: multiplies the learning rate.
        wd_mult: multiplies the weight decay.
        dtype: its dtype.
        init: the initializer, by name or as an object with ``dumps``.
        stype: the storage type, ``default``, ``row_sparse`` or ``csr``, of the array that ``simple_bind`` creates.
        profiler_scope: ignored; accepted for MXNet's scripts.
        **kwargs: further attributes whose names begin and end with two underscores.

    Raises:
        TypeError: the name is not a string.
        ValueError: a keyword or the storage type is unknown.
    """
    if not isinstance(name, str):
        raise TypeError(f"Variable: name is {name!r}, expected text")
    attributes = attribute.stored_form({**attribute.current(), **(attr or {})})
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
    """Return one symbol with the outputs of several.

    Raises:
        TypeError: an item is not a symbol.
    """
    for symbol in symbols:
        if not isinstance(symbol, Symbol):
            raise TypeError(f"Group: {symbol!r} is not a Symbol")
    return Symbol([entry for symbol in symbols for entry in symbol.entries])


# -- files -------------------------------------------------------------------------------------------------


def load_json(json_str: str | bytes) -> Symbol:
    """Return the symbol in MXNet's JSON text.

    Raises:
        SymbolFormatError: the text is not a graph.
        MXNetError: an operator is unknown, or its parameters are invalid; the message names the node.
    """
    return Symbol(entries_from_json(json_str, capture()))


@raised_as_mxnet(OSError)
def load(fname: str | Path) -> Symbol:
    """Load the symbol from a ``-symbol.json`` file of MXNet or flowmx.

    Raises:
        OSError: the file does not exist, or is a device.
        SymbolFormatError, MXNetError: as for :func:`load_json`, with the file's name.
    """
    try:
        return load_json(read_whole(fname))
    except MXNetError as error:
        raise type(error)(f"{fname}: {error}") from None
