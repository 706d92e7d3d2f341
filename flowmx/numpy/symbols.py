"""``mx.sym.np`` and ``mx.sym.npx``: NumPy's functions on symbols, which blocks receive as ``F.np`` and ``F.npx``.

A call becomes a node under the name that MXNet's symbols have for it (``mxnet_names.py``), so that MXNet can read an
exported symbol. A call without such a name becomes an ``_np_call`` node.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from flowmx.numpy import arguments, mxnet_names, table
from flowmx.numpy.arguments import names_of
from flowmx.numpy.conversion import parse_dtype
from flowmx.numpy.forms import Slot, encode
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.operators import lookup
from flowmx.semantics import default_float
from flowmx.symbol import functions as classic
from flowmx.symbol.symbol import Symbol, compose

__all__ = ["NumPySymbol", "as_nd", "as_np", "np_functions", "npx_functions"]

_DROPPED = frozenset(["out", "order", "ctx", "device", "kind", "subok", "where", "copy", "stable", "optimize"])
"""Arguments that do not affect the result of a symbol."""


class NumPySymbol(Symbol):
    """A symbol with NumPy's arithmetic, indexing and methods. Operations on it return symbols of this class."""

    __slots__ = ()

    def as_np_ndarray(self) -> Symbol:
        """Return this symbol."""
        return self

    def as_nd_ndarray(self) -> Symbol:
        """Return it as a symbol of ``mx.sym``."""
        return as_nd(self)

    def __getitem__(self, key: Any) -> Any:
        """Return the part at a key of integers, slices, None and ``...``, or one of several outputs."""
        if len(self.entries) > 1 or isinstance(key, str):
            return as_np(super().__getitem__(key))
        if isinstance(key, Symbol):
            return call("take", (self, key), {"axis": 0})
        if key == ():
            return self
        part = _slice(self, key if isinstance(key, tuple) else (key,))
        return call("getitem", (self, key), {}) if part is None else part

    def __iter__(self) -> Any:
        if len(self.entries) == 1:
            raise TypeError(f"{self!r} has one output of unknown shape, so it cannot be iterated over")
        return (as_np(output) for output in super().__iter__())

    def __neg__(self) -> Any:
        return call("multiply", (self, -1.0), {})

    def __abs__(self) -> Any:
        return call("absolute", (self,), {})

    def __invert__(self) -> Any:
        return call("invert", (self,), {})

    @property
    def T(self) -> Any:  # noqa: N802
        """The array with its axes reversed."""
        return call("transpose", (self,), {})

    def reshape(self, *shape: object, **kwargs: object) -> Any:
        """Change the shape, given as integers or one tuple; -1 infers one length."""
        lengths = kwargs.get("newshape", kwargs.get("shape", shape[0] if len(shape) == 1 else shape))
        return call("reshape", (self, lengths), {})

    def transpose(self, *axes: Any, **kwargs: Any) -> Any:
        """Permute the axes, or reverse them if no order is given."""
        order = kwargs.get("axes", axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None)
        return call("transpose", (self,) if order is None else (self, tuple(order)), {})

    def flatten(self, order: str = "C", **_: object) -> Any:  # type: ignore[override]
        """Flatten to one axis."""
        return self.reshape(-1)

    ravel = flatten

    def astype(self, dtype: object, **_: object) -> Any:
        """Cast the elements to a different dtype."""
        return as_np(classic.op("Cast", self, dtype=parse_dtype(dtype)))

    def broadcast_to(self, shape: Any, **_: Any) -> Any:
        """Broadcast to ``shape``."""
        return call("broadcast_to", (self, shape), {})

    def copy(self) -> Any:
        """Copy the content."""
        return call("copy", (self,), {})

    def detach(self) -> Any:
        """Return the same content without a gradient."""
        return as_np(classic.op("BlockGrad", self))

    __hash__ = object.__hash__


def as_np(symbol: Symbol) -> Any:
    """Return a symbol with NumPy's arithmetic."""
    return NumPySymbol(symbol.entries)


def as_nd(symbol: Symbol) -> Symbol:
    """Return a symbol of ``mx.sym``."""
    return Symbol(symbol.entries)


def _slice(symbol: Symbol, key: tuple[object, ...]) -> Any:
    """Compose indexing by integers and slices as a slice and a reshape, as MXNet does; None for other keys."""
    begin: list[object] = []
    end: list[object] = []
    step: list[object] = []
    codes: list[int] = []
    for index in key:
        if isinstance(index, slice) and all(part is None or isinstance(part, int) for part in _parts(index)):
            part = _parts(index)
            codes.append(-2)
        elif isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            position = int(index)
            part = (position, position + 1, 1) if position >= 0 else (position, position - 1, -1)
            codes.append(-3)
        else:
            return None
        for texts, value in zip((begin, end, step), part, strict=True):
            texts.append(value)
    sliced = classic.op("slice", symbol, begin=tuple(begin), end=tuple(end), step=tuple(step))
    return as_np(sliced if -3 not in codes else classic.op("_npx_reshape", sliced, newshape=(*codes, -4)))


def _parts(key: slice) -> tuple[Any, Any, Any]:
    return key.start, key.stop, key.step


# -- calls -----------------------------------------------------------------------------------------------------


def _is_symbol(value: object) -> bool:
    return isinstance(value, Symbol)


def call(function: str, args: Sequence[Any], kwargs: Mapping[str, Any], label: str | None = None) -> Any:
    """Compose a NumPy function. Return a symbol, or a list of the symbols of its results.

    Raises:
        NotImplementedError: the call has arrays, a mask or ``out``, which symbols do not support.
        TypeError: an argument is unknown to NumPy.
    """
    function = table.ALIASES.get(function, function)
    if function in ("concatenate", "append") and kwargs.get("axis", 0 if function == "concatenate" else None) is None:
        parts = args[0] if function == "concatenate" else args
        function, args, kwargs = "concatenate", ([call("reshape", (part, -1), {}) for part in parts],), {"axis": 0}
    nullable = _NONE_MATTERS.get(function)
    kwargs = {name: value for name, value in kwargs.items() if value is not None or name == nullable}
    for name in ("out", "where"):
        if kwargs.pop(name, True) is not True and not (function == "where" and name == "where"):
            raise NotImplementedError(f"mx.sym.np.{function}: {name}= is for arrays; compose with np.where instead")
    kwargs = {arguments.SECOND_NAMES.get(name, name): value for name, value in kwargs.items() if name not in _DROPPED}
    if "dtype" in kwargs:
        kwargs["dtype"] = parse_dtype(kwargs["dtype"])
    if function == "linalg.norm":
        args, kwargs = arguments.with_order(args, kwargs)
    if function in _COMPOSED_OF_OTHERS and not kwargs:
        return _COMPOSED_OF_OTHERS[function](*args)
    named_call = mxnet_names.find_named_call(function, args, kwargs, _is_symbol)
    if named_call is not None:
        name, parameters, inputs = named_call
    else:
        name, parameters, inputs = _extract_inputs(function, args, kwargs)
    cls = lookup(name)
    names = [f"arg{index}" for index in range(len(inputs))] if cls.variadic else cls.arguments
    symbol = compose(cls, dict(zip(names, inputs, strict=True)), parameters, label, None, name)
    if len(symbol.entries) > 1 or function in _LISTS:
        return [NumPySymbol([entry]) for entry in symbol.entries]
    return as_np(symbol)


_LISTS = table.names("array_split dsplit hsplit split vsplit unravel_index meshgrid broadcast_arrays")
"""Functions that always return a list."""


_NONE_MATTERS = {"partition": "axis", "argpartition": "axis"}
"""Arguments whose default is not None, but which may be None."""
_COMPOSED_OF_OTHERS: dict[str, Callable[..., Any]] = {
    "ravel": lambda x: call("reshape", (x, -1), {}),
    "inner": lambda a, b: call("tensordot", (a, b), {"axes": (-1, -1)}),
    "outer": lambda a, b: call("tensordot", (a.reshape(-1), b.reshape(-1)), {"axes": 0}),
    "vdot": lambda a, b: call("tensordot", (a.reshape(-1), b.reshape(-1)), {"axes": 1}),
    "flipud": lambda m: call("flip", (m,), {"axis": 0}),
    "fliplr": lambda m: call("flip", (m,), {"axis": 1}),
}
"""Functions that MXNet's symbols express with other functions."""


def _extract_inputs(
    function: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[str, dict[str, Any], list[Any]]:
    inputs: list[Symbol] = []

    def to_slots(value: object) -> Any:
        if isinstance(value, Symbol):
            inputs.append(value)
            return Slot(len(inputs) - 1)
        if isinstance(value, (list, tuple)):
            return type(value)([to_slots(item) for item in value])
        if hasattr(value, "asnumpy") or (isinstance(value, np.ndarray) and value.size > 1):
            raise NotImplementedError(f"mx.sym.np.{function}: an argument is an array, expected symbols and numbers")
        return np.dtype(value) if isinstance(value, type) and issubclass(value, np.generic) else value

    positional = [to_slots(arg) for arg in args]
    keywords = {name: to_slots(value) for name, value in kwargs.items()}
    parameters = {
        "num_args": len(inputs), "function": function, "form": encode(positional, keywords),
        "num_outputs": mxnet_names.count_outputs(function, positional, keywords, len(inputs)),
    }  # fmt: skip
    return ("_np_waiting" if _waits(function) else "_np_call"), parameters, inputs


def _waits(function: str) -> bool:
    return (function in table.BLOCKING and function != "diag_indices_from") or function.removeprefix(
        "linalg."
    ) in table.LINALG_BLOCKING


@cache
def _signature(name: str) -> inspect.Signature | None:
    """Return the signature of a function that ``mx.np`` implements itself, or None for NumPy's functions."""
    for module, names in table.DEFINED_IN.items():
        if name in names and module in ("creation", "shaping"):
            return inspect.signature(getattr(importlib.import_module(f"flowmx.numpy.{module}"), name))
    return None


_CREATION = table.names("""
    zeros ones full arange linspace logspace eye identity tri indices hanning hamming blackman bartlett kaiser
""")
"""Functions that create arrays from numbers alone, float32 by default."""


def _call_own(name: str, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
    """Compose a call of a function that ``mx.np`` implements itself, as a call of NumPy's function."""
    signature = _signature(name)
    assert signature is not None
    label = kwargs.pop("name", None)
    values = {key: value for key, value in signature.bind(*args, **kwargs).arguments.items() if key not in _DROPPED}
    if name in _CREATION:
        values["dtype"] = values.get("dtype") or name_of(default_float())
        if name == "indices" and "dtype" not in kwargs:
            values["dtype"] = "int64"
    if name == "arange":
        start, stop = (values["start"], values["stop"]) if "stop" in values else (0, values["start"])
        values = {"start": start, "stop": stop, "step": values.get("step", 1), "dtype": values["dtype"]}
    elif name in ("eye", "identity"):
        name, values = "eye", {"N": values.get("N", values.get("n")), **values}
        values = {
            "N": values["N"],
            "M": values.get("M", values["N"]),
            "k": values.get("k", 0),
            "dtype": values["dtype"],
        }
    elif name in ("linspace", "logspace"):
        places = {key: values.pop(key, 50) for key in ("start", "stop", "num")}
        values = {**places, **values}
    if name in ("zeros_like", "ones_like", "full_like"):
        values = {
            "a": values.pop("a"),
            "fill_value": {"z": 0, "o": 1}.get(name[0], values.get("fill_value")),
            **values,
        }
        name = "full_like"
    if name == "clip":
        low, high = values.get("a_min", values.get("min")), values.get("a_max", values.get("max"))
        values = {"a": values["a"], "low": low, "high": high}
    if name == "reshape":
        values = {"a": values["a"], "shape": values.get("newshape", values.get("shape"))}
    if name in ("sort", "argsort"):
        options = {"dtype": "int64"} if name == "argsort" else {}
        ascending = not values.get("descending", False)
        return as_np(
            classic.op(name, values["a"], axis=values.get("axis", -1), is_ascend=ascending, name=label, **options)
        )
    starred = next(
        (parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.VAR_POSITIONAL),
        None,
    )
    variadic = values.pop(starred, ()) if starred else ()
    dtype = {"dtype": values.pop("dtype")} if "dtype" in values else {}
    count = {"meshgrid": 0, "broadcast_arrays": 0, "linspace": 3, "logspace": 3}.get(name, len(values))
    positional = list(values.values())[:count]
    return call(name, (*variadic, *positional), {**dtype, **dict(list(values.items())[count:])}, label)


def _function(name: str) -> Callable[..., Any]:
    """Create the symbol version of a function of ``mx.np``."""
    target = table.ALIASES.get(name, name)
    signature = _signature(name.rpartition(".")[2]) if "." not in name else None

    def function(*args: object, **kwargs: Any) -> Any:
        if signature is not None:
            return _call_own(name, args, kwargs)
        label = kwargs.pop("name", None)
        names = names_of(target)
        positional = list(args)
        while len(positional) < len(names) and _is_symbol(kwargs.get(names[len(positional)])):
            positional.append(kwargs.pop(names[len(positional)]))
        return call(target, positional, kwargs, label)

    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__doc__ = f"As :obj:`numpy.{name}`, on symbols."
    return function


class _Module:
    """A module of symbol functions, each created at first access."""

    def __init__(self, name: str, names: Iterable[str], make: Callable[[str], Any], **others: object) -> None:
        self.__name__ = name
        self.__dict__.update(others)
        self._names, self._make = frozenset(names), make

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._names:
            from flowmx.suggestions import did_you_mean

            raise AttributeError(f"{self.__name__} has no function {name!r}{did_you_mean(name, list(self._names))}")
        function = self.__dict__[name] = self._make(name)
        return function

    def __dir__(self) -> list[str]:
        return sorted({*self._names, *(name for name in self.__dict__ if not name.startswith("_"))})

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


def _in_module(module: str) -> Callable[[str], Callable[..., Any]]:
    return lambda name: _function(f"{module}.{name}")


# -- random numbers --------------------------------------------------------------------------------------------


def _random_function(name: str) -> Callable[..., Any]:
    from flowmx.numpy import random

    if name in ("rand", "randn"):
        method = {"rand": "uniform", "randn": "normal"}[name]
        return lambda *size, **kwargs: _random_function(method)(size=size or None, **kwargs)
    if name in ("randint", "choice"):
        return _randint if name == "randint" else _choice
    row = random.TABLE[name]

    def function(*args: Any, **kwargs: Any) -> Any:
        options = dict(zip([*row.parameters, "size", "dtype", "ctx", "out"], args, strict=False)) | kwargs
        numbers = {key: options.get(key, default) for key, default in row.parameters.items()}
        size = options.get("size")
        size = (size,) if isinstance(size, int) else size
        inputs, slots = _split_inputs(numbers.values())
        mxnet = next((key for key, method in mxnet_names._DISTRIBUTIONS.items() if method == row.method), None)
        if mxnet is not None and not row.draws_integers:
            texts = {key: "None" if _is_symbol(number) else str(number) for key, number in numbers.items()}
            texts["size"] = str(None if size in (None, ()) else tuple(size))
            if (kind := parse_dtype(options.get("dtype"))) is not None:
                texts["dtype"] = name_of(kind)
            return _compose(mxnet, texts, inputs, options.get("name"))
        kwargs = {} if size in (None, ()) else {"size": tuple(size)}
        dtype = parse_dtype(options.get("dtype")) or (np.dtype(np.int64) if row.draws_integers else default_float())
        parameters = {"num_args": len(inputs), "function": row.method, "form": encode(slots, kwargs), "dtype": dtype}
        return _compose("_np_random", parameters, inputs, options.get("name"))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As :func:`flowmx.np.random.{name}`, on symbols."
    return function


def _split_inputs(values: Iterable[object]) -> tuple[list[Any], list[Any]]:
    """Return the symbols among values, and the values with slots in place of symbols."""
    values = list(values)
    numbers = iter(range(len(values)))
    slots = [Slot(next(numbers)) if _is_symbol(value) else value for value in values]
    return [value for value in values if _is_symbol(value)], slots


def _randint(
    low: object,
    high: object = None,
    size: Any = None,
    dtype: object = None,
    ctx: object = None,
    out: object = None,
    **kwargs: Any,
) -> Any:
    low, high = (0, low) if high is None else (low, high)
    size = () if size is None else (size,) if isinstance(size, int) else tuple(size)
    parameters = {
        "num_args": 0, "function": "integers", "form": encode([low, high], {"size": size}),
        "dtype": parse_dtype(dtype) or np.dtype(np.int64),
    }  # fmt: skip
    return _compose("_np_random", parameters, [], kwargs.get("name"))


def _choice(
    a: object, size: object = None, replace: bool = True, p: object = None, ctx: object = None, **kwargs: Any
) -> Any:
    """Draw elements of a symbol, or integers below ``a``, with the probabilities ``p``."""
    size = (size,) if isinstance(size, int) else size
    inputs, slots = _split_inputs((a, p))
    parameters = {
        "num_args": len(inputs), "function": "choice", "form": encode([slots[0], size, replace, slots[1]], {}),
        "dtype": default_float() if _is_symbol(a) else np.dtype(np.int64),
    }  # fmt: skip
    return _compose("_np_random", parameters, inputs, kwargs.get("name"))


def _batch(method: str) -> Callable[..., Any]:
    def function(
        one: object = 0.0, other: object = 1.0, batch_shape: Any = None, dtype: object = None, **kwargs: Any
    ) -> Any:
        size = () if batch_shape is None else (batch_shape,) if isinstance(batch_shape, int) else tuple(batch_shape)
        inputs, slots = _split_inputs((one, other))
        parameters = {
            "num_args": len(inputs), "function": method, "form": encode(slots, {"size": size}),
            "dtype": parse_dtype(dtype) or default_float(),
        }  # fmt: skip
        return _compose("_np_random", parameters, inputs, kwargs.get("name"))

    return function


def _bernoulli(
    prob: Any = None,
    logit: Any = None,
    size: Any = None,
    dtype: object = None,
    ctx: object = None,
    out: object = None,
    **_: object,
) -> Any:
    if (prob is None) == (logit is None):
        raise ValueError("bernoulli: expected exactly one of prob and logit")
    size = (size,) if isinstance(size, int) else size
    texts = {key: "None" if value is None or _is_symbol(value) else str(value)
             for key, value in (("prob", prob), ("logit", logit))}  # fmt: skip
    texts |= {"is_logit": str(logit is not None), "size": str(None if size in (None, ()) else tuple(size))}
    if (kind := parse_dtype(dtype)) is not None:
        texts["dtype"] = name_of(kind)
    return _compose("_npi_bernoulli", texts, [value for value in (prob, logit) if _is_symbol(value)], None)


def _compose(name: str, parameters: Mapping[str, object], inputs: Sequence[Symbol], label: str | None) -> Any:
    places = [f"arg{index}" for index in range(len(inputs))]
    return as_np(compose(lookup(name), dict(zip(places, inputs, strict=True)), parameters, label, None, name))


# -- the modules -----------------------------------------------------------------------------------------------


@cache
def np_functions() -> Any:
    """``mx.sym.np``."""
    from flowmx.numpy import random

    own = {*table.DEFINED_IN["creation"], *table.DEFINED_IN["shaping"]} - _ARRAYS_ONLY
    linalg = _Module("mx.sym.np.linalg", {*table.LINALG, *table.LINALG_BLOCKING}, _in_module("linalg"))
    return _Module(
        "mx.sym.np",
        {*table.CALLS, *table.ALIASES, *(table.BLOCKING - _ARRAYS_ONLY), *own},
        _function,
        linalg=linalg,
        fft=_Module("mx.sym.np.fft", table.FFT, _in_module("fft")),
        random=_Module("mx.sym.np.random", {*random.TABLE, "choice", "rand", "randn", "randint"}, _random_function),
        _Symbol=NumPySymbol,
        **table.CONSTANTS,
        **{name: np.bool_ if name in ("bool", "bool_") else getattr(np, name) for name in table.DTYPES},
    )


_ARRAYS_ONLY = table.names("""
    array asarray ascontiguousarray from_dlpack frombuffer genfromtxt may_share_memory shares_memory set_printoptions
    apply_along_axis apply_over_axes piecewise empty_like
""")
"""Functions of ``mx.np`` that symbols do not have."""


@cache
def npx_functions() -> Any:
    """``mx.sym.npx``."""
    from flowmx import numpy_extension
    from flowmx.symbol import image

    def make(name: str) -> Callable[..., Any]:
        if name == "reshape":
            return _npx_reshape
        if name == "constraint_check":
            return lambda x, msg="Constraint violated.": as_np(classic.op("_npx_constraint_check", x, msg=msg))
        if name == "nonzero":
            return lambda x, **kwargs: call("argwhere", (x,), {})
        operator = numpy_extension.TABLE[name]

        def function(*args: object, **kwargs: object) -> Any:
            symbol = classic.op(operator, *args, **kwargs)
            return [NumPySymbol([entry]) for entry in symbol.entries] if len(symbol) > 1 else as_np(symbol)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"The operator ``{operator}``, on symbols with NumPy's arithmetic."
        return function

    def image_function(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: as_np(getattr(image, name)(*args, **kwargs))

    return _Module(
        "mx.sym.npx",
        {*numpy_extension.TABLE, "constraint_check", "reshape", "nonzero"},
        make,
        random=_Module(
            "mx.sym.npx.random",
            {"bernoulli", "uniform_n", "normal_n"},
            lambda name: _bernoulli if name == "bernoulli" else _batch(name),
        ),
        image=_Module("mx.sym.npx.image", dir(image), image_function),
    )


def _npx_reshape(a: Symbol, newshape: Any, reverse: bool = False, order: str = "C", **kwargs: object) -> Any:
    """Change the shape by the codes of ``npx.reshape``."""
    codes = (newshape,) if isinstance(newshape, int) else tuple(newshape)
    return as_np(classic.op("_npx_reshape", a, newshape=codes, reverse=reverse, order=order, **kwargs))


# -- methods ---------------------------------------------------------------------------------------------------

_OPERANDS = (int, float, np.generic, Symbol)


def _binary(function: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: object, other: object) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        other = other.item() if isinstance(other, np.generic) else other
        return call(function, (other, self) if swapped else (self, other), {})

    return method


for _name, _function_name in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "mod": "remainder", "pow": "power",
    "floordiv": "floor_divide", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}.items():  # fmt: skip
    setattr(NumPySymbol, f"__{_name}__", _binary(_function_name))
    setattr(NumPySymbol, f"__r{_name}__", _binary(_function_name, swapped=True))
for _name, _function_name in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    setattr(NumPySymbol, f"__{_name}__", _binary(_function_name))


def _method(name: str) -> Callable[..., Any]:
    function = _function(name)

    def method(self: object, *args: object, **kwargs: object) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"NumPySymbol.{name}"
    method.__doc__ = f"As :func:`flowmx.np.{name}` of this symbol."
    return method


for _name in sorted(table.METHODS - {*vars(NumPySymbol)}):
    setattr(NumPySymbol, _name, _method(_name))
