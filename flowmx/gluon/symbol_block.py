"""A block that computes a symbol, to use or train a checkpoint from Gluon."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import symbol as sym
from flowmx.errors import ArgumentError
from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock, Traced
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.graph.nesting import flatten, regroup
from flowmx.graph.storage_types import declared_stype
from flowmx.ndarray.files import load_named
from flowmx.ops.registry.dtypes import BY_FLAG
from flowmx.symbol import Symbol

__all__ = ["SymbolBlock"]


class SymbolBlock(HybridBlock):
    """A block that computes a symbol.

    Args:
        outputs: the symbol, or a (nested) list of symbols.
        inputs: the variables that are inputs; the other variables are parameters.
        params: parameters to share, by the names of the variables.

    Raises:
        ValueError: an input is not a variable.

    Example:
        >>> internals = mx.sym.load("model-symbol.json").get_internals()
        >>> features = mx.gluon.SymbolBlock(internals["flatten0_output"], mx.sym.var("data"))
    """

    def __init__(self, outputs: object, inputs: object, params: ParameterDict | None = None) -> None:
        super().__init__(prefix="")
        self._prefix, self._params = "", ParameterDict("", params)
        variables, _ = flatten(inputs, Symbol, "SymbolBlock: inputs")
        for variable in variables:
            if variable.get_children() is not None:
                raise ValueError(f"SymbolBlock: the input {variable.name!r} is an operator's result, not a variable")
        if isinstance(outputs, (list, tuple)) and len(outputs) == 1:  # a single output is an array, as in MXNet
            outputs = outputs[0]
        entries, form = flatten(outputs, Symbol, "SymbolBlock: outputs")
        self._traced = Traced([variable.name for variable in variables], sym.Group(entries), form)
        self._make_params(variables)

    def _make_params(self, variables: Sequence[Symbol]) -> None:
        symbol = self._traced.symbol
        inputs = {variable.name for variable in variables}
        for node in symbol.nodes():
            if node.op is None and node.name not in inputs and declared_stype(node) == "row_sparse":
                raise ArgumentError(
                    f"SymbolBlock: the parameter {node.name!r} is row_sparse, expected a dense parameter: "
                    "use a Module, or a block with row_sparse_data()"
                )
        # Infer the dtypes that a file does not declare. It declares dtypes other than float32 for parameters only.
        declared = {variable.name: variable.attr("__dtype__") for variable in variables}
        used = set(symbol.list_inputs())
        dtypes_of = {
            name: BY_FLAG[int(text)]
            for name, text in declared.items()
            if text and int(text) in BY_FLAG and name in used
        }
        arguments, _, auxiliary = symbol.infer_type_partial(**dtypes_of)
        for names, dtypes, request in (
            (symbol.list_arguments(), arguments, "write"),
            (symbol.list_auxiliary_states(), auxiliary, "null"),
        ):
            for name, dtype in zip(names, dtypes, strict=True):
                if name not in self._traced.inputs and not self._shares(name):
                    self._params.get(name, grad_req=request, allow_deferred_init=True, dtype=dtype or np.float32)
        start = _common_prefix_length(list(self._params.keys()))
        self._reg_params = {name[start:]: param for name, param in self._params.items()}

    def _shares(self, name: str) -> bool:
        return self._params._get_impl(name) is not None

    if TYPE_CHECKING:  # several outputs are a list, which unpacks like an array

        def __call__(self, x: A, /, *inputs: A) -> A: ...

    @staticmethod
    def imports(
        symbol_file: str | os.PathLike[str], input_names: str | Sequence[str],
        param_file: str | os.PathLike[str] | None = None, ctx: Contexts = None, allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> SymbolBlock:  # fmt: skip
        """Load a block that :meth:`HybridBlock.export` or ``Module.save_checkpoint`` saved (also in MXNet).

        Args:
            symbol_file: the file of the symbol.
            input_names: the names of the symbol's inputs.
            param_file: the file of the parameters (None: initialize the block).
            ctx: the device or devices of the parameters (default: the CPU).
            allow_missing: leave parameters that are not in the file uninitialized.
            ignore_extra: ignore arrays that belong to no parameter.

        Raises:
            ValueError: an input's name is not that of an input, or a parameter is missing or superfluous.
            OSError: a file cannot be read.
        """
        names = [input_names] if isinstance(input_names, str) else list(input_names)
        symbol = sym.load(os.fspath(symbol_file))
        if param_file is not None and not allow_missing:
            _check_input_names(symbol, names, param_file)
        block = SymbolBlock(symbol, [sym.var(name) for name in names])
        if param_file is not None:
            block.collect_params().load(
                param_file, ctx, allow_missing, ignore_extra, cast_dtype=True, dtype_source="saved"
            )
        return block

    def reset_ctx(self, ctx: Contexts) -> None:
        """Move all parameters to other devices."""
        self.collect_params().reset_ctx(ctx)

    def set_output_form(self, form: Any) -> None:
        """Set how the outputs are nested."""
        self._traced = self._traced._replace(form=form)
        self._clear_cached_op()

    def __repr__(self) -> str:
        inputs, symbol, *_ = self._traced
        return f"{type(self).__name__}(\n{symbol!r} : {len(inputs)} -> {len(symbol)}\n)"

    def _alias(self) -> str:
        return "symbol"

    def _compute(self, context: object, args: tuple[object, ...]) -> Any:
        return self._call_cached_op(*args)

    def _trace(self, args: tuple[object, ...]) -> Traced:
        return self._traced

    def _compose(self, args: Sequence[object]) -> Any:
        inputs, symbol, form, _ = self._traced
        symbols, _ = flatten(args, Symbol, "SymbolBlock: inputs")
        if len(symbols) != len(inputs):
            raise ValueError(f"SymbolBlock: {len(symbols)} inputs were given, expected {', '.join(inputs)}")
        used = set(symbol.list_inputs())
        return regroup(list(symbol(**{name: x for name, x in zip(inputs, symbols, strict=True) if name in used})), form)


def _common_prefix_length(names: Sequence[str]) -> int:
    """Return the length of the common prefix of all names, which is shorter than each name; 0 for a single name."""
    start = 0
    for letters in zip(*(name[:-1] for name in names), strict=False):
        if len(set(letters)) > 1:
            break
        start += 1
    return start if len(names) > 1 else 0


def _check_input_names(symbol: Symbol, names: Sequence[str], param_file: str | os.PathLike[str]) -> None:
    """Check that a symbol has inputs with these names.

    Raises:
        ArgumentError: a name is unknown.
    """
    inputs = symbol.list_inputs()
    unknown = [name for name in names if name not in inputs]
    if unknown:
        stored = {name.removeprefix("arg:").removeprefix("aux:") for name in load_named(param_file)}
        free = [name for name in inputs if name not in stored]
        raise ArgumentError(
            f"SymbolBlock.imports: input_names is {list(names)}, but the symbol has no input {unknown[0]!r}: its "
            f"inputs without parameters are {free}"
        )
