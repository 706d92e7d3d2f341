"""A block around a symbol: a checkpoint to be used, or trained on, from Gluon."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx import symbol as sym
from flowmx.errors import ArgumentError
from flowmx.gluon.hybrid import HybridBlock, Traced
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.graph.nesting import flatten, regroup
from flowmx.graph.storage_types import declared as declared_storage
from flowmx.symbol import Symbol

__all__ = ["SymbolBlock"]


class SymbolBlock(HybridBlock):
    """A block that computes a symbol.

    Args:
        outputs: the symbol, or a (nested) list of them.
        inputs: the variables that are its inputs; the others are its parameters.
        params: parameters to share, by the names of the variables.

    Raises:
        ValueError: an input is no variable.

    Example:
        >>> internals = mx.sym.load("model-symbol.json").get_internals()
        >>> features = mx.gluon.SymbolBlock(internals["flatten0_output"], mx.sym.var("data"))
    """

    def __init__(self, outputs: Any, inputs: Any, params: ParameterDict | None = None) -> None:
        super().__init__(prefix="")
        self._prefix, self._params = "", ParameterDict("", params)
        variables, _ = flatten(inputs, Symbol, "SymbolBlock: inputs")
        for each in variables:
            if each.get_children() is not None:
                raise ValueError(f"SymbolBlock: the input {each.name!r} is no variable, but the result of an operator")
        if isinstance(outputs, (list, tuple)) and len(outputs) == 1:  # one output comes as an array, as in MXNet
            outputs = outputs[0]
        entries, form = flatten(outputs, Symbol, "SymbolBlock: outputs")
        self._traced = Traced([each.name for each in variables], sym.Group(entries), form)
        self._make_params(variables)

    def _make_params(self, variables: Sequence[Symbol]) -> None:
        symbol = self._traced.symbol
        inputs = {each.name for each in variables}
        for node in symbol._nodes():
            if node.op is None and node.name not in inputs and declared_storage(node) == "row_sparse":
                raise ArgumentError(
                    f"SymbolBlock: the parameter {node.name!r} is row_sparse, and a SymbolBlock has dense ones alone: "
                    "use a Module, or a block with row_sparse_data()"
                )
        # What the inputs do not declare follows from the parameters that do, as the files of other dtypes have it.
        declared = {each.name: each.attr("__dtype__") for each in variables}
        used = set(symbol.list_inputs())
        known = {name: int(number) for name, number in declared.items() if number is not None and name in used}
        arguments, _, auxiliary = symbol.infer_type_partial(**known)
        for names, dtypes, request in (
            (symbol.list_arguments(), arguments, "write"),
            (symbol.list_auxiliary_states(), auxiliary, "null"),
        ):
            for name, dtype in zip(names, dtypes, strict=True):
                if name not in self._traced.inputs and not self._shares(name):
                    self._params.get(name, grad_req=request, allow_deferred_init=True, dtype=dtype or np.float32)
        start = _shared_start(list(self._params.keys()))
        self._reg_params = {name[start:]: param for name, param in self._params.items()}

    def _shares(self, name: str) -> bool:
        return self._params._find(name) is not None

    @staticmethod
    def imports(
        symbol_file: str | os.PathLike[str], input_names: str | Sequence[str],
        param_file: str | os.PathLike[str] | None = None, ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> SymbolBlock:  # fmt: skip
        """Make a block from what :meth:`HybridBlock.export` or ``Module.save_checkpoint`` saved (MXNet's too).

        Args:
            symbol_file: the file of the symbol.
            input_names: the names of its inputs.
            param_file: the file of the parameters (None: initialize the block).
            ctx: the device or devices of the parameters (default: the CPU).
            allow_missing: leave those to be initialized that are not in the file.
            ignore_extra: leave out what is in the file alone.
        """
        names = [input_names] if isinstance(input_names, str) else list(input_names)
        block = SymbolBlock(sym.load(os.fspath(symbol_file)), [sym.var(name) for name in names])
        if param_file is not None:
            block.collect_params().load(
                param_file, ctx, allow_missing, ignore_extra, cast_dtype=True, dtype_source="saved"
            )
        return block

    def reset_ctx(self, ctx: Contexts) -> None:
        """Move all parameters to other devices."""
        self.collect_params().reset_ctx(ctx)

    def __repr__(self) -> str:
        inputs, symbol, *_ = self._traced
        return f"{type(self).__name__}(\n{symbol!r} : {len(inputs)} -> {len(symbol)}\n)"

    def _alias(self) -> str:
        return "symbol"

    def _compute(self, context: Any, args: tuple[Any, ...]) -> Any:
        return self._call_cached_op(context, args)

    def _trace(self, args: tuple[Any, ...]) -> Traced:
        return self._traced

    def _compose(self, args: Sequence[Any]) -> Any:
        inputs, symbol, form, _ = self._traced
        given, _ = flatten(args, Symbol, "SymbolBlock: inputs")
        if len(given) != len(inputs):
            raise ValueError(f"SymbolBlock: {len(given)} inputs were given, expected {', '.join(inputs)}")
        used = set(symbol.list_inputs())
        return regroup(list(symbol(**{name: x for name, x in zip(inputs, given, strict=True) if name in used})), form)


def _shared_start(names: Sequence[str]) -> int:
    """The length of the common prefix of all names, short of a whole name; 0 for a single name."""
    start = 0
    for letters in zip(*(name[:-1] for name in names), strict=False):
        if len(set(letters)) > 1:
            break
        start += 1
    return start if len(names) > 1 else 0
