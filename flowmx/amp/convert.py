"""Conversion of float32 networks to mixed precision: casts in symbols, and the dtypes of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx import symbol as sym
from flowmx.amp.policy import Conditions, Policy
from flowmx.gluon import HybridBlock, SymbolBlock
from flowmx.graph.casts import Inserting
from flowmx.graph.node import Entry, Node, topological
from flowmx.module import BucketingModule
from flowmx.ndarray import NDArray
from flowmx.ops.math.amp_cast import AmpCast, AmpMulticast
from flowmx.ops.registry.dtypes import BY_FLAG, FLAGS, FLOAT32, DType
from flowmx.symbol import Symbol

Arrays = dict[str, NDArray]


def convert_symbol(
    sym: Symbol, target_dtype: object = "float16", target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None, conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None, data_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> Symbol:  # fmt: skip
    """Insert casts into a symbol, so that its operators compute in 16 bits or in float32, as the lists define.

    Its outputs are float32.

    Args:
        sym: a float32 symbol.
        target_dtype: ``"float16"`` or ``"bfloat16"``.
        target_dtype_ops: the operators that compute in it (default: those of the lists).
        fp32_ops: the operators that stay float32.
        conditional_fp32_ops: (operator, parameter, values) triples for which the operator stays float32.
        excluded_sym_names: names of nodes that stay float32.
        data_names: the names of the data (default: variables without a declared dtype); the others are parameters.
        cast_optional_params: store parameters that are only used in 16 bits in 16 bits, without a cast.

    Raises:
        TypeError: ``sym`` is not a symbol.
        ValueError: the dtype is unsupported, an operator is on two lists, or a name is not a node.
        AttributeError: an operator is unknown.
    """
    _check_symbol("convert_symbol", sym)
    excluded = list(excluded_sym_names or ())
    _check_names(sym, excluded)
    policy = Policy(target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded)
    variables = {node.name: node for node in sym.nodes() if node.is_variable}
    undeclared = [name for name, node in variables.items() if "__dtype__" not in node.attributes]
    data = set(undeclared if data_names is None else data_names)
    dtypes = {node: FLOAT32 if name in data else _declared_dtype(node) for name, node in variables.items()}
    params = [node for name, node in variables.items() if name not in data]
    inserting = Inserting(dtypes, policy, params)
    entries = inserting.graph(sym.entries)
    if cast_optional_params:
        low = _params_only_cast(entries, params, policy.dtype)
        inserting = Inserting({**dtypes, **dict.fromkeys(low, policy.dtype)}, policy, {*params} - {*low})
        entries = inserting.graph(sym.entries)
    entries = [
        inserting.cast(entry, FLOAT32) if inserting.dtypes[entry] == policy.dtype else entry for entry in entries
    ]
    return Symbol(_with_dtypes(entries, {node: inserting.dtypes[Entry(node, 0)] for node in params}))


def _check_symbol(caller: str, symbol: object) -> None:
    if not isinstance(symbol, Symbol):
        raise TypeError(f"amp.{caller}: got {symbol!r}, expected a Symbol")


def _check_names(symbol: Symbol, excluded: Sequence[str]) -> None:
    names = {node.name for node in symbol.nodes()}
    unknown = [name for name in excluded if name not in names]
    if unknown:
        raise ValueError(f"amp: excluded_sym_names has {unknown[0]!r}, which is not a node of the symbol")


def _declared_dtype(node: Node) -> DType:
    return BY_FLAG.get(int(node.attributes.get("__dtype__", -1)), FLOAT32)


def _params_only_cast(entries: Sequence[Entry], params: Sequence[Node], dtype: DType) -> list[Node]:
    """Return the parameters that are read only by casts to a dtype."""
    readers: dict[Node, list[Node]] = {node: [] for node in params}
    for node in topological(entries):
        for entry in node.inputs:
            if entry.node in readers:
                readers[entry.node].append(node)
    return [param for param, nodes in readers.items() if nodes and all(_casts_to(node, dtype) for node in nodes)]


def _casts_to(node: Node, dtype: DType) -> bool:
    op = node.op
    if isinstance(op, AmpMulticast):  # operators without inputs do not matter: nothing requires a different dtype
        return all(entry.node.is_variable for entry in node.inputs)
    return isinstance(op, AmpCast) and op.dtype == dtype


def _with_dtypes(entries: Sequence[Entry], dtypes: Mapping[Node, DType]) -> list[Entry]:
    """Declare dtypes on the variables of a graph."""
    replacements: dict[Node, Node] = {}

    def new(entry: Entry) -> Entry:
        return Entry(replacements.get(entry.node, entry.node), entry.index)

    for node in topological(entries):
        attributes, inputs = node.attributes, tuple([new(entry) for entry in node.inputs])
        if node in dtypes:
            attributes = {**attributes, "__dtype__": str(FLAGS[dtypes[node]])}
        if attributes is not node.attributes or inputs != node.inputs:
            replacements[node] = Node(
                node.op, node.name, inputs, attributes, node.user_parameters, node.origin, node.versions
            )
    return [new(entry) for entry in entries]


def convert_model(
    sym: Symbol, arg_params: Mapping[str, NDArray], aux_params: Mapping[str, NDArray], target_dtype: object = "float16",
    target_dtype_ops: Sequence[str] | None = None, fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None, excluded_sym_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> tuple[Symbol, Arrays, Arrays]:  # fmt: skip
    """Convert a symbol and its parameters to mixed precision. The arguments are those of :func:`convert_symbol`.

    Returns:
        the symbol with casts, its parameters and its auxiliary states.

    Raises:
        TypeError, ValueError, AttributeError: as :func:`convert_symbol`.
    """
    _check_symbol("convert_model", sym)
    data = sorted(set(sym.list_inputs()) - {*arg_params, *aux_params})
    symbol = convert_symbol(
        sym, target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, data,
        cast_optional_params,
    )  # fmt: skip
    dtypes = {node.name: _declared_dtype(node) for node in symbol.nodes() if node.is_variable and node.name not in data}
    return symbol, _cast(arg_params, dtypes), _cast(aux_params, dtypes)


def _cast(params: Mapping[str, NDArray], dtypes: Mapping[str, DType]) -> Arrays:
    return {name: array.astype(dtypes.get(name, array.dtype), copy=False) for name, array in params.items()}


def convert_bucketing_module(
    bucketing_mod: BucketingModule, target_dtype: object = "float16", target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None, conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None, cast_optional_params: bool = False,
) -> BucketingModule:  # fmt: skip
    """Convert a float32 bucketing module with its parameters to mixed precision. The result must be bound.

    The other arguments are those of :func:`convert_symbol`.

    Raises:
        TypeError: ``bucketing_mod`` is not a BucketingModule.
        ValueError: its parameters are not initialized.
        ValueError, AttributeError: as :func:`convert_symbol`.
    """
    if not isinstance(bucketing_mod, BucketingModule):
        raise TypeError(f"amp.convert_bucketing_module: got {bucketing_mod!r}, expected a BucketingModule")
    if not bucketing_mod.params_initialized:
        raise ValueError("amp.convert_bucketing_module: parameters are not initialized: call bind() and init_params()")
    arg_params, aux_params = bucketing_mod.get_params()

    def generate(key: object) -> tuple[Symbol, Any, Any]:
        symbol, data_names, label_names = bucketing_mod._sym_gen(key)
        return convert(symbol)[0], data_names, label_names

    def convert(symbol: Symbol) -> tuple[Symbol, Arrays, Arrays]:
        return convert_model(
            symbol, arg_params, aux_params, target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops,
            excluded_sym_names, cast_optional_params,
        )  # fmt: skip

    module = BucketingModule(
        generate, bucketing_mod._default_bucket_key, bucketing_mod.logger, **bucketing_mod._arguments
    )
    module._set_initial_params(*convert(bucketing_mod._default.symbol)[1:])
    return module


def convert_hybrid_block(
    block: HybridBlock, target_dtype: Any = "float16", target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None, conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None, ctx: Any = None, cast_optional_params: bool = False,
) -> SymbolBlock:  # fmt: skip
    """Convert a float32 block to a block of mixed precision, for prediction.

    Args:
        block: a block that was hybridized and called.
        target_dtype: as in :func:`convert_symbol`.
        target_dtype_ops: as in :func:`convert_symbol`.
        fp32_ops: as in :func:`convert_symbol`.
        conditional_fp32_ops: as in :func:`convert_symbol`.
        excluded_sym_names: as in :func:`convert_symbol`.
        ctx: the device or devices of its parameters (default: those of the block).
        cast_optional_params: as in :func:`convert_symbol`.

    Raises:
        TypeError: ``block`` is not a HybridBlock.
        RuntimeError: the block has no graph yet.
        ValueError, AttributeError: as :func:`convert_symbol`.
    """
    if not isinstance(block, HybridBlock):
        raise TypeError(f"amp.convert_hybrid_block: got {block!r}, expected a HybridBlock")
    if not block._cached_graph:
        raise RuntimeError("amp.convert_hybrid_block: the block has no graph: call hybridize(), then the block once")
    names, symbol = block._cached_graph
    low_symbol = convert_symbol(
        symbol, target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, names,
        cast_optional_params,
    )  # fmt: skip
    low_block = SymbolBlock(low_symbol, [sym.var(name) for name in names])
    params = block.collect_params()
    low_params = low_block.collect_params()
    contexts = ctx if ctx is not None or not params else next(iter(params.values())).list_ctx()
    dtypes = {node.name: _declared_dtype(node) for node in low_symbol.nodes() if node.is_variable}
    for name, param in low_params.items():
        param.cast(dtypes[name])
    low_params.load_dict(
        {name: params[name]._reduce().astype(dtypes[name], copy=False) for name in low_params}, contexts
    )
    return low_block
