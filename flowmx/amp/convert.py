"""Networks of float32 as networks of mixed precision: symbols with casts, and parameters of the types that fit."""

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
from flowmx.ops.optimizers.mixed_precision import AmpCast, AmpMulticast
from flowmx.ops.registry.dtypes import BY_FLAG, FLAGS, FLOAT32, DType
from flowmx.symbol import Symbol

Arrays = dict[str, NDArray]


def convert_symbol(
    sym: Symbol, target_dtype: Any = "float16", target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None, conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None, data_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> Symbol:  # fmt: skip
    """The symbol with casts, so that its operators compute in 16 bits or in float32, as the lists say.

    Its outputs are float32.

    Args:
        sym: a symbol of float32.
        target_dtype: ``"float16"`` or ``"bfloat16"``.
        target_dtype_ops: the operators that compute in it (default: those of the lists).
        fp32_ops: the operators that stay float32.
        conditional_fp32_ops: triples of operator, parameter and values for which it stays float32.
        excluded_sym_names: names of nodes that stay float32.
        data_names: the names of the data (default: variables without a declared dtype); the others are parameters.
        cast_optional_params: have parameters that nothing reads but as 16 bits be 16 bits, in place of a cast.

    Raises:
        TypeError: it is no symbol.
        ValueError: another type, an operator on two lists, or a name that is no node.
        AttributeError: there is no such operator.
    """
    _check_symbol("convert_symbol", sym)
    excluded = list(excluded_sym_names or ())
    _check_names(sym, excluded)
    policy = Policy(target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded)
    variables = {node.name: node for node in sym._nodes() if node.is_variable}
    undeclared = [name for name, node in variables.items() if "__dtype__" not in node.attributes]
    data = set(undeclared if data_names is None else data_names)
    known = {node: FLOAT32 if name in data else _declared(node) for name, node in variables.items()}
    params = [node for name, node in variables.items() if name not in data]
    inserting = Inserting(known, policy, params)
    entries = inserting.graph(sym._entries)
    if cast_optional_params:
        chosen = _only_cast(entries, params, policy.dtype)
        inserting = Inserting({**known, **dict.fromkeys(chosen, policy.dtype)}, policy, {*params} - {*chosen})
        entries = inserting.graph(sym._entries)
    entries = [inserting.cast(each, FLOAT32) if inserting.dtypes[each] == policy.dtype else each for each in entries]
    return Symbol(_with_dtypes(entries, {node: inserting.dtypes[Entry(node, 0)] for node in params}))


def _check_symbol(caller: str, given: Any) -> None:
    if not isinstance(given, Symbol):
        raise TypeError(f"amp.{caller}: {given!r} was given, expected a Symbol")


def _check_names(symbol: Symbol, excluded: Sequence[str]) -> None:
    names = {node.name for node in symbol._nodes()}
    unknown = [name for name in excluded if name not in names]
    if unknown:
        raise ValueError(f"amp: excluded_sym_names holds {unknown[0]!r}, which is no node of the symbol")


def _declared(node: Node) -> DType:
    return BY_FLAG.get(int(node.attributes.get("__dtype__", -1)), FLOAT32)


def _only_cast(entries: Sequence[Entry], params: Sequence[Node], dtype: DType) -> list[Node]:
    """The parameters that nothing reads but a cast to this dtype."""
    readers: dict[Node, list[Node]] = {node: [] for node in params}
    for node in topological(entries):
        for entry in node.inputs:
            if entry.node in readers:
                readers[entry.node].append(node)
    return [param for param, found in readers.items() if found and all(_casts_to(node, dtype) for node in found)]


def _casts_to(node: Node, dtype: DType) -> bool:
    op = node.op
    if isinstance(op, AmpMulticast):  # of variables alone: nothing says that it must be another type
        return all(entry.node.is_variable for entry in node.inputs)
    return isinstance(op, AmpCast) and op.dtype == dtype


def _with_dtypes(entries: Sequence[Entry], dtypes: Mapping[Node, DType]) -> list[Entry]:
    """The graph with these dtypes declared by its variables."""
    moved: dict[Node, Node] = {}

    def new(entry: Entry) -> Entry:
        return Entry(moved.get(entry.node, entry.node), entry.index)

    for node in topological(entries):
        attributes, inputs = node.attributes, tuple([new(entry) for entry in node.inputs])
        if node in dtypes:
            attributes = {**attributes, "__dtype__": str(FLAGS[dtypes[node]])}
        if attributes is not node.attributes or inputs != node.inputs:
            moved[node] = Node(node.op, node.name, inputs, attributes, node.given, node.origin, node.versions)
    return [new(entry) for entry in entries]


def convert_model(
    sym: Symbol, arg_params: Mapping[str, NDArray], aux_params: Mapping[str, NDArray], target_dtype: Any = "float16",
    target_dtype_ops: Sequence[str] | None = None, fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None, excluded_sym_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> tuple[Symbol, Arrays, Arrays]:  # fmt: skip
    """A symbol and its parameters for mixed precision; the arguments are those of :func:`convert_symbol`.

    Returns:
        the symbol with casts, its parameters and its auxiliary states.

    Raises:
        TypeError, ValueError, AttributeError: as :func:`convert_symbol`.
    """
    _check_symbol("convert_model", sym)
    data = sorted(set(sym.list_inputs()) - {*arg_params, *aux_params})
    made = convert_symbol(
        sym, target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, data,
        cast_optional_params,
    )  # fmt: skip
    dtypes = {node.name: _declared(node) for node in made._nodes() if node.is_variable and node.name not in data}
    return made, _cast(arg_params, dtypes), _cast(aux_params, dtypes)


def _cast(params: Mapping[str, NDArray], dtypes: Mapping[str, DType]) -> Arrays:
    return {name: each.astype(dtypes.get(name, each.dtype), copy=False) for name, each in params.items()}


def convert_bucketing_module(
    bucketing_mod: BucketingModule, target_dtype: Any = "float16", target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None, conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None, cast_optional_params: bool = False,
) -> BucketingModule:  # fmt: skip
    """A bucketing module of mixed precision, with the parameters of one of float32; the others are those of
    :func:`convert_symbol`. It is to be bound anew.

    Raises:
        TypeError: it is no BucketingModule.
        ValueError: its parameters are not initialized.
        ValueError, AttributeError: as :func:`convert_symbol`.
    """  # noqa: D205
    if not isinstance(bucketing_mod, BucketingModule):
        raise TypeError(f"amp.convert_bucketing_module: {bucketing_mod!r} was given, expected a BucketingModule")
    if not bucketing_mod.params_initialized:
        raise ValueError("amp.convert_bucketing_module: the parameters are not there: call bind() and init_params()")
    arg_params, aux_params = bucketing_mod.get_params()

    def generate(key: Any) -> tuple[Symbol, Any, Any]:
        symbol, data_names, label_names = bucketing_mod._sym_gen(key)
        return converted(symbol)[0], data_names, label_names

    def converted(symbol: Symbol) -> tuple[Symbol, Arrays, Arrays]:
        return convert_model(
            symbol, arg_params, aux_params, target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops,
            excluded_sym_names, cast_optional_params,
        )  # fmt: skip

    made = BucketingModule(
        generate, bucketing_mod._default_bucket_key, bucketing_mod.logger, **bucketing_mod._arguments
    )
    made._begin_with(*converted(bucketing_mod._default.symbol)[1:])
    return made


def convert_hybrid_block(
    block: HybridBlock, target_dtype: Any = "float16", target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None, conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None, ctx: Any = None, cast_optional_params: bool = False,
) -> SymbolBlock:  # fmt: skip
    """A block of mixed precision that computes what a block of float32 does; for predictions.

    Args:
        block: a block that was hybridized and called.
        target_dtype: as for :func:`convert_symbol`, and so are the others.
        target_dtype_ops: as there.
        fp32_ops: as there.
        conditional_fp32_ops: as there.
        excluded_sym_names: as there.
        ctx: the device or devices of its parameters (default: where those of the block are).
        cast_optional_params: as there.

    Raises:
        TypeError: it is no HybridBlock.
        RuntimeError: it has no graph yet.
        ValueError, AttributeError: as :func:`convert_symbol`.
    """
    if not isinstance(block, HybridBlock):
        raise TypeError(f"amp.convert_hybrid_block: {block!r} was given, expected a HybridBlock")
    if not block._cached_graph:
        raise RuntimeError("amp.convert_hybrid_block: the block has no graph: call hybridize(), then the block once")
    names, symbol = block._cached_graph
    converted = convert_symbol(
        symbol, target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, names,
        cast_optional_params,
    )  # fmt: skip
    made = SymbolBlock(converted, [sym.var(name) for name in names])
    params = block.collect_params()
    used = made.collect_params()
    contexts = ctx if ctx is not None or not params else next(iter(params.values())).list_ctx()
    dtypes = {node.name: _declared(node) for node in converted._nodes() if node.is_variable}
    for name, param in used.items():
        param.cast(dtypes[name])
    used.load_dict({name: params[name]._reduce().astype(dtypes[name], copy=False) for name in used}, contexts)
    return made
