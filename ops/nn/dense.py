"""FullyConnected followed by an activation, as one operator, which imperative layers call on small arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from flowmx.ops.nn.activation import Activation
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.registry.operators import Array, Bound, Form, Operator, Run, operator, required
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors


@operator("_dense")
class Dense(FullyConnected, hidden=True, quantized=None):
    """FullyConnected and an activation, computed in place."""

    act_type: Literal["relu", "sigmoid", "softrelu", "softsign", "tanh"] = required("The activation.")

    def __post_init__(self) -> None:
        product = FullyConnected.create(num_hidden=self.num_hidden, no_bias=self.no_bias, flatten=self.flatten)
        object.__setattr__(self, "_parts", (product, Activation.create(act_type=self.act_type)))

    @property
    def parts(self) -> tuple[Operator, Operator]:
        """The product and the activation."""
        parts: tuple[Operator, Operator] = vars(self)["_parts"]
        return parts

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        product, activation = (
            part.bound(xp, forms, out_forms) or part.forward
            for part, forms in zip(self.parts, (in_forms, out_forms), strict=True)
        )

        def forward(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            product(run, inputs, outputs)
            activation(run, outputs, outputs)

        return forward

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        product, activation = self.parts
        product.forward(run, inputs, outputs)
        activation.forward(run, outputs, outputs)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        product, activation = self.parts
        return [*product.gradient(F, inputs, (), cast("Tensors", activation.gradient(F, (), outputs, heads)))]
