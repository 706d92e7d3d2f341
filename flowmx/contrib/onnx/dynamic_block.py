"""A Gluon block that imports the graph of an ONNX file for each shape of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx import forks
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.bounded_tables import make_room
from flowmx.contrib.onnx.converters import ONNXError
from flowmx.contrib.onnx.graph_import import File, InputShapes, declared_dtype, load, read_model, trial_shapes
from flowmx.contrib.onnx.import_constants import compute
from flowmx.contrib.onnx.stages import Cut, SharedConstants, StageImport
from flowmx.errors import ShapeError
from flowmx.gluon import HybridBlock, SymbolBlock
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.ndarray import NDArray

_MOST_SHAPES = 256
"""The largest number of input shapes, or of values of a cut, whose graphs are stored."""


class _Stage:
    """A part of the graph.

    Args:
        graph: its import.
        owner: the block that it belongs to.
    """

    def __init__(self, graph: StageImport, owner: DynamicBlock) -> None:
        self._graph, self._owner = graph, owner
        self._cut: Cut | None = graph.advance()
        self._outputs = graph.needed(self._cut)
        self._following: dict[Any, _Stage] = {}
        self._block: SymbolBlock | None = None
        self._inputs: list[str] = []
        constants = graph.constants() if self._cut is None else {}
        self._constants = {name: nd.array(array, owner.context, array.dtype) for name, array in constants.items()}
        if self._outputs:
            symbol, arrays = graph.compose(self._outputs)
            self._inputs = [name for name in symbol.list_inputs() if name not in arrays]
            self._block = owner.create_part(symbol, self._inputs, arrays)

    def run(self, values: dict[str, NDArray]) -> _Stage | None:
        """Compute the values of this stage. Return the next stage, or None if this is the last one."""
        if self._block is not None:
            results: Any = self._block(*[values[name] for name in self._inputs])
            values.update(zip(self._outputs, [results] if isinstance(results, NDArray) else results, strict=True))
        if self._cut is None:
            values.update(self._constants)
            return None
        return self._next(self._cut, values)

    def _next(self, cut: Cut, values: dict[str, NDArray]) -> _Stage:
        """Read the values of the cut, and return the stage that continues with them."""
        arrays = {name: values[name].asnumpy() for name in cut.names if name in values}
        key: Any
        if cut.node is None:
            constants = {name: self._graph.as_constant(name, array) for name, array in arrays.items()}
            key = tuple((array.shape, array.tobytes()) for array in constants.values())
        else:
            constants = {}
            inputs = [arrays[name] if name in arrays else self._graph.known_array(name) for name in cut.names]
            results = compute(cut.node, inputs, self._graph.opset)
            outputs = [nd.array(result, self._owner.context, result.dtype) for result in results]
            values.update(zip(cut.node.output, outputs, strict=False))
            key = tuple(array.shape for array in outputs)
        stage = self._following.get(key)
        if stage is None:
            kinds = {name: (array.shape, array.element_type) for name, array in values.items()}
            make_room(self._following, _MOST_SHAPES)
            stage = self._following[key] = _Stage(self._graph.resume(kinds, constants), self._owner)
        return stage


class DynamicBlock(HybridBlock):
    """A block of an ONNX file whose graph depends on the shapes of its inputs, or on lengths that it computes.

    The graph is imported when the block is called with new shapes. All graphs share the parameters, which are created
    when a graph first reads them. Where a length or a condition is computed by the model, the call waits for it.

    Args:
        model: the loaded file.
        ctx: the device of its parameters.
        fixed: the content of inputs that are constants.
    """

    def __init__(self, model: Any, ctx: Any = None, fixed: Mapping[str, object] = {}) -> None:
        super().__init__(prefix="")
        self._prefix, self._params = "", ParameterDict("")
        self._model, self._shared, self._lock = model, SharedConstants(model), forks.lock()
        self.context, self._fixed = nd.zeros(1, ctx).context, dict(fixed)
        constants = {tensor.name for tensor in model.graph.initializer} | set(fixed)
        inputs = [value for value in model.graph.input if value.name not in constants]
        self._dtypes = {value.name: declared_dtype(value) for value in inputs}
        self._outputs = [value.name for value in model.graph.output]
        self._stages: dict[Any, _Stage] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_stages": {}, "_lock": None}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = forks.lock()

    def _clear_cached_op(self) -> None:
        super()._clear_cached_op()
        self._stages = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._dtypes)} -> {', '.join(self._outputs)})"

    def _compose(self, args: Sequence[object]) -> Any:
        raise ONNXError(
            "the graph of this ONNX file depends on the shapes of its inputs, and cannot be composed with symbols: "
            "import it with input_shapes={name: shape}"
        )

    def _compute(self, context: Any, args: tuple[Any, ...]) -> Any:
        if len(args) != len(self._dtypes):
            raise ValueError(f"{len(args)} inputs were given, expected {len(self._dtypes)}: {', '.join(self._dtypes)}")
        values = {
            name: array if array.dtype == dtype else array.astype(dtype)
            for (name, dtype), array in zip(self._dtypes.items(), args, strict=True)
        }
        key = tuple([array.shape for array in args])
        stage: _Stage | None = self._stages.get(key) or self._first_stage(key)
        while stage is not None:
            stage = stage.run(values)
        outputs = [values[name] for name in self._outputs]
        return outputs[0] if len(outputs) == 1 else outputs

    def _first_stage(self, key: tuple[tuple[int, ...], ...]) -> _Stage:
        with self._lock:
            if key not in self._stages:
                make_room(self._stages, _MOST_SHAPES)
                shapes = dict(zip(self._dtypes, key, strict=True))
                graph = StageImport(self._model, shapes, self._shared, self._fixed)
                graph.check_operators()
                self._stages[key] = _Stage(graph, self)
            return self._stages[key]

    def create_part(self, symbol: sym.Symbol, inputs: Sequence[str], arrays: Mapping[str, Any]) -> SymbolBlock:
        """Create a block that computes a part of the graph with the shared parameters."""
        part = SymbolBlock(symbol, [sym.var(name) for name in inputs], params=self._params)
        for name, parameter in part.collect_params().items():
            if name not in self._params:
                array = arrays[name]
                parameter.cast(array.dtype)
                parameter._load_init(nd.array(array, dtype=array.dtype), self.context)
                self._params.update({name: parameter})
                self._reg_params[name] = parameter
        if self._active:
            flags = self._flags
            part.hybridize(True, static_alloc=flags["static_alloc"], static_shape=flags["static_shape"])
        return part


def as_block(
    path: File, ctx: Any, input_shapes: InputShapes | None = None, constants: Mapping[str, object] | None = None
) -> HybridBlock:
    """Import a file as a Gluon block with its parameters on ``ctx``.

    Raises:
        ONNXError: nodes cannot be converted.
        ValueError: ``input_shapes`` or ``constants`` do not fit the inputs.
    """
    try:
        symbol, arguments, auxiliary, names = read_model(path, input_shapes, constants)
    except ONNXError:
        if input_shapes:
            raise
        return _dynamic(path, ctx, constants or {})
    block = SymbolBlock(symbol, [sym.var(name) for name in names])
    for name, parameter in block.collect_params().items():
        array = {**arguments, **auxiliary}[name]
        parameter.cast(array.dtype)
        parameter._load_init(array, ctx)
    return block


def _dynamic(path: File, ctx: object, constants: Mapping[str, object]) -> DynamicBlock:
    """Import a file whose shapes are not fixed, after a trial with arbitrary lengths.

    Raises:
        ONNXError: nodes cannot be converted, whatever the lengths.
    """
    model = load(path)
    graph = StageImport(model, trial_shapes(model, constants), SharedConstants(model), constants)
    graph.check_operators()
    try:
        graph.advance()
    except ONNXError as error:
        if not isinstance(error.__cause__, ShapeError):  # the model may accept other lengths
            raise
    return DynamicBlock(model, ctx, constants)
