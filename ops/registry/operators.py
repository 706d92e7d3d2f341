"""The operator registry: one class per operator, with everything about it in one place.

An operator is a subclass of :class:`Operator` with the decorator :func:`operator`. Its class attributes
describe inputs and outputs. Its fields are its parameters (typed, see ``parameters.py``). An *instance* is the
operator with its parameters bound::

    @operator("FullyConnected")
    class FullyConnected(Operator):
        '''Apply a linear transformation: Y = X W^T + b. ...'''

        arguments = ("data", "weight", "bias")
        num_hidden: int = required("Number of hidden nodes of the output.", low=1)
        no_bias: bool = False
        flatten: bool = True

        def inputs(self): ...                         # names of this instance's inputs
        def infer_shape(self, shapes): ...            # complete partly known shapes
        def forward(self, run, inputs, outputs): ...  # compute into the output arrays
        def gradient(self, F, inputs, outputs, heads): ...   # in terms of registered operators

Instances are interned (equal parameters, same object) and immutable. They cache the result of inference for each
combination of input shapes and dtypes. Attributes that cache values derived from the parameters have names with a
leading underscore. ``mx.nd.*`` and ``mx.sym.*`` are derived from the registry.

The forward is written once against the array namespace ``run.xp`` and writes into ``outputs``. A backend registers a
faster one for its device type (``kernels.py``); the operator's forward remains the reference implementation.

The tape calls the gradient with arrays, the symbolic pass with symbols; ``F`` has every operator by name. The gradient
method returns one gradient (or None) for each input except auxiliary states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from flowmx.bounded_tables import make_room
from flowmx.errors import ParameterError, ShapeError, TypeInferenceError
from flowmx.foreign_names import MODULES, advice
from flowmx.late_binding import late
from flowmx.ops.random.host_draws import generator_for
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.parameters import MISSING, Parameter, Shape, declare, option, required
from flowmx.ops.registry.spec import Spec, size
from flowmx.ops.registry.tensors import Array, ArrayNamespace, Functions, Gradients, Tensor, Tensors, UfuncCall
from flowmx.ops.registry.traits import BatchParts, BatchWise, Traits
from flowmx.suggestions import EQUIVALENTS, did_you_mean

if TYPE_CHECKING:
    from flowmx.engine import Operation

__all__ = [
    "FLOAT32",
    "Array",
    "DType",
    "Operator",
    "Run",
    "Shape",
    "ShapeError",
    "ShapeOrNone",
    "describe",
    "family",
    "lookup",
    "operator",
    "option",
    "registered_operators",
    "required",
    "same_shape",
]  # fmt: skip

Form = tuple[Shape, DType]
"""The shape and dtype of an array."""
Bound = Callable[["Run", Sequence[Array], Sequence[Array]], None]
"""A forward specialized for an operator and for the shapes and dtypes of its arrays."""
ShapeOrNone = Shape | None
"""A partly known shape: None if unknown, -1 for an unknown dimension."""

_INTERN_LIMIT = 4096
_OTHER_PARAMETERS = {"axis": "dim", "dim": "axis", "eps": "epsilon", "keepdim": "keepdims"}
"""Parameters as other operators and libraries call them."""
_FLOATS = (float, np.floating)
SPEC_LIMIT = 2048
"""Combinations of input shapes and dtypes for which an operator caches its inference."""
LIGHT_BYTES = 1 << 17
"""An operation that reads and writes at most this many bytes runs when it is pushed."""
_LIGHT_FLOPS = 1 << 16
_LIGHT_PRODUCT_BYTES = 1 << 18
_LIGHT_PRODUCT_FLOPS = 1 << 21
"""The same limits for products: about 50 µs of work; handing an operation to a worker costs 30 µs."""
_SHORT_WEIGHT = 1 << 21
"""An operation that moves at most about this many bytes is short: about 300 µs."""
_MIN_REUSE = 1
"""Floating-point operations per byte from which a library, not a compiled loop, computes a product."""
_FLOPS_PER_BYTE = 16
"""Floating-point operations that take about as long as moving one byte."""

_by_name: dict[str, type[Operator]] = {}


class Run:
    """The context of a forward computation.

    Attributes:
        xp: the array namespace (numpy, or cupy).
        train: True in training mode (Dropout drops, BatchNorm uses the batch's statistics).
        random: the device's random generator (NumPy's ``Generator``), for operators with ``uses_random``.
        device: the device of the computation.
        memo: a cache that the forwards of a bound graph share across its runs; None elsewhere.
    """

    __slots__ = ("device", "memo", "train", "xp")

    def __init__(self, device: Any, train: bool, memo: dict[object, Any] | None = None) -> None:
        self.device = device
        self.xp = device.xp
        self.train = train
        self.memo = memo

    @property
    def random(self) -> np.random.Generator:
        """The device's generator, only for operators with ``uses_random``."""
        return generator_for(self.device.generator.bits, self.xp)


class Operator:
    """Base of all operators; see the module's docstring."""

    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    arguments: ClassVar[tuple[str, ...]] = ("data",)
    """Names of the inputs, without auxiliary states."""
    auxiliary: ClassVar[tuple[str, ...]] = ()
    """Names of the auxiliary states: further inputs that the forward updates in training mode."""
    output_names: ClassVar[tuple[str, ...]] = ("output",)
    """Names of the outputs."""
    outputs_visible: ClassVar[int] = 0
    """The number of outputs that the user sees; 0: all."""
    json_outputs: ClassVar[int] = 0
    """The number of outputs in MXNet's JSON; 0: all."""
    input_docs: ClassVar[dict[str, str]] = {}
    """Shape, dtype and meaning of each input, added to those of the bases; optional for elementwise operators."""
    output_doc: ClassVar[str] = ""
    """Shapes and dtypes of the outputs; optional where they equal those of the inputs."""
    variadic: ClassVar[str] = ""
    """For operators with any number of inputs: the parameter that counts them (``num_args``)."""
    inputs_counted: ClassVar[tuple[int, int]] = (1, 0)
    """For a variadic operator: the inputs per counted group, and the number of inputs after the groups."""
    updates: ClassVar[tuple[int, ...]] = ()
    """Positions of inputs that the forward also writes (an optimizer's states)."""
    onnx: ClassVar[str] = ""
    """The equivalent ONNX operator, which takes the same leading inputs. :mod:`flowmx.contrib.onnx` exports and imports
    models with it, and has converters for operators that need more than a name."""
    onnx_attributes: ClassVar[dict[str, str]] = {}
    """For :attr:`onnx`: ONNX attribute names and the parameters that they correspond to."""
    traits: Traits = Traits()
    """Properties that passes, plans and the tape rely on; set by keywords of the class."""
    subgraphs: tuple[Any, ...] = ()
    """The bodies of loops and branches (:class:`flowmx.graph.subgraph.Body`)."""
    parameters: ClassVar[dict[str, Parameter]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    _interned: ClassVar[dict[object, Operator]]
    _specs: dict[object, Spec]
    _own_traits: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **traits: Any) -> None:
        """Set the traits: those of the bases, overridden by the keywords of the class.

        Raises:
            TypeError: there is no such trait.
        """
        super().__init_subclass__()
        cls._own_traits = traits
        keywords: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            keywords.update(base.__dict__.get("_own_traits", {}))
            if "_interned" in base.__dict__:  # an operator: its subclasses may treat the batch differently
                keywords.pop("batch_wise", None)
        cls.traits = Traits(**keywords)

    def with_traits(self, **traits: Any) -> None:
        """Override traits for this instance; called while it is constructed."""
        object.__setattr__(self, "traits", replace(self.traits, **traits))

    # -- construction ----------------------------------------------------------------------------------

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(self._defaults)
        self.__dict__.update(values)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check that the parameters are consistent.

        Raises:
            ParameterError: parameters contradict each other.
        """

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.name}: operators are immutable; create another one with create()")

    def is_defined_by_parameters(self) -> bool:
        """Return whether class and parameters fully define this operator, so that an equal one can be recreated."""
        cls = type(self)
        return (
            cls.__init__ is Operator.__init__
            and cls.create.__func__ is Operator.create.__func__  # type: ignore[attr-defined]
            and not self.subgraphs
            and all(_is_parameter(cls, name) for name in list(self.__dict__))  # other threads may add to it
        )

    @classmethod
    def create(cls, /, **values: Any) -> Operator:
        """Return the operator with these parameters (Python values, or the strings of MXNet's JSON).

        Raises:
            ParameterError: a parameter is unknown, missing or invalid.
        """
        key: Any = tuple(values.items())
        try:
            # 0 == 0.0 == -0.0 as a key, but not as a parameter.
            if 0 in values.values() and _has_zero(values):
                key = (key, tuple([str(item) for item in values.values() if isinstance(item, _FLOATS)]))
            existing = cls._interned.get(key)
        except (TypeError, ValueError):  # unhashable values; ValueError: an array among them
            key, existing = None, None
        if existing is not None:
            return existing
        instance = cls(**cls._convert(values))
        object.__setattr__(instance, "_specs", {})
        if key is not None:
            make_room(cls._interned, _INTERN_LIMIT)
            cls._interned[key] = instance
        return instance

    def varied(self, changes: Mapping[str, object]) -> Operator:
        """Return the operator with other values of some parameters.

        It is not interned: use it for values that change at each call, such as the learning rate of an update.

        Raises:
            ParameterError: as in :meth:`create`.
        """
        cls, values = type(self), self.__dict__
        instance = cls(**{name: values[name] for name in cls.parameters if name in values} | self._checked(changes))
        object.__setattr__(instance, "_specs", {})
        return instance

    @classmethod
    def _convert(cls, arguments: Mapping[str, object]) -> dict[str, Any]:
        values = cls._checked(arguments)
        missing = [name for name, parameter in cls.parameters.items() if parameter.required and name not in values]
        if missing:
            description = ", ".join(f"{name} ({cls.parameters[name].describe()})" for name in missing)
            raise ParameterError(f"{cls.name}: missing parameter {description}")
        return values

    @classmethod
    def _checked(cls, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return arguments, of which some may be missing, in the types of the parameters."""
        values = {}
        for name, value in arguments.items():
            parameter = cls.parameters.get(name)
            if parameter is None:
                names = ", ".join(cls.parameters) or "none"
                hint = did_you_mean(name, cls.parameters, _OTHER_PARAMETERS)
                raise ParameterError(f"{cls.name}: there is no parameter {name!r}, only {names}{hint}")
            try:
                values[name] = parameter.convert(value, cls.name)
            except ParameterError as error:
                if name != "shape" and "shape" in cls.parameters and isinstance(value, (tuple, list)):
                    raise ParameterError(f"{error}; if it is the shape, write shape={value!r}") from None
                raise
        return values

    @classmethod
    def takes(cls, name: str) -> bool:
        """Return whether the operator has a parameter of this name; always True for open-ended operators."""
        return cls.traits.open_ended or name in cls.parameters

    def attributes(self) -> dict[str, str]:
        """Return the parameters that differ from their defaults, as strings for MXNet's JSON."""
        table = {}
        for name, parameter in self.parameters.items():
            value = getattr(self, name)
            if parameter.default is MISSING or value != parameter.default:
                table[name] = parameter.render(value)
        return table

    # -- inputs and outputs ----------------------------------------------------------------------------

    def inputs(self) -> tuple[str, ...]:
        """Return the names of this instance's inputs, without auxiliary states."""
        if self.variadic:
            group_size, extra = self.inputs_counted
            return tuple(f"arg{index}" for index in range(getattr(self, self.variadic) * group_size + extra))
        return self.arguments

    def shape_only_inputs(self) -> tuple[int, ...]:
        """Return the positions of inputs whose shape and dtype alone the forward uses (trait ``shapes_only``)."""
        names = self.traits.shapes_only
        return tuple([position for position, name in enumerate(self.inputs()) if name in names]) if names else ()

    def updated_states(self) -> tuple[int, ...]:
        """Return the positions of states that the forward updates in training and this gradient does not read."""
        return ()

    def without_shape_inputs(self, shape: Shape, dtype: DType) -> Operator | None:
        """Return an equivalent operator without its :meth:`shape_only_inputs`, for outputs of this shape and dtype."""
        return None

    def multiplier(self, shape: Shape) -> float | None:
        """Return the constant by which the operator multiplies each element of an input of this shape, or None."""
        return None

    def outputs(self) -> tuple[str, ...]:
        """Return the names of this instance's outputs."""
        return self.output_names

    def json_output_count(self) -> int:
        """Return the number of outputs in MXNet's JSON; it differs if MXNet has other hidden outputs."""
        return self.json_outputs or len(self.outputs())

    def visible_outputs(self) -> int:
        """Return the number of outputs that the user sees; the others serve the gradient."""
        return self.outputs_visible or len(self.outputs())

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        """Return the inputs and outputs that can be split along the batch in prediction, for these shapes.

        If these inputs are split along axis 0 into equal parts, the same forward computes each part of these outputs
        from its part of the inputs; outputs in ``sums`` are added up over the parts. Returns None if no split is known.
        """
        kind = self.traits.batch_wise
        if kind in (BatchWise.UNKNOWN, BatchWise.OWN) or not all(outputs) or self.mixes_batch(inputs):
            return None
        if kind is BatchWise.SUM:
            is_same_batch = all(shape and shape[0] == inputs[0][0] for shape in inputs)
            return BatchParts(tuple(range(len(inputs))), (), tuple(range(len(outputs)))) if is_same_batch else None
        batch = outputs[0][0]
        if any(shape[0] != batch for shape in outputs):
            return None
        batched = [position for position, shape in enumerate(inputs) if shape[:1] == (batch,)]
        if kind is BatchWise.FIRST:
            return BatchParts((0,), tuple(range(len(outputs)))) if 0 in batched else None
        if kind is BatchWise.EACH:
            return BatchParts(tuple(batched), tuple(range(len(outputs)))) if 0 < len(batched) == len(inputs) else None
        batched = [position for position in batched if len(inputs[position]) == len(outputs[0])]
        return BatchParts(tuple(batched), tuple(range(len(outputs)))) if batched else None

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        """Return whether the parameters make the operator combine samples (for all :class:`BatchWise` except OWN)."""
        return False

    def writes_inputs(self) -> bool:
        """Return whether the forward writes inputs too, so that it must run even if its outputs are empty."""
        return bool(self.updates or self.auxiliary)

    def updated_inputs(self, train: bool) -> tuple[int, ...]:
        """Return the positions of the inputs that the forward writes in this mode."""
        count = len(self.inputs())
        return (*self.updates, *(range(count, count + len(self.auxiliary)) if train else ()))

    def fixed_inputs(self) -> tuple[int, ...]:
        """Return the positions of inputs that are treated as 1, regardless of their content.

        As in MXNet, each imperative call and graphs in training set these inputs to 1.
        """
        return ()

    def auxiliary_positions(self) -> tuple[int, ...]:
        """Return the positions of auxiliary states, which files and modules store apart from parameters."""
        count = len(self.inputs())
        return tuple(range(count, count + len(self.auxiliary)))

    def draws(self, train: bool) -> bool:
        """Return whether the forward draws random numbers in this mode (``uses_random``: in any mode)."""
        return self.traits.uses_random

    def skip_draws(self, run: Run, outputs: Sequence[Shape]) -> None:
        """Draw and discard the random numbers of a forward with outputs of these shapes."""
        raise NotImplementedError(f"{self.name} draws different numbers for a part of the batch")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        """Infer the shapes of inputs and outputs from partly known input shapes.

        Args:
            shapes: one per input, auxiliary states last; None or -1 where unknown.

        Returns:
            the input shapes and the output shapes; None or -1 where still unknown.

        Raises:
            ShapeError: the shapes contradict each other.
        """
        shape = same_shape(self, shapes)
        return [shape] * len(shapes), [shape] * len(self.outputs())

    def compute_eagerly(self, F: Functions, inputs: Tensors) -> Tensor:
        """Compute a ``dynamic`` operator with functions of ``mx.nd``; this may wait for inputs."""
        raise NotImplementedError

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        """Infer input shapes from partly known output shapes; by default, return the input shapes unchanged.

        Needed by operators between a parameter and the operator that determines its shape.
        """
        return shapes

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        """Infer the dtypes of inputs and outputs, like :meth:`infer_shape`; by default, all are the same.

        Raises:
            TypeInferenceError: the dtypes contradict each other.
        """
        first = next((dtype for dtype in dtypes if dtype is not None), None)
        for position, dtype in enumerate(dtypes):
            if dtype is not None and dtype != first and first is not None:
                names = (*self.inputs(), *self.auxiliary)
                raise TypeInferenceError(
                    f"{self.name}: input {names[position]} has dtype {name_of(dtype)}, expected {name_of(first)} "
                    "like the first input; cast one of them with astype"
                )
        return [first] * len(dtypes), [first] * len(self.outputs())

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        """Return the floating-point operations and elements moved, for scheduling, profiles and simulation."""
        elements = sum(map(size, inputs)) + sum(map(size, outputs))
        return sum(map(size, outputs)), elements

    # -- computation -----------------------------------------------------------------------------------

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute into the output arrays."""
        raise NotImplementedError(f"{self.name} has no forward computation")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        """Return the gradient of each input, in terms of registered operators.

        Args:
            F: every operator as a function (``F.dot(a, b)``), of arrays or of symbols.
            inputs: the operator's inputs, auxiliary states included.
            outputs: all its outputs.
            heads: the gradient of each visible output.
        """
        raise NotImplementedError(f"{self.name} has no gradient")

    def detach(self, work: Operation, inputs: Sequence[Any]) -> None:
        """Prepare the operation that will run a ``detached`` operator on these arrays, before its push."""

    def as_ufunc(self, xp: ArrayNamespace, dtype: DType) -> UfuncCall | None:
        """Return the forward as one call ``ufunc(*inputs, out=out)`` for inputs of this dtype, or None.

        The second value is None, or a 0-d array of the dtype for ``ufunc(input, number, out=out)``.
        """
        return None

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        """Return a forward specialized for arrays of these shapes and dtypes, or None."""
        return None

    # -- inference, cached -----------------------------------------------------------------------------

    def spec(self, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]) -> Spec:
        """Return the output shapes and dtypes for fully known inputs (cached).

        Raises:
            ShapeError, TypeInferenceError: the operator does not accept these inputs.
        """
        key = (shapes, dtypes)
        cached = self._specs.get(key)
        if cached is not None:
            return cached
        names = (*self.inputs(), *self.auxiliary)
        if len(shapes) != len(names):
            raise TypeError(f"{self.name}: {len(shapes)} inputs were given, expected {len(names)}: {', '.join(names)}")
        try:
            completed, out_shapes = self.infer_shape(list(shapes))
        except ShapeError as error:
            if str(error).startswith(self.name):
                raise
            raise ShapeError(f"{self.name}: {error}") from None  # raised by an inner operator
        for name, actual, expected in zip(names, shapes, completed, strict=True):
            if expected is not None and actual != expected:
                raise ShapeError(f"{self.name}: input {name} has shape {actual}, expected {expected}")
        out_dtypes = self.infer_type(list(dtypes))[1]
        final_shapes: list[Shape] = []
        for shape in out_shapes:
            if shape is None or -1 in shape:
                raise ShapeError(f"{self.name}: the output's shape cannot be inferred from the input shapes {shapes}")
            final_shapes.append(shape)
        final_dtypes = [FLOAT32 if dtype is None else dtype for dtype in out_dtypes]
        spec = Spec(final_shapes, final_dtypes, light=False)
        # For an operator without inputs, a dimension of 0 means that its readers determine it.
        spec.follows = None not in out_dtypes and (bool(names) or all(map(all, final_shapes)))
        nbytes = self.bytes_read([size(s) * d.itemsize for s, d in zip(shapes, dtypes, strict=True)], spec.nbytes)
        traits = self.traits
        spec.gradient = None if traits.no_gradient else self.gradient
        spec.is_plain = not (traits.uses_random or traits.detached or traits.sparse or self.auxiliary or self.updates)
        spec.light = self._is_light(shapes, final_shapes, nbytes + spec.nbytes)
        spec.weight = nbytes + spec.nbytes
        if self.traits.heavy and type(self).cost is not Operator.cost:
            spec.weight += self.cost(shapes, final_shapes)[0] // _FLOPS_PER_BYTE
        spec.short = spec.light or (
            spec.weight <= _SHORT_WEIGHT and not (traits.heavy and type(self).cost is Operator.cost)
        )
        make_room(self._specs, SPEC_LIMIT)
        self._specs[key] = spec
        return spec

    def bytes_read(self, inputs: Sequence[int], output: int) -> int:
        """Return the approximate bytes that the forward reads, given the input sizes and the total output size."""
        return sum(inputs)

    def _is_light(self, inputs: Sequence[Shape], outputs: Sequence[Shape], nbytes: int) -> bool:
        """Return whether work on these shapes takes only microseconds, by the bytes moved and the operator's cost."""
        if not self.traits.heavy:
            return nbytes <= LIGHT_BYTES
        if type(self).cost is Operator.cost:
            return False
        flops = self.cost(inputs, outputs)[0]
        if self.traits.multiplies and flops >= _MIN_REUSE * nbytes:
            return nbytes <= _LIGHT_PRODUCT_BYTES and flops <= _LIGHT_PRODUCT_FLOPS
        return nbytes <= LIGHT_BYTES and flops <= _LIGHT_FLOPS

    def __repr__(self) -> str:
        parameters = ", ".join(f"{name}={value}" for name, value in self.attributes().items())
        return f"{self.name}({parameters})"


def _is_parameter(cls: type[Operator], name: str) -> bool:
    """Return whether an attribute of an operator is a parameter or derived from parameters."""
    is_derived = name.startswith("_") or isinstance(getattr(cls, name, None), cached_property)
    return is_derived or name in cls.parameters or name == "traits"


def _has_zero(values: Mapping[str, object]) -> bool:
    """Return whether a parameter is a floating-point 0, of either sign."""
    return any(isinstance(value, _FLOATS) and value == 0 for value in values.values())


C = TypeVar("C", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(required, option))
def family(cls: C) -> C:
    """Declare the parameters of a class: a decorator for the base of operators that share parameters."""
    kind: Any = cls
    kind.parameters = declare(cls)
    kind._defaults = {p.name: p.default for p in kind.parameters.values() if not p.required}
    return cls


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(required, option))
def operator(name: str, *aliases: str) -> Callable[[C], C]:
    """Register an operator class under its MXNet name and aliases.

    Raises:
        ValueError: a name is already registered.
        TypeError: a required trait is missing.
    """

    def register(cls: C) -> C:
        kind: Any = family(cls)
        kind.name, kind.aliases, kind._interned = name, aliases, {}
        if kind.traits.heavy and not kind.traits.hidden and kind.traits.precision is None:
            raise TypeError(f"operator {name!r} is heavy and public, so it must set precision=Precision... as well")
        for alias in (name, *aliases):
            if alias in _by_name:
                raise ValueError(f"operator {alias!r} is already registered by {_by_name[alias].__qualname__}")
            _by_name[alias] = kind
        return kind  # type: ignore[no-any-return]

    return register


def describe(**inputs: str) -> dict[str, str]:
    """Return the documentation of inputs by name (shape, dtype and meaning), for ``input_docs``."""
    return inputs


def find(name: str) -> type[Operator] | None:
    """Return the operator of a name or alias, or None."""
    operator = _by_name.get(name)
    if operator is None and name.startswith("_np"):  # operators of mx.np are registered on first use
        operator = late("numpy.mxnet_names").find(name)
    return operator


def lookup(name: str) -> type[Operator]:
    """Return the operator of a name or alias.

    Raises:
        AttributeError: there is no such operator; the message suggests the nearest name.
    """
    operator = find(name)
    if operator is None:
        public = [key for key in _by_name if not key.startswith("_")]
        hint = advice(MODULES["flowmx.ndarray"], name) or did_you_mean(name, public, EQUIVALENTS)
        raise AttributeError(f"there is no operator {name[:80]!r}{hint}")
    return operator


def registered_operators() -> dict[str, type[Operator]]:
    """Return every operator by every name."""
    return dict(_by_name)


def same_shape(op: Operator, shapes: Sequence[ShapeOrNone]) -> ShapeOrNone:
    """Return the common, partly known shape of an elementwise operator's inputs.

    Raises:
        ShapeError: two shapes differ.
    """
    merged: ShapeOrNone = None
    for position, shape in enumerate(shapes):
        common = merge(merged, shape)
        if common is False:
            names = (*op.inputs(), *op.auxiliary)
            raise ShapeError(f"{op.name}: input {names[position]} has shape {shape}, expected {merged}")
        merged = common
    return merged


def merge(left: ShapeOrNone, right: ShapeOrNone) -> Any:
    """Merge two partly known shapes (None: unknown); return False if they contradict each other."""
    if left is None or right is None:
        return left if right is None else right
    if left == right:
        return left
    if len(left) != len(right):
        return False
    shape = []
    for a, b in zip(left, right, strict=True):
        if a != b and -1 not in (a, b):
            return False
        shape.append(max(a, b))
    return tuple(shape)
