"""PyTorch: the table of operators, and the style of its classes."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.registry.operators import Array
from flowmx.source_code.description import Layer, State, Unsupported
from flowmx.source_code.reading import Code, Site, Table
from flowmx.source_code.torch import arithmetic, detection, layers, recurrent, shapes

__all__ = ["STYLE", "TABLE", "TorchStyle"]


def _parameter(name: str, array: Array, is_trained: bool) -> Layer:
    """Return the layer that holds an array: a parameter, or a buffer if it is not trained."""
    is_trained = is_trained and array.dtype.kind == "f"
    kind = "nn.Parameter" if is_trained else "buffer"
    return Layer(
        kind, {"shape": tuple(array.shape), "dtype": array.dtype.name}, state={"": State((name,))}, title="weight"
    )


def _refuse(n: Site) -> Code:
    raise Unsupported("the operator has no code")


_ROWS = {**arithmetic.ROWS, **shapes.ROWS, **layers.ROWS, **recurrent.ROWS, **detection.ROWS}
TABLE = Table("PyTorch", _ROWS, _refuse, _parameter)
"""PyTorch's operators."""


class TorchStyle:
    """The style of PyTorch's modules."""

    base = "nn.Module"
    sequence = "nn.Sequential"
    loop = "nn.ModuleList"

    def initialize(self, parameters: Sequence[str]) -> list[str]:
        """Return the first lines of the constructor."""
        return [f"def __init__({', '.join(('self', *parameters))}):", "super().__init__()"]

    def forward(self, inputs: Sequence[str], parameters: Sequence[str]) -> str:
        """Return the first line of the forward method."""
        return f"def forward({', '.join(('self', *inputs))}):"

    def layer(self, name: str, layer: Layer, arguments: str) -> list[str]:
        """Return the statements that create a layer."""
        if "" in layer.state:
            shape, dtype = layer.arguments["shape"], layer.arguments["dtype"]
            kind = "" if dtype == "float32" else f", dtype=torch.{dtype}"
            sizes = ", ".join(map(str, shape)) if isinstance(shape, tuple) and shape else f"{shape}"
            if layer.kind == "buffer":
                return [f'self.register_buffer("{name}", torch.zeros({sizes}{kind}))']
            return [f"self.{name} = nn.Parameter(torch.zeros({sizes}{kind}))"]
        constructor = f"{layer.kind}({arguments})"
        return [f"self.{name} = {f'{layer.wrapper}({constructor})' if layer.wrapper else constructor}"]

    def uses(self, name: str, layer: Layer) -> str:
        """Return the expression for a layer in the forward method."""
        return f"self.{name}"

    def create(self, constructor: str, name: str, items: Sequence[str]) -> list[str]:
        """Return the statements that create a sequence of blocks."""
        if constructor == self.loop:
            whole = items[0][1:] if len(items) == 1 and items[0].startswith("*") else f"[{', '.join(items)}]"
            line = f"self.{name} = {constructor}({whole})"
            return [line] if len(line) < 100 else [
                f"self.{name} = {constructor}([", *(f"    {item}," for item in items), "])"
            ]  # fmt: skip
        line = f"self.{name} = {constructor}({', '.join(items)})"
        return [line] if len(line) < 100 else [
            f"self.{name} = {constructor}(", *(f"    {item}," for item in items), ")"
        ]  # fmt: skip


STYLE = TorchStyle()
