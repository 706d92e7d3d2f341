"""FullyConnected with an activation behind it, as one operator: what imperative layers call on small arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from flowmx.ops.nn.activation import Activation
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.registry.operators import Array, Bound, Form, Operator, Run, kernel_for, operator, required


@operator("_dense")
class Dense(FullyConnected, hidden=True, quantized=None):
    """An activation of what FullyConnected gives, of which only the result is kept."""

    act_type: Literal["relu", "sigmoid", "softrelu", "softsign", "tanh"] = required("The activation.")

    def __post_init__(self) -> None:
        product = FullyConnected.create(num_hidden=self.num_hidden, no_bias=self.no_bias, flatten=self.flatten)
        object.__setattr__(self, "_parts", (product, Activation.create(act_type=self.act_type)))

    @property
    def parts(self) -> tuple[Operator, Operator]:
        """The product and the activation."""
        found: tuple[Operator, Operator] = self._parts  # type: ignore[attr-defined]
        return found

    def bound(self, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        product, activation = (
            _bound(each, xp, forms, made) for each, forms in zip(self.parts, (given, made), strict=True)
        )

        def forward(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            product(run, inputs, outputs)
            activation(run, outputs, outputs)

        return forward

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        product, activation = self.parts
        product.forward(run, inputs, outputs)
        activation.forward(run, outputs, outputs)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        product, activation = self.parts
        return [*product.gradient(F, inputs, (), activation.gradient(F, (), outputs, heads))]


def _bound(op: Operator, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound:
    """The forward of one of the parts."""
    if getattr(xp, "__name__", "") != "numpy":
        return op.bound(xp, given, made) or op.forward
    bind = getattr(kernel_for("cpu", op.name), "bind", None)
    found: Bound | None = op.bound(xp, given, made) if bind is None else bind(op, given, made)
    return found or op.forward
