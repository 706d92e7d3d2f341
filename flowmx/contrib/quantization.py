"""Quantization to int8, as ``mxnet.contrib.quantization`` (docs/quantization.md).

A quantized network computes on bytes: weights, and values between layers, are int8 or uint8 numbers that represent
floating-point numbers in a range. The ranges of values are measured on data (``calib_mode`` ``naive`` or ``entropy``),
or at each call (``none``).

Example:
    >>> quantized = mx.contrib.quantization.quantize_net(net, calib_data=loader, calib_mode="naive")
    >>> quantized.hybridize()
    >>> quantized(batch)
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx import symbol as sym_module
from flowmx.contrib.calibration import (
    _as_data_iter,
    _collect_layer_histogram,
    _collect_layer_output_min_max,
    _collect_layer_statistics,
    _DataIterWrapper,
    _get_optimal_threshold,
    _get_optimal_thresholds,
    _LayerHistogramCollector,
    _LayerOutputMinMaxCollector,
    _smooth_distribution,
    collector_of,
    combine_histogram,
    ranges_of,
)
from flowmx.devices import Context, cpu
from flowmx.gluon import HybridBlock, SymbolBlock
from flowmx.graph.quantizing.measured_ranges import with_ranges
from flowmx.graph.quantizing.quantize import QuantizeOptions, quantize
from flowmx.io import DataDesc, DataIter
from flowmx.module import Module
from flowmx.ndarray import NDArray
from flowmx.symbol import Symbol

__all__ = [
    "_DataIterWrapper", "_LayerHistogramCollector", "_LayerOutputMinMaxCollector", "_as_data_iter",
    "_calibrate_quantized_sym", "_collect_layer_histogram", "_collect_layer_output_min_max",
    "_collect_layer_statistics", "_get_optimal_threshold", "_get_optimal_thresholds", "_load_params", "_load_sym",
    "_quantize_params", "_quantize_symbol", "_smooth_distribution", "calib_graph", "combine_histogram",
    "quantize_graph", "quantize_model", "quantize_model_mkldnn", "quantize_net", "quantize_net_v2",
]  # fmt: skip

Arrays = dict[str, NDArray]
Quantized = tuple[Symbol, Arrays, Arrays]
_BACKEND = "MKLDNN_QUANTIZE"
_CPU = cpu()


def _quantize_params(qsym: Symbol, params: Mapping[str, NDArray], th_dict: Mapping[str, Any]) -> Arrays:
    """Return the parameters of a quantized symbol, from the float32 parameters and the measured ranges."""
    quantized: Arrays = {}
    for name in qsym.list_arguments():
        original = name.removesuffix("_quantize")
        if name.endswith(("weight_quantize", "bias_quantize")) and original in params:
            values = params[original].astype("float32", copy=False)
            quantized[name], quantized[f"{name}_min"], quantized[f"{name}_max"] = nd.contrib.quantize(
                values, nd.min(values), nd.max(values), out_type="int8"
            )
        elif name in params:
            quantized[name] = params[name]
        elif name.endswith(("_min", "_max")) and name[:-4] in th_dict:
            end = th_dict[name[:-4]][name.endswith("_max")]
            quantized[name] = nd.array(np.reshape(np.asarray(end, np.float32), (1,)))
    return quantized


def _quantize_symbol(
    sym: Symbol, ctx: Context, excluded_symbols: Sequence[str] | None = None,
    excluded_operators: Sequence[str] | None = None, offline_params: Sequence[str] | None = None,
    quantized_dtype: str = "int8", quantize_mode: str = "smart", quantize_granularity: str = "tensor-wise",
) -> tuple[Symbol, list[str]]:  # fmt: skip
    """Quantize a symbol. Return it, and the names of the values whose ranges must be measured.

    Raises:
        ValueError: an unknown dtype, mode or granularity.
    """
    _check("quantized_dtype", quantized_dtype, ("int8", "uint8", "auto"))
    _check("quantize_mode", quantize_mode, ("full", "smart"))
    _check("quantize_granularity", quantize_granularity, ("tensor-wise", "channel-wise"))
    for name, names in (("excluded_symbols", excluded_symbols), ("excluded_operators", excluded_operators)):
        _check_names(name, names)
    options = QuantizeOptions(
        frozenset(excluded_symbols or ()), frozenset(excluded_operators or ()), frozenset(offline_params or ()),
        quantized_dtype, quantize_mode == "full", quantize_granularity == "channel-wise",
    )  # fmt: skip
    entries, measured = quantize(sym.entries, options)
    return Symbol(entries), measured


def _calibrate_quantized_sym(qsym: Symbol, th_dict: Mapping[str, Any] | None) -> Symbol:
    """Insert measured ranges into a quantized symbol."""
    if not th_dict:
        return qsym
    ranges = {name: (_float(low), _float(high)) for name, (low, high) in th_dict.items()}
    return Symbol(with_ranges(qsym.entries, ranges))


def _float(value: Any) -> float:
    return float(np.reshape(value.asnumpy() if isinstance(value, NDArray) else value, -1)[0])


def _check(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, allowed))}")


def _check_names(name: str, value: object) -> None:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is {value!r}, expected a list of names")


def _check_context(ctx: object) -> None:
    if not isinstance(ctx, Context):
        raise ValueError(f"ctx is {ctx!r}, expected one device, such as mx.cpu()")


def _load_sym(sym: Any, logger: Any = None) -> Symbol:
    """Return a symbol, or load one from a file.

    Raises:
        ValueError: the argument is neither a symbol nor a path.
    """
    if isinstance(sym, Symbol):
        return sym
    if isinstance(sym, (str, os.PathLike)):
        if logger:
            logger.info(f"Loading symbol from file {sym}")
        return sym_module.load(os.fspath(sym))
    raise ValueError(f"sym is {type(sym).__name__}, expected a Symbol or the name of a file")


def _load_params(params: Any, logger: Any = None) -> tuple[Arrays, Arrays]:
    """Return parameters and auxiliary states, from a pair or a file.

    Raises:
        ValueError: the argument is neither a pair nor a path.
    """
    if isinstance(params, (str, os.PathLike)):
        if logger:
            logger.info(f"Loading params from file {params}")
        pair: tuple[Arrays, Arrays] = ({}, {})
        loaded = nd.load(os.fspath(params))
        if not isinstance(loaded, dict):
            raise ValueError(f"the file {params} has arrays without names, expected names such as 'arg:fc_weight'")
        for key, value in loaded.items():
            kind, name = key.split(":", 1)
            pair[kind == "aux"][name] = value
        return pair
    if isinstance(params, (tuple, list)) and len(params) == 2:
        return params[0], params[1]
    raise ValueError("params is neither the name of a file nor a pair of dicts of parameters and auxiliary states")


def quantize_model(
    sym: object, arg_params: object, aux_params: object, data_names: Sequence[str] = ("data",),
    label_names: Sequence[str] | None = ("softmax_label",), ctx: Context = _CPU,
    excluded_sym_names: list[str] | None = None, excluded_op_names: list[str] | None = None,
    calib_mode: str | None = "entropy", calib_data: object = None, num_calib_examples: int | None = None,
    quantized_dtype: str = "int8", quantize_mode: str = "smart", quantize_granularity: str = "tensor-wise",
    logger: object = None,
) -> Quantized:  # fmt: skip
    """Quantize a symbol and its parameters, operator by operator (see :func:`quantize_model_mkldnn`).

    Args:
        sym: a float32 symbol, or the name of its file.
        arg_params: its parameters.
        aux_params: its auxiliary states.
        data_names: the names of its data.
        label_names: the names of its labels.
        ctx: the device to measure ranges on.
        excluded_sym_names: names of nodes that are not quantized.
        excluded_op_names: names of operators that are not quantized.
        calib_mode: ``none``: measure ranges at each call; ``naive``: minima and maxima on the data; ``entropy``:
            minimize the divergence of a value's distribution from the quantized one.
        calib_data: a DataIter; unused for ``none``.
        num_calib_examples: the approximate number of examples to measure on (None: all).
        quantized_dtype: ``int8``, ``uint8``, or ``auto``: uint8 for values that are never negative on the data.
        quantize_mode: ``full``: quantize all supported operators; ``smart``: quantize operators without a speedup only
            between quantized ones.
        quantize_granularity: ``tensor-wise``, or ``channel-wise``: a scale for each output of a product.
        logger: a logger for progress messages.

    Returns:
        the symbol, its parameters and its auxiliary states.

    Raises:
        ValueError: invalid options, or no data to measure ranges on.
        MXNetError: a node cannot be quantized.
    """
    symbol, (arg_params, aux_params) = _load_sym(sym, logger), _load_params((arg_params, aux_params), logger)
    qsym, _, _, collector = quantize_graph(
        symbol, arg_params, aux_params, ctx, excluded_sym_names, excluded_op_names, calib_mode, quantized_dtype,
        quantize_mode, quantize_granularity, None, logger,
    )  # fmt: skip
    ranges: Mapping[str, Any] = {}
    if calib_mode is not None and calib_mode != "none":
        if not isinstance(calib_data, DataIter):
            raise ValueError(
                f"calib_data is {type(calib_data).__name__}, expected a DataIter for calib_mode {calib_mode!r}"
            )
        module = Module(symbol, data_names, label_names, context=ctx)
        module.bind(calib_data.provide_data, calib_data.provide_label or None, for_training=False)
        module.set_params(arg_params, aux_params)
        _collect_layer_statistics(module, calib_data, collector, num_calib_examples, logger)
        ranges = ranges_of(collector, calib_mode, quantized_dtype, logger)
        qsym = _calibrate_quantized_sym(qsym, ranges)
    return qsym, _quantize_params(qsym, arg_params, ranges), aux_params


def quantize_model_mkldnn(
    sym: object, arg_params: object, aux_params: object, data_names: Sequence[str] = ("data",),
    label_names: Sequence[str] | None = ("softmax_label",), ctx: Context = _CPU,
    excluded_sym_names: list[str] | None = None, excluded_op_names: list[str] | None = None,
    calib_mode: str | None = "entropy", calib_data: object = None, num_calib_examples: int | None = None,
    quantized_dtype: str = "int8", quantize_mode: str = "smart", quantize_granularity: str = "tensor-wise",
    logger: object = None,
) -> Quantized:  # fmt: skip
    """Quantize a symbol and its parameters, with fused layers. This is the recommended function.

    The arguments and errors are those of :func:`quantize_model`; ``ctx`` must be a CPU. Filters have one scale per
    channel, and BatchNorm is folded into them.
    """
    _check_context(ctx)
    if ctx.device_type != "cpu":
        raise ValueError(f"ctx is {ctx}, expected a CPU")
    qsym, qarg_params, aux_params = quantize_model(
        _load_sym(sym, logger).get_backend_symbol(_BACKEND), arg_params, aux_params, data_names, label_names, ctx,
        excluded_sym_names, excluded_op_names, calib_mode, calib_data, num_calib_examples, quantized_dtype,
        quantize_mode, quantize_granularity, logger,
    )  # fmt: skip
    return qsym.get_backend_symbol(_BACKEND), qarg_params, aux_params


def quantize_graph(
    sym: object, arg_params: Mapping[str, NDArray], aux_params: Mapping[str, NDArray], ctx: Context = _CPU,
    excluded_sym_names: list[str] | None = None, excluded_op_names: list[str] | None = None,
    calib_mode: str | None = "entropy", quantized_dtype: str = "int8", quantize_mode: str = "full",
    quantize_granularity: str = "tensor-wise", LayerOutputCollector: object = None, logger: object = None,
) -> tuple[Symbol, Arrays, Any, Any]:  # fmt: skip
    """Quantize a symbol before its ranges are measured, and return a collector that measures them.

    Run the float32 symbol with ``executor.set_monitor_callback(collector.collect, monitor_all=True)``, then call
    :func:`calib_graph`.

    Args:
        sym: as in :func:`quantize_model`.
        arg_params: as in :func:`quantize_model`.
        aux_params: as in :func:`quantize_model`.
        ctx: as in :func:`quantize_model`.
        excluded_sym_names: as in :func:`quantize_model`.
        excluded_op_names: as in :func:`quantize_model`.
        calib_mode: as in :func:`quantize_model`, or ``customize``.
        quantized_dtype: as in :func:`quantize_model`.
        quantize_mode: as in :func:`quantize_model`.
        quantize_granularity: as in :func:`quantize_model`.
        LayerOutputCollector: for ``customize``, an object with ``collect(name, array)`` that stores ranges by name in
            ``min_max_dict``.
        logger: as in :func:`quantize_model`.

    Returns:
        the symbol, its parameters, its auxiliary states and the collector (None for the mode ``none``).
    """
    _check_names("excluded_sym_names", excluded_sym_names)
    _check_context(ctx)
    symbol = _load_sym(sym, logger)
    qsym, names = _quantize_symbol(
        symbol, ctx, excluded_sym_names, excluded_op_names, list(arg_params), quantized_dtype, quantize_mode,
        quantize_granularity,
    )  # fmt: skip
    collector = None
    if calib_mode is not None and calib_mode != "none":
        collector = collector_of(calib_mode, quantized_dtype, names, LayerOutputCollector, logger)
    return qsym, _quantize_params(qsym, arg_params, {}), aux_params, collector


def calib_graph(
    qsym: Symbol, arg_params: Mapping[str, NDArray], aux_params: Mapping[str, NDArray], collector: object,
    calib_mode: str = "entropy", quantized_dtype: str = "int8", logger: object = logging,
) -> tuple[Symbol, Arrays, Any]:  # fmt: skip
    """Insert the ranges of a collector into a quantized symbol, and quantize its parameters.

    Args:
        qsym: the quantized symbol of :func:`quantize_graph`.
        arg_params: the parameters of the float32 symbol.
        aux_params: its auxiliary states.
        collector: the collector that measured the ranges.
        calib_mode: ``naive``, ``entropy`` or ``customize``.
        quantized_dtype: as in :func:`quantize_graph`.
        logger: a logger for progress messages.

    Raises:
        ValueError: an unknown mode.
    """
    ranges = ranges_of(collector, calib_mode, quantized_dtype, logger)
    symbol = _calibrate_quantized_sym(qsym, ranges)
    return symbol, _quantize_params(symbol, arg_params, ranges), aux_params


def quantize_net_v2(
    network: HybridBlock, quantized_dtype: str = "auto", quantize_mode: str = "full",
    quantize_granularity: str = "tensor-wise", exclude_layers: list[str] | None = None,
    exclude_layers_match: list[str] | None = None, exclude_operators: list[str] | None = None,
    calib_data: object = None, data_shapes: object = None, calib_mode: str | None = "none",
    num_calib_examples: int | None = None, ctx: Context = _CPU, LayerOutputCollector: object = None,
    logger: object = None,
) -> SymbolBlock:  # fmt: skip
    """Quantize a float32 block, which is hybridized.

    Args:
        network: the block.
        quantized_dtype: as in :func:`quantize_model`.
        quantize_mode: as in :func:`quantize_model`.
        quantize_granularity: as in :func:`quantize_model`.
        exclude_layers: names of nodes that are not quantized.
        exclude_layers_match: substrings of such names.
        exclude_operators: names of operators that are not quantized.
        calib_data: a DataIter or DataLoader.
        data_shapes: descriptions of the inputs (``mx.io.DataDesc``), if there is no data.
        calib_mode: as in :func:`quantize_model`, or ``customize``.
        num_calib_examples: as in :func:`quantize_model`.
        ctx: as in :func:`quantize_model`.
        LayerOutputCollector: as in :func:`quantize_graph`.
        logger: as in :func:`quantize_model`.

    Raises:
        ValueError: invalid options, or neither data nor shapes.
        TypeError: an invalid description of an input.
        MXNetError: a node cannot be quantized.
    """
    _check_context(ctx)
    network.hybridize()
    names, symbol, shapes, calib_data = _inputs_and_symbol(network, calib_data, data_shapes, ctx)
    params = {name: param._reduce() for name, param in network.collect_params().items()}
    args = {name: params[name] for name in symbol.list_arguments() if name in params}
    aux = {name: params[name] for name in set(symbol.list_auxiliary_states()) if name in params}
    matches = exclude_layers_match or ()
    matching = [node.name for match in matches for node in symbol.nodes() if match in node.name]
    if ctx.device_type == "cpu":
        symbol = symbol.get_backend_symbol(_BACKEND)
    qsym, qargs, _, collector = quantize_graph(
        symbol, args, aux, ctx, [*(exclude_layers or ()), *matching], exclude_operators, calib_mode, quantized_dtype,
        quantize_mode, quantize_granularity, LayerOutputCollector, logger,
    )  # fmt: skip
    if collector is not None:
        if calib_data is None:
            raise ValueError(f"calib_data is missing, expected a DataIter or DataLoader for calib_mode {calib_mode!r}")
        module = Module(symbol, [shape.name for shape in shapes], None, context=ctx)
        module.bind(shapes, for_training=False)
        module.set_params(args, aux, allow_missing=False, force_init=True)
        _collect_layer_statistics(module, calib_data, collector, num_calib_examples, logger)
        qsym, qargs, _ = calib_graph(qsym, args, aux, collector, str(calib_mode), quantized_dtype, logger)
    if ctx.device_type == "cpu":
        qsym = qsym.get_backend_symbol(_BACKEND)
    return _block(qsym, names, {**qargs, **aux}, ctx)


def _inputs_and_symbol(
    network: HybridBlock, calib_data: object, data_shapes: Any, ctx: Context
) -> tuple[list[str], Symbol, list[DataDesc], Any]:
    """Return the names of a block's inputs, its symbol, the descriptions of the inputs, and the data as a DataIter.

    Raises:
        ValueError: there is neither data nor a description.
    """
    shapes = [_description(shape) for shape in data_shapes or ()]
    if calib_data is not None:
        calib_data, data_descriptions = _as_data_iter(calib_data)
        shapes = shapes or [_description(description) for description in data_descriptions]
    if not shapes:
        raise ValueError("data_shapes is missing, expected a DataDesc for each input, or calib_data")
    names, symbol = _trace(network, shapes, ctx)
    del shapes[len(names) :]
    if isinstance(calib_data, _DataIterWrapper):
        calib_data.provide_data = calib_data.provide_data[: len(names)]
    return names, symbol, shapes, calib_data


def _block(symbol: Symbol, names: Sequence[str], params: Mapping[str, NDArray], ctx: Context) -> SymbolBlock:
    """Create the block of a quantized symbol."""
    block = SymbolBlock(symbol, [sym_module.var(name) for name in names])
    block_params = block.collect_params()
    block_params.load_dict({name: params[name] for name in block_params}, ctx, cast_dtype=True, dtype_source="saved")
    return block


def _description(value: object) -> DataDesc:
    """Return the description of an input, which may be a pair of name and shape."""
    if isinstance(value, DataDesc):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return DataDesc(*value)
    raise TypeError(f"data_shapes has {value!r}, expected a DataDesc, or the name and the shape of an input")


def _trace(network: HybridBlock, shapes: list[DataDesc], ctx: Context) -> tuple[list[str], Symbol]:
    """Call a block with as many of the inputs as it accepts. Return their names and the graph.

    Raises:
        TypeError: it accepts no inputs.
    """
    while True:
        try:
            network(*[nd.zeros(tuple(shape.shape), ctx=ctx, dtype=shape.dtype) for shape in shapes])
        except TypeError:
            shapes.pop()
            if not shapes:
                raise
            continue
        names, symbol = network._cached_graph or ([], sym_module.Group([]))
        return list(names), symbol


def quantize_net(
    network: HybridBlock, quantized_dtype: str = "auto", quantize_mode: str = "full",
    exclude_layers: list[str] | None = None, exclude_layers_match: list[str] | None = None,
    exclude_operators: list[str] | None = None, calib_data: object = None, data_shapes: object = None,
    calib_mode: str | None = "none", num_calib_examples: int | None = None, ctx: Context = _CPU, logger: object = None,
) -> SymbolBlock:  # fmt: skip
    """Quantize a block (deprecated in MXNet). The arguments and errors are those of :func:`quantize_net_v2`."""
    warnings.warn("quantize_net is deprecated, use quantize_net_v2", DeprecationWarning, stacklevel=2)
    return quantize_net_v2(
        network, quantized_dtype, quantize_mode, "tensor-wise", exclude_layers, exclude_layers_match,
        exclude_operators, calib_data, data_shapes, calib_mode, num_calib_examples, ctx, None, logger,
    )  # fmt: skip
