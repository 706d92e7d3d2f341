"""Updates of many weights by one operator: SGD with rates as numbers or arrays, and the rates of LARS.

The inputs are, for each weight in turn: the weight, its gradient, its states, and in mixed precision its float32
copy. The outputs are the new weights (pass the weights as ``out=`` to update them in place); the states are always
updated in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.optimizers.updates import RULES, Rule, WeightUpdate, update_many
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    ShapeOrNone,
    describe,
    merge,
    operator,
    option,
    required,
)

Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]

CLIP = option(-1.0, "Clip the gradient to ± this value if above 0.")
RESCALE = option(1.0, "The gradient's factor.")


class Group(Operator):
    """Base of updates of many weights; a subclass defines the inputs and the update of one weight.

    ``each`` names the parameters that have one number per weight.
    """

    arguments = ()
    states: ClassVar[tuple[str, ...]] = ()
    mixed: ClassVar[bool] = False
    extra_inputs: ClassVar[int] = 0
    """The number of inputs after the weights' inputs."""
    extra_inputs_doc: ClassVar[str] = ""
    """Documentation of these inputs, appended to that of the weights' inputs."""
    output_doc = "A list of the new weights (a single one without a list): the shape and dtype of each weight"
    each: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        names = ("weight", "grad", *cls.states, *(["weight32"] if cls.mixed else []))
        cls.inputs_counted = (len(names), cls.extra_inputs)
        if cls.variadic:
            cls.input_docs = {"data": cls._document(names)}

    @classmethod
    def _document(cls, names: Sequence[str]) -> str:
        dtypes = (
            "weight and grad of the same float dtype, the others float32" if cls.mixed else "of the same float dtype"
        )
        states = "; all after grad are updated in place" if len(names) > 2 else ""
        return f"for each weight in turn {', '.join(names)}: of the same shape, {dtypes}{states}{cls.extra_inputs_doc}"

    def __post_init__(self) -> None:
        count = self.count
        for name in self.each:
            values = getattr(self, name)
            if len(values) != count:
                raise ParameterError(f"{self.name}: parameter {name} has {len(values)} values, expected {count}")
        group_size = self.inputs_counted[0]
        starts = range(0, group_size * count, group_size)
        states = tuple(start + offset for start in starts for offset in range(2, group_size))
        object.__setattr__(self, "updates", states)
        self.with_traits(in_place=tuple((start, index) for index, start in enumerate(starts)))

    @property
    def count(self) -> int:
        """The number of weights."""
        number: int = getattr(self, self.variadic)
        return number

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.count))

    def parts(self, items: Sequence[object]) -> tuple[list[list[Any]], list[Any]]:
        """Return the inputs of each weight, and the inputs after them."""
        group_size = self.inputs_counted[0]
        stop = group_size * self.count
        return [list(items[start : start + group_size]) for start in range(0, stop, group_size)], list(items[stop:])

    def last_shapes(self, shapes: list[ShapeOrNone]) -> list[ShapeOrNone]:
        """Complete the shapes of the inputs after the weights' inputs."""
        return shapes

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        groups, last = self.parts(shapes)
        in_shapes: list[ShapeOrNone] = []
        outputs: list[ShapeOrNone] = []
        for number, group in enumerate(groups):
            shape: Any = None
            for input_shape in group:
                merged = merge(shape, input_shape)
                if merged is False:
                    raise ShapeError(
                        f"{self.name}: an input of weight {number} has shape {input_shape}, expected {shape}"
                    )
                shape = merged
            in_shapes += [shape] * len(group)
            outputs.append(shape)
        return [*in_shapes, *self.last_shapes(last)], outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        groups, last = self.parts(dtypes)
        in_dtypes: list[DType | None] = []
        outputs: list[DType | None] = []
        for group in groups:
            weight_dtype = group[0] or group[1]
            state = FLOAT32 if self.mixed else weight_dtype
            in_dtypes += [weight_dtype, weight_dtype, *[state] * (len(group) - 2)]
            outputs.append(weight_dtype)
        return [*in_dtypes, *[FLOAT32] * len(last)], outputs


class _Preloaded(Group):
    """A rule applied to many weights; the last two inputs are their rates."""

    variadic = "num_weights"
    extra_inputs_doc = "; then the learning rates and the weight decays, (num_weights,), float32"
    extra_inputs = 2
    rule: ClassVar[Rule]

    def last_shapes(self, shapes: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return [(self.count,) if shape is None else shape for shape in shapes]

    def rates(self, last: Sequence[Array]) -> list[tuple[float, float]]:
        """Return the learning rate and weight decay of each weight."""
        lrs, wds = ([float(value) for value in array.reshape(-1)] for array in last)
        return list(zip(lrs, wds, strict=True))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        groups, last = self.parts(inputs)
        shared = {name: getattr(self, name) for name in ("rescale_grad", "clip_gradient", *self.rule.parameters)}
        weight_updates = []
        for group, out, (lr, wd) in zip(groups, outputs, self.rates(last), strict=True):
            p = SimpleNamespace(rule=self.rule, lr=lr, wd=wd, **shared)
            weight_updates.append(WeightUpdate(self.rule, p, self.mixed, group, out))
        update_many(run, weight_updates)


class _ByNumbers(_Preloaded):
    """A rule applied to many weights, with the rates as parameters."""

    extra_inputs = 0
    extra_inputs_doc = ""
    each = ("lrs", "wds")
    lrs: tuple[float, ...]
    wds: tuple[float, ...]

    def rates(self, last: Sequence[Array]) -> list[tuple[float, float]]:
        return list(zip(self.lrs, self.wds, strict=True))


def _register(rule: Rule, mixed: bool, preloaded: bool) -> None:
    base: type[Group] = _Preloaded if preloaded else _ByNumbers
    name = f"{'preloaded_' if preloaded else ''}multi_{rule.master if mixed else rule.name}"
    rates: dict[str, object] = {"lrs": required("One learning rate per weight."), "wds": required("Weight decays.")}
    rule_fields: dict[str, object] = {key: option(value) for key, value in rule.parameters.items()}
    fields: dict[str, object] = {
        **({} if preloaded else rates),
        **rule_fields,
        "rescale_grad": RESCALE,
        "clip_gradient": CLIP,
        "num_weights": option(1, "The number of weights.", low=1),
    }
    kinds = {key: tuple[float, ...] if key in rates else int if key == "num_weights" else float for key in fields}
    last = "; the last two inputs are the learning rates and the weight decays" if preloaded else ""
    body = {
        "__doc__": f"{rule.doc[:-1]}, for many weights{last}.",
        "__module__": __name__,
        "__annotations__": kinds,
        "rule": rule,
        "mixed": mixed,
        "states": rule.states,
        **fields,
    }
    operator(name)(type(name, (base,), body))


for _rule in RULES:
    if _rule.name in ("sgd_update", "sgd_mom_update"):
        for _mixed in (False, True):
            for _preloaded in (False, True):
                _register(_rule, _mixed, _preloaded)


@operator("multi_lars")
class MultiLARS(Operator, in_place=((0, 0),)):
    """Learning rates of LARS (You et al., 2017): lr · eta · |w|/(|g| + wd · |w| + eps), or lr if a norm is 0.

    The inputs have one element per weight: learning rates, sums of squares of weights and of gradients, weight
    decays.
    """

    arguments = ("lrs", "weights_sum_sq", "grads_sum_sq", "wds")
    input_docs = describe(
        lrs="(weights,), float; learning rates",
        weights_sum_sq="the shape and dtype of lrs; sums of squares of the weights",
        grads_sum_sq="the shape and dtype of lrs; sums of squares of the gradients",
        wds="the shape and dtype of lrs; weight decays",
    )
    eta: float = required("The trust coefficient.")
    eps: float = required("Added to the denominator.")
    rescale_grad: float = RESCALE

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        lrs, weights, grads, wds = inputs
        norm = xp.sqrt(weights)
        denominator = xp.sqrt(grads) * self.rescale_grad + wds * norm + self.eps
        is_nonzero = (norm > 0) & (grads > 0)
        outputs[0][...] = lrs * xp.where(is_nonzero, self.eta * norm / xp.where(is_nonzero, denominator, 1), 1)


@operator("_contrib_group_adagrad_update")
class GroupAdaGrad(Operator, in_place=((0, 0),)):
    """AdaGrad with one rate per row: history += mean(g²) of the row; w -= lr · g/√(history + epsilon).

    Shapes: weight and grad (rows, ...), history (rows, 1).
    """

    arguments = ("weight", "grad", "history")
    input_docs = describe(
        weight="(rows, ...), float",
        grad="the shape and dtype of weight",
        history="(rows, 1, ...), the dtype of weight; a state, updated in place",
    )
    output_doc = "The shape and dtype of weight"
    updates = (2,)
    lr: float = required("Learning rate.")
    rescale_grad: float = RESCALE
    clip_gradient: float = CLIP
    epsilon: float = option(1e-5, "Added to the history under the root.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight, grad, history = shapes
        shape: Any = merge(weight, grad)
        if shape is False:
            raise ShapeError(f"{self.name}: input grad has shape {grad}, expected {weight}")
        if shape is not None:
            history_shape = (shape[0], *[1] * (len(shape) - 1))
            if merge(history, history_shape) is False:
                raise ShapeError(f"{self.name}: input history has shape {history}, expected {history_shape}")
            history = history_shape
        return [shape, shape, history], [shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        weight, grad, history = inputs
        g = grad * weight.dtype.type(self.rescale_grad)
        if self.clip_gradient > 0:
            xp.clip(g, -self.clip_gradient, self.clip_gradient, out=g)
        history += xp.mean(xp.square(g), axis=tuple(range(1, g.ndim)), keepdims=True)
        g *= weight.dtype.type(self.lr)
        g /= xp.sqrt(history + weight.dtype.type(self.epsilon))
        xp.subtract(weight, g, out=outputs[0])
