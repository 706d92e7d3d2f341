"""The operator registry: one class an operator, everything about it side by side.

An operator is a subclass of :class:`Operator` under the decorator :func:`operator`. Its class attributes
say what it takes and gives, its fields are its parameters (typed, see ``parameters.py``), and an
*instance* is the operator with its parameters bound::

    @operator("FullyConnected")
    class FullyConnected(Operator):
        '''Apply a linear transformation: Y = X W^T + b. ...'''

        arguments = ("data", "weight", "bias")
        num_hidden: int = required("Number of hidden nodes of the output.", low=1)
        no_bias: bool = False
        flatten: bool = True

        def inputs(self): ...                         # the inputs that this instance takes
        def infer_shape(self, shapes): ...            # complete what is known of the shapes
        def forward(self, run, inputs, outputs): ...  # compute into the given outputs
        def gradient(self, F, inputs, outputs, heads): ...   # in terms of registered operators

Instances are interned (equal parameters, same object), never change, and cache what was inferred for each
combination of input shapes and dtypes. What kernels and others keep on an instance, because it follows from its
parameters, has a name that begins with an underscore. ``mx.nd.*`` and ``mx.sym.*`` are derived from the registry.

The forward is written once against the array namespace ``run.xp`` and writes into ``outputs``. A backend
registers a faster one for its device type with :func:`kernel`; the plain one stays as its reference.

The gradient is called with arrays by the tape and with symbols by the symbolic pass; ``F`` offers every
operator by name. It returns one gradient (or None) for each input, auxiliary states left out.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

import numpy as np

from flowmx.errors import ParameterError, ShapeError, TypeInferenceError
from flowmx.ops.random.drawing import drawing
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.parameters import MISSING, Parameter, Shape, declare, option, required
from flowmx.ops.registry.traits import BatchParts, BatchWise, Traits
from flowmx.suggestions import STANDS_FOR, did_you_mean

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
    "described",
    "family",
    "kernel",
    "lookup",
    "operator",
    "option",
    "registered",
    "required",
    "same_shape",
]  # fmt: skip

Array = Any
"""A NumPy or CuPy array."""
Form = tuple[Shape, DType]
"""The shape and dtype of an array."""
Bound = Callable[["Run", Sequence[Array], Sequence[Array]], None]
"""A forward that is bound to an operator and the forms of its arrays."""
ShapeOrNone = Shape | None
"""A shape as far as it is known: None when not at all, -1 for an unknown dimension."""

_INTERN_LIMIT = 4096
_FLOATS = (float, np.floating)
_SPEC_LIMIT = 512
LIGHT_BYTES = 1 << 17
"""Bytes that an operation may touch and still run at its push."""
_LIGHT_FLOPS = 1 << 16
_LIGHT_PRODUCT_BYTES = 1 << 18
_LIGHT_PRODUCT_FLOPS = 1 << 21
"""The same limits of products, which take some 50 µs then: to hand one to a worker costs 30."""
_SHORT_WEIGHT = 1 << 21
"""Bytes to move, about, up to which an operation is short: some 300 µs."""
_LEAST_REUSE = 1
"""Floating-point operations for each byte from which a product is one of matrices: no loop of our own computes it."""
_FLOPS_A_BYTE = 16
"""Floating-point operations that take about as long as a byte that is moved."""
PLANNED = 1 << 10
"""Bytes of workspace from which a bound graph plans for it; for less, kernels see to themselves."""

_by_name: dict[str, type[Operator]] = {}
_kernels: dict[tuple[str, str], Callable[..., None]] = {}


class Run:
    """The context of a forward computation, besides its arrays.

    Attributes:
        xp: the array namespace (numpy, or cupy).
        train: True in training mode (Dropout drops, BatchNorm uses the batch's statistics).
        random: the device's random generator (NumPy's ``Generator``), for operators with ``uses_random``.
        device: the device that it runs on.
        memo: where the forwards of a bound graph keep things from one run to the next; None elsewhere.
    """

    __slots__ = ("device", "memo", "train", "xp")

    def __init__(self, device: Any, train: bool, memo: dict[Any, Any] | None = None) -> None:
        self.device = device
        self.xp = device.xp
        self.train = train
        self.memo = memo

    @property
    def random(self) -> np.random.Generator:
        """The device's generator; only operators with ``uses_random`` may touch it."""
        generator: np.random.Generator = drawing(self.device.generator.bits, self.xp)
        return generator


class Laid(NamedTuple):
    """The layout of an array in memory; strides are counted in elements."""

    shape: Shape
    strides: Shape
    dtype: DType


class TiedForward(Protocol):
    """A forward for one step of a bound graph, which may remember what it made for the arrays of its last run."""

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""

    stale: bool | None
    """None until its caller sets it to True, and does so again with each change in the lists that it is called with."""

    def use(self, memory: Array | None) -> None:
        """Work in this memory from now on (None: in memory of its own)."""


class Compiling(threading.local):
    """Notes that a kernel is being compiled which this thread must not wait for, since it runs an event loop.

    Attributes:
        missed: True once that was so; whoever wants to know sets it to False before.
    """

    missed = False


compiling = Compiling()


class Spec:
    """The result of inference for one combination of input shapes and dtypes of an operator.

    Attributes:
        shapes: those of the outputs.
        dtypes: likewise.
        nbytes: of the outputs.
        light: whether it takes microseconds.
        short: whether it takes so little that to hand it to another thread does not pay.
        gradient: the operator's function, where recording finds it at once; None where no gradient flows.
        weight: about how much there is to do, in bytes moved.
        single: whether there is one output.
        rules: the gradient as it was learned (the tape's).
        is_plain: whether the operator makes its outputs from its inputs, and does nothing else.
        ready: what a call runs, once it was bound (the dispatcher's).
        follows: whether all shapes and dtypes follow from those of the inputs.
    """

    __slots__ = (
        "dtypes",
        "follows",
        "gradient",
        "is_plain",
        "light",
        "nbytes",
        "ready",
        "rules",
        "shapes",
        "short",
        "single",
        "weight",
    )

    def __init__(self, shapes: list[Shape], dtypes: list[DType], light: bool, weight: int = 0) -> None:
        self.shapes = shapes
        self.dtypes = dtypes
        self.nbytes = sum(_size(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
        self.light = self.short = light
        self.weight = weight
        self.single = len(shapes) == 1
        self.gradient: Callable[..., Any] | None = None
        self.rules: dict[Any, Any] = {}
        self.is_plain = False
        self.follows = True
        self.ready: Any = None


class Operator:
    """Base of all operators; see the module's essay."""

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
    outputs_counted: ClassVar[int] = 0
    """The number of outputs in MXNet's JSON; 0: all."""
    input_docs: ClassVar[dict[str, str]] = {}
    """By input, its shape, dtype and meaning, beyond what the bases say; not needed where all have one of each."""
    output_doc: ClassVar[str] = ""
    """Shapes and dtypes of the outputs; not needed where they are those of the inputs."""
    variadic: ClassVar[str] = ""
    """For operators with any number of inputs: the parameter that counts them (``num_args``)."""
    inputs_counted: ClassVar[tuple[int, int]] = (1, 0)
    """For a variadic operator: the number of inputs that count as one, and the number that come after those."""
    updates: ClassVar[tuple[int, ...]] = ()
    """Positions of inputs that the forward writes besides its outputs (an optimizer's states)."""
    onnx: ClassVar[str] = ""
    """The operator of ONNX that computes the same, of as many of the first inputs as it takes. Models are written and
    read with it (:mod:`flowmx.contrib.onnx`); what is more than a name there, or has no name, is converted there."""
    onnx_attributes: ClassVar[dict[str, str]] = {}
    """For :attr:`onnx`: its attributes that are parameters here, by its names."""
    traits: Traits = Traits()
    """Facts that others must know of it; given as keywords of the class."""
    subgraphs: tuple[Any, ...] = ()
    """The bodies of loops and branches (:class:`flowmx.graph.subgraph.Body`)."""
    parameters: ClassVar[dict[str, Parameter]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    _interned: ClassVar[dict[Any, Operator]]
    _specs: dict[Any, Spec]
    _given_traits: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **traits: Any) -> None:
        """Take the traits that differ from those of the bases.

        Raises:
            TypeError: there is no such trait.
        """
        super().__init_subclass__()
        cls._given_traits = traits
        given: dict[str, Any] = {}
        for each in reversed(cls.__mro__):
            given.update(each.__dict__.get("_given_traits", {}))
            if "_interned" in each.__dict__:  # an operator: what is made of it need not keep to the batch as it does
                given.pop("batch_wise", None)
        cls.traits = Traits(**given)

    def with_traits(self, **traits: Any) -> None:
        """Let an instance that is being made have other traits than its class."""
        object.__setattr__(self, "traits", replace(self.traits, **traits))

    # -- making ----------------------------------------------------------------------------------------

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(self._defaults)
        self.__dict__.update(values)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the parameters together.

        Raises:
            ParameterError: they contradict each other.
        """

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.name}: an operator never changes; make another one with create()")

    def is_said_by_parameters(self) -> bool:
        """Tell whether class and parameters say all of this operator: an equal one can be made of them."""
        cls = type(self)
        return (
            cls.__init__ is Operator.__init__
            and cls.create.__func__ is Operator.create.__func__  # type: ignore[attr-defined]
            and not self.subgraphs
            and all(_is_parameter(cls, name) for name in list(self.__dict__))  # other threads may add to it
        )

    @classmethod
    def create(cls, /, **given: Any) -> Operator:
        """The operator with these parameters (Python values, or the strings of MXNet's JSON).

        Raises:
            ParameterError: unknown, missing or unfit parameters.
        """
        key: Any = tuple(given.items())
        try:
            # 0 == 0.0 == -0.0 as a key, but not as a parameter.
            if 0 in given.values() and _has_zero(given):
                key = (key, tuple([str(value) for value in given.values() if isinstance(value, _FLOATS)]))
            known = cls._interned.get(key)
        except (TypeError, ValueError):  # ValueError: an array among them
            key, known = None, None
        if known is not None:
            return known
        made = cls(**cls._convert(given))
        object.__setattr__(made, "_specs", {})
        if key is not None:
            if len(cls._interned) >= _INTERN_LIMIT:
                cls._interned.clear()
            cls._interned[key] = made
        return made

    @classmethod
    def _convert(cls, given: dict[str, Any]) -> dict[str, Any]:
        values = {}
        for name, value in given.items():
            parameter = cls.parameters.get(name)
            if parameter is None:
                known = ", ".join(cls.parameters) or "none"
                raise ParameterError(
                    f"{cls.name}: there is no parameter {name!r}, only {known}{did_you_mean(name, cls.parameters)}"
                )
            values[name] = parameter.convert(value, cls.name)
        missing = [name for name, parameter in cls.parameters.items() if parameter.required and name not in values]
        if missing:
            described = ", ".join(f"{name} ({cls.parameters[name].describe()})" for name in missing)
            raise ParameterError(f"{cls.name}: missing parameter {described}")
        return values

    @classmethod
    def takes(cls, name: str) -> bool:
        """Tell whether it has a parameter of that name; True for any name if the operator is open-ended."""
        return cls.traits.open_ended or name in cls.parameters

    def attributes(self) -> dict[str, str]:
        """The parameters that differ from their defaults, as strings for MXNet's JSON."""
        table = {}
        for name, parameter in self.parameters.items():
            value = getattr(self, name)
            if parameter.default is MISSING or value != parameter.default:
                table[name] = parameter.render(value)
        return table

    # -- what it takes and gives -----------------------------------------------------------------------

    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that this instance takes, auxiliary states left out."""
        if self.variadic:
            times, more = self.inputs_counted
            return tuple(f"arg{index}" for index in range(getattr(self, self.variadic) * times + more))
        return self.arguments

    def only_shapes(self) -> tuple[int, ...]:
        """Positions of inputs of which the forward looks at shape and dtype alone, by the trait ``shapes_only``."""
        alone = self.traits.shapes_only
        return tuple([position for position, name in enumerate(self.inputs()) if name in alone]) if alone else ()

    def moved_states(self) -> tuple[int, ...]:
        """Positions of states that the forward pass moves in training mode, on which this gradient does not depend."""
        return ()

    def without_like(self, shape: Shape, dtype: DType) -> Operator | None:
        """The operator that does the same without the inputs of :meth:`only_shapes`, by its output's form."""
        return None

    def multiplier(self, shape: Shape) -> float | None:
        """The number by which it multiplies each element of an input of a shape; None where it does something else."""
        return None

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs of this instance."""
        return self.output_names

    def counted_outputs(self) -> int:
        """The number of outputs in MXNet's JSON, which may differ where its implementation keeps other hidden ones."""
        return self.outputs_counted or len(self.outputs())

    def visible_outputs(self) -> int:
        """The number of outputs that the user sees; the rest serve the gradient."""
        return self.outputs_visible or len(self.outputs())

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        """The inputs and outputs that go along with the batch, for inputs and outputs of these shapes, in prediction.

        Cut along axis 0 into any number of equal parts, each part of these outputs follows from that part of these
        inputs, by the same forward; or outputs of the parts add up to that of the whole (``sums``). None where neither
        holds, or is not known to.
        """
        kind = self.traits.batch_wise
        if kind in (BatchWise.UNKNOWN, BatchWise.OWN) or not all(outputs) or self.mixes_batch(inputs):
            return None
        if kind is BatchWise.SUM:
            alike = all(shape and shape[0] == inputs[0][0] for shape in inputs)
            return BatchParts(tuple(range(len(inputs))), (), tuple(range(len(outputs)))) if alike else None
        batch = outputs[0][0]
        if any(shape[0] != batch for shape in outputs):
            return None
        along = [at for at, shape in enumerate(inputs) if shape[:1] == (batch,)]
        if kind is BatchWise.FIRST:
            return BatchParts((0,), tuple(range(len(outputs)))) if 0 in along else None
        if kind is BatchWise.EACH:
            return BatchParts(tuple(along), tuple(range(len(outputs)))) if 0 < len(along) == len(inputs) else None
        along = [at for at in along if len(inputs[at]) == len(outputs[0])]
        return BatchParts(tuple(along), tuple(range(len(outputs)))) if along else None

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        """True where its parameters let it work along axis 0, for the kinds of :class:`BatchWise` but OWN."""
        return False

    def writes_more(self) -> bool:
        """True where the forward writes besides its outputs, so that it runs even where these have no elements."""
        return bool(self.updates or self.auxiliary)

    def moved_inputs(self, train: bool) -> tuple[int, ...]:
        """Positions of the inputs that the forward really writes in this mode; ``auxiliary`` are those that it may."""
        count = len(self.inputs())
        return (*self.updates, *(range(count, count + len(self.auxiliary)) if train else ()))

    def auxiliary_positions(self) -> tuple[int, ...]:
        """Positions of the inputs that are auxiliary states, which files and modules keep apart from parameters."""
        count = len(self.inputs())
        return tuple(range(count, count + len(self.auxiliary)))

    def draws(self, train: bool) -> bool:
        """True where the forward really draws random numbers in this mode; ``uses_random`` is that it may."""
        return self.traits.uses_random

    def skip_draws(self, run: Run, outputs: Sequence[Shape]) -> None:
        """Draw the random numbers of a forward that makes outputs of these shapes, and let go of them."""
        raise NotImplementedError(f"{self.name} draws other numbers for a part of the batch")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        """Complete the shapes: from what is known of the inputs, all that follows of inputs and outputs.

        Args:
            shapes: one for each input, auxiliary states last; None or -1 where unknown.

        Returns:
            the completed input shapes and the output shapes. Unknown stays None or -1.

        Raises:
            ShapeError: they contradict each other.
        """
        shape = same_shape(self, shapes)
        return [shape] * len(shapes), [shape] * len(self.outputs())

    def at_once(self, F: Any, inputs: Sequence[Any]) -> Any:
        """Compute a :attr:`dynamic` operator by functions of ``mx.nd``, for which it may wait for inputs."""
        raise NotImplementedError

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        """Complete the inputs' shapes by what is known of the outputs'. Default: nothing follows from it.

        For operators through which the shape of a parameter is found behind its users.
        """
        return shapes

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        """Complete the dtypes, as :meth:`infer_shape` does the shapes. Default: all are the same.

        Raises:
            TypeInferenceError: they contradict each other.
        """
        known = next((dtype for dtype in dtypes if dtype is not None), None)
        for position, dtype in enumerate(dtypes):
            if dtype is not None and dtype != known and known is not None:
                names = (*self.inputs(), *self.auxiliary)
                raise TypeInferenceError(
                    f"{self.name}: input {names[position]} has dtype {name_of(dtype)}, expected {name_of(known)} "
                    "as the first input has; cast one of them with astype"
                )
        return [known] * len(dtypes), [known] * len(self.outputs())

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        """Floating-point operations and elements moved, for scheduling, profiles and simulation."""
        moved = sum(map(_size, inputs)) + sum(map(_size, outputs))
        return sum(map(_size, outputs)), moved

    # -- computing -------------------------------------------------------------------------------------

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the outputs, into the given arrays."""
        raise NotImplementedError(f"{self.name} has no forward computation")

    def gradient(
        self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]
    ) -> Sequence[Any | None]:
        """The gradient for each input, given those of the outputs, in terms of registered operators.

        Args:
            F: offers every operator as a function (``F.dot(a, b)``), of arrays or of symbols.
            inputs: the operator's inputs, auxiliary states included.
            outputs: all its outputs.
            heads: a gradient for each visible output.
        """
        raise NotImplementedError(f"{self.name} has no gradient")

    def detach(self, work: Operation, inputs: Sequence[Any]) -> None:
        """Prepare the operation that will run a ``detached`` operator on these arrays, before its push."""

    def as_ufunc(self, xp: Any, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        """The forward as one call ``ufunc(*inputs, out=out)``, for inputs of this dtype; None where it is more.

        With a number, which is then a 0-d array of the dtype: ``ufunc(input, number, out=out)``.
        """
        return None

    def bound(self, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        """The forward for arrays of these shapes and dtypes, with less to decide; None where there is none."""
        return None

    # -- inference, cached -----------------------------------------------------------------------------

    def spec(self, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]) -> Spec:
        """The output shapes and dtypes for fully known inputs (cached).

        Raises:
            ShapeError, TypeInferenceError: the inputs do not fit the operator or each other.
        """
        key = (shapes, dtypes)
        known = self._specs.get(key)
        if known is not None:
            return known
        names = (*self.inputs(), *self.auxiliary)
        if len(shapes) != len(names):
            raise TypeError(f"{self.name}: {len(shapes)} inputs were given, expected {len(names)}: {', '.join(names)}")
        try:
            completed, out_shapes = self.infer_shape(list(shapes))
        except ShapeError as error:
            if str(error).startswith(self.name):
                raise
            raise ShapeError(f"{self.name}: {error}") from None  # from an operator that it is made of
        for name, given, expected in zip(names, shapes, completed, strict=True):
            if expected is not None and given != expected:
                raise ShapeError(f"{self.name}: input {name} has shape {given}, expected {expected}")
        out_dtypes = self.infer_type(list(dtypes))[1]
        final_shapes: list[Shape] = []
        for shape in out_shapes:
            if shape is None or -1 in shape:
                raise ShapeError(f"{self.name}: the output's shape does not follow from the inputs' {shapes}")
            final_shapes.append(shape)
        final_dtypes = [FLOAT32 if dtype is None else dtype for dtype in out_dtypes]
        made = Spec(final_shapes, final_dtypes, light=False)
        # The lengths of 0 that an operator without inputs is given mean that its readers decide.
        made.follows = None not in out_dtypes and (bool(names) or all(map(all, final_shapes)))
        moved = self.bytes_read([_size(s) * d.itemsize for s, d in zip(shapes, dtypes, strict=True)], made.nbytes)
        traits = self.traits
        made.gradient = None if traits.no_gradient else self.gradient
        made.is_plain = not (traits.uses_random or traits.detached or traits.sparse or self.auxiliary or self.updates)
        made.light = self._is_light(shapes, final_shapes, moved + made.nbytes)
        made.weight = moved + made.nbytes
        if self.traits.heavy and type(self).cost is not Operator.cost:
            made.weight += self.cost(shapes, final_shapes)[0] // _FLOPS_A_BYTE
        made.short = made.light or (
            made.weight <= _SHORT_WEIGHT and not (traits.heavy and type(self).cost is Operator.cost)
        )
        if len(self._specs) >= _SPEC_LIMIT:
            self._specs.clear()
        self._specs[key] = made
        return made

    def bytes_read(self, inputs: Sequence[int], made: int) -> int:
        """The bytes that the forward reads, about, of inputs of so many bytes each, for outputs of so many together."""
        return sum(inputs)

    def _is_light(self, inputs: Sequence[Shape], outputs: Sequence[Shape], nbytes: int) -> bool:
        """True where the work on these shapes takes microseconds, by the bytes it touches and the operator's cost."""
        if not self.traits.heavy:
            return nbytes <= LIGHT_BYTES
        if type(self).cost is Operator.cost:
            return False
        flops = self.cost(inputs, outputs)[0]
        if self.traits.multiplies and flops >= _LEAST_REUSE * nbytes:
            return nbytes <= _LIGHT_PRODUCT_BYTES and flops <= _LIGHT_PRODUCT_FLOPS
        return nbytes <= LIGHT_BYTES and flops <= _LIGHT_FLOPS

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.attributes().items())
        return f"{self.name}({shown})"


def _is_parameter(cls: type[Operator], name: str) -> bool:
    """Tell whether an attribute of an operator is a parameter, or follows from them."""
    is_kept = name.startswith("_") or isinstance(getattr(cls, name, None), cached_property)
    return is_kept or name in cls.parameters or name == "traits"


def _has_zero(given: dict[str, Any]) -> bool:
    """True where a parameter is a floating 0, of either sign."""
    return any(isinstance(value, _FLOATS) and value == 0 for value in given.values())


C = TypeVar("C", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(required, option))
def family(cls: C) -> C:
    """Declare the parameters of a class, by itself the base of operators that share them."""
    made: Any = cls
    made.parameters = declare(cls)
    made._defaults = {p.name: p.default for p in made.parameters.values() if not p.required}
    return cls


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(required, option))
def operator(name: str, *aliases: str) -> Callable[[C], C]:
    """Register an operator class under its MXNet name and aliases.

    Raises:
        ValueError: a name is taken.
        TypeError: a trait is missing that such an operator must give.
    """

    def register(cls: C) -> C:
        made: Any = family(cls)
        made.name, made.aliases, made._interned = name, aliases, {}
        if made.traits.heavy and not made.traits.hidden and made.traits.precision is None:
            raise TypeError(f"operator {name!r} is heavy and public, so it must give precision=Precision... as well")
        for each in (name, *aliases):
            if each in _by_name:
                raise ValueError(f"operator {each!r} is registered already, by {_by_name[each].__qualname__}")
            _by_name[each] = made
        return made  # type: ignore[no-any-return]

    return register


def described(**inputs: str) -> dict[str, str]:
    """The documentation of an operator's inputs by name, for ``input_docs``: of each its shape, dtype and meaning."""
    return inputs


def kernel(device_type: str, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a faster forward ``function(operator, run, inputs, outputs)`` for one device type.

    It may be an object with more to it: ``workspace(operator, inputs, outputs)`` gives, for arrays that are
    :class:`Laid` so, how many bytes it needs besides them; ``tie(operator)`` gives a forward ``function(run, inputs,
    outputs)`` for one step of a bound graph, whose method ``use(memory)`` receives those bytes;
    ``packed_size(operator, data_shape, dtype)`` gives the number of elements of a packed copy of a layer's weight in
    its layout, or None; ``takes(operator, dtype)`` tells whether it computes on elements of 16 bits as they are;
    ``bind(operator, inputs, outputs)`` gives, for arrays of these :data:`Form`, a :data:`Bound` forward with less to
    decide, or None.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        _kernels[device_type, lookup(name).name] = function
        return function

    return register


def workspace_of(device_type: str, op: Operator) -> Callable[[Any, Sequence[Laid], Sequence[Laid]], int] | None:
    """The function that gives the bytes of workspace of an operator's kernel; None where the kernel needs none."""
    return getattr(kernel_for(device_type, op.name), "workspace", None)


def packed_size(device_type: str, op: Operator, data: Shape, dtype: DType) -> int | None:
    """The elements of a layer's packed weight, for data of a form; None where its kernel is as fast without."""
    ask = getattr(kernel_for(device_type, op.name), "packed_size", None)
    return None if ask is None else ask(op, data, dtype)


def tied_forward(device_type: str, op: Operator) -> TiedForward | None:
    """A forward of an operator's kernel for one step of a bound graph; None where the kernel has no such thing."""
    tie = getattr(kernel_for(device_type, op.name), "tie", None)
    return None if tie is None else tie(op)


def kernel_for(device_type: str, name: str) -> Callable[..., None] | None:
    """The registered faster forward of an operator, or None."""
    return _kernels.get((device_type, name))


def lookup(name: str) -> type[Operator]:
    """The operator of a name or alias.

    Raises:
        AttributeError: there is none; the message names the nearest.
    """
    found = _by_name.get(name)
    if found is None and name.startswith("_np"):  # those of mx.np are registered when they are first asked for
        found = importlib.import_module("flowmx.numpy.named").find(name)
    if found is None:
        shown = [each for each in _by_name if not each.startswith("_")]
        raise AttributeError(f"there is no operator {name!r}{did_you_mean(name, shown, STANDS_FOR)}")
    return found


def registered() -> dict[str, type[Operator]]:
    """Every operator by every name."""
    return dict(_by_name)


def same_shape(op: Operator, shapes: Sequence[ShapeOrNone]) -> ShapeOrNone:
    """The one shape that all inputs of an elementwise operator have, as far as it is known.

    Raises:
        ShapeError: two of them differ.
    """
    merged: ShapeOrNone = None
    for position, shape in enumerate(shapes):
        both = merge(merged, shape)
        if both is False:
            names = (*op.inputs(), *op.auxiliary)
            raise ShapeError(f"{op.name}: input {names[position]} has shape {shape}, expected {merged}")
        merged = both
    return merged


def merge(one: ShapeOrNone, other: ShapeOrNone) -> Any:
    """Merge two partly known shapes (None: unknown); False where they contradict."""
    if one is None or other is None:
        return one if other is None else other
    if one == other:
        return one
    if len(one) != len(other):
        return False
    merged = []
    for a, b in zip(one, other, strict=True):
        if a != b and -1 not in (a, b):
            return False
        merged.append(max(a, b))
    return tuple(merged)


def _size(shape: Shape) -> int:
    size = 1
    for dimension in shape:
        size *= dimension
    return size
