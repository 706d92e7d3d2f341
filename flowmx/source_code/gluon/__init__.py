"""Gluon: the table of operators, and the style of its blocks."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.registry.operators import Array
from flowmx.source_code.description import Layer, State
from flowmx.source_code.gluon import calls, layers
from flowmx.source_code.reading import Table

__all__ = ["STYLE", "TABLE", "GluonStyle"]


def _parameter(name: str, array: Array, is_trained: bool) -> Layer:
    """Return the parameter that holds an array."""
    kind = "Parameter" if is_trained and array.dtype.kind == "f" else "Constant"
    arguments = {"shape": tuple(array.shape), "dtype": array.dtype.name}
    return Layer(kind, arguments, state={"": State((name,))}, title="weight")


TABLE = Table("Gluon", layers.ROWS, calls.call, _parameter)
"""Gluon's operators; those without a row are called by their names."""


class GluonStyle:
    """The style of Gluon's blocks."""

    base = "HybridBlock"
    sequence = "nn.HybridSequential"
    loop = "nn.HybridSequential"

    def initialize(self, parameters: Sequence[str]) -> list[str]:
        """Return the first lines of the constructor."""
        return [f"def __init__({', '.join(('self', *parameters, '**kwargs'))}):", "super().__init__(**kwargs)"]

    def forward(self, inputs: Sequence[str], parameters: Sequence[str]) -> str:
        """Return the first line of the forward method."""
        return f"def hybrid_forward({', '.join(('self', 'F', *inputs, *parameters))}):"

    def layer(self, name: str, layer: Layer, arguments: str) -> list[str]:
        """Return the statements that create a layer."""
        if "" not in layer.state:
            return [f"self.{name} = {layer.kind}({arguments})"]
        shape, dtype = layer.arguments["shape"], layer.arguments["dtype"]
        options = "" if dtype == "float32" else f', dtype="{dtype}"'
        options += "" if layer.kind == "Parameter" else ', grad_req="null"'
        return [f'self.{name} = self.params.get("{name}", shape={shape}{options})']

    def uses(self, name: str, layer: Layer) -> str:
        """Return the expression for a layer in the forward method."""
        return name if "" in layer.state else f"self.{name}"

    def create(self, constructor: str, name: str, items: Sequence[str]) -> list[str]:
        """Return the statements that create a sequence of blocks."""
        line = f"self.{name}.add({', '.join(items)})"
        added = [line] if len(line) < 100 else [f"self.{name}.add(", *(f"    {item}," for item in items), ")"]
        return [f"self.{name} = {constructor}()", *added]


STYLE = GluonStyle()
