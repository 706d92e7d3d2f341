"""``mx.sym.np`` and ``mx.sym.npx``: NumPy's functions of symbols, which blocks get as ``F.np`` and ``F.npx``.

A call becomes a node under the name that MXNet's symbols have for it (``named.py``), so that MXNet reads what is
exported; what it has no name for is the call itself as an operator.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from flowmx.numpy import arguments, named, table
from flowmx.numpy.arguments import names_of
from flowmx.numpy.conversion import given_dtype
from flowmx.numpy.forms import Slot, encode
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.operators import lookup
from flowmx.semantics import default_float
from flowmx.symbol import functions as classic
from flowmx.symbol.symbol import Symbol, compose

__all__ = ["NumPySymbol", "as_nd", "as_np", "np_functions", "npx_functions"]

_DROPPED = frozenset(["out", "order", "ctx", "device", "kind", "subok", "where", "copy", "stable", "optimize"])
"""Arguments that say nothing of a result, where they are as by default."""


class NumPySymbol(Symbol):
    """A symbol with NumPy's arithmetic, indices and methods; what is composed of it is one, too."""

    __slots__ = ()

    def as_np_ndarray(self) -> Symbol:
        """This symbol."""
        return self

    def as_nd_ndarray(self) -> Symbol:
        """The same as a symbol of ``mx.sym``."""
        return as_nd(self)

    def __getitem__(self, key: Any) -> Any:
        """The part at a key of numbers, slices, None and ``...``; of several outputs the one at a position or name."""
        if len(self._entries) > 1 or isinstance(key, str):
            return as_np(super().__getitem__(key))
        if isinstance(key, Symbol):
            return call("take", (self, key), {"axis": 0})
        if key == ():
            return self
        found = _by_slices(self, key if isinstance(key, tuple) else (key,))
        return call("getitem", (self, key), {}) if found is None else found

    def __iter__(self) -> Any:
        if len(self._entries) == 1:
            raise TypeError(f"{self!r} has one output, so it can not be iterated over: its lengths are not known")
        return (as_np(each) for each in super().__iter__())

    def __neg__(self) -> Any:
        return call("multiply", (self, -1.0), {})

    def __abs__(self) -> Any:
        return call("absolute", (self,), {})

    def __invert__(self) -> Any:
        return call("invert", (self,), {})

    @property
    def T(self) -> Any:  # noqa: N802
        """The axes reversed."""
        return call("transpose", (self,), {})

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """The same content with another shape, by numbers or one tuple; -1 stands for one length."""
        given = kwargs.get("newshape", kwargs.get("shape", shape[0] if len(shape) == 1 else shape))
        return call("reshape", (self, given), {})

    def transpose(self, *axes: Any, **kwargs: Any) -> Any:
        """The axes in another order; reversed where none is given."""
        given = kwargs.get("axes", axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None)
        return call("transpose", (self,) if given is None else (self, tuple(given)), {})

    def flatten(self, order: str = "C", **_: Any) -> Any:  # type: ignore[override]
        """All axes made one."""
        return self.reshape(-1)

    ravel = flatten

    def astype(self, dtype: Any, **_: Any) -> Any:
        """The content as another element type."""
        return as_np(classic.op("Cast", self, dtype=given_dtype(dtype)))

    def broadcast_to(self, shape: Any, **_: Any) -> Any:
        """Axes of length 1 repeated until the shape is ``shape``."""
        return call("broadcast_to", (self, shape), {})

    def copy(self) -> Any:
        """The same content."""
        return call("copy", (self,), {})

    def detach(self) -> Any:
        """The same content, through which no gradient flows."""
        return as_np(classic.op("BlockGrad", self))

    __hash__ = object.__hash__


def as_np(symbol: Symbol) -> Any:
    """A symbol with NumPy's arithmetic."""
    return NumPySymbol(symbol._entries)


def as_nd(symbol: Symbol) -> Symbol:
    """A symbol of ``mx.sym``."""
    return Symbol(symbol._entries)


def _by_slices(symbol: Symbol, key: tuple[Any, ...]) -> Any:
    """A part at numbers and slices as MXNet writes it: a slice and a reshape; None for another key."""
    begin: list[Any] = []
    end: list[Any] = []
    step: list[Any] = []
    codes: list[int] = []
    for each in key:
        if isinstance(each, slice) and all(part is None or isinstance(part, int) for part in _parts(each)):
            part = _parts(each)
            codes.append(-2)
        elif isinstance(each, (int, np.integer)) and not isinstance(each, bool):
            at = int(each)
            part = (at, at + 1, 1) if at >= 0 else (at, at - 1, -1)
            codes.append(-3)
        else:
            return None
        for texts, value in zip((begin, end, step), part, strict=True):
            texts.append(value)
    made = classic.op("slice", symbol, begin=tuple(begin), end=tuple(end), step=tuple(step))
    return as_np(made if -3 not in codes else classic.op("_npx_reshape", made, newshape=(*codes, -4)))


def _parts(key: slice) -> tuple[Any, Any, Any]:
    return key.start, key.stop, key.step


# -- calls -----------------------------------------------------------------------------------------------------


def _is_symbol(value: Any) -> bool:
    return isinstance(value, Symbol)


def call(function: str, args: Sequence[Any], kwargs: Mapping[str, Any], label: str | None = None) -> Any:
    """Compose a function of NumPy's; returns a symbol, or a list of those of its results.

    Raises:
        NotImplementedError: the call has arrays, a mask or ``out``, which symbols do not keep.
        TypeError: NumPy has no such argument.
    """
    function = table.RENAMED.get(function, function)
    if function in ("concatenate", "append") and kwargs.get("axis", 0 if function == "concatenate" else None) is None:
        parts = args[0] if function == "concatenate" else args
        function, args, kwargs = "concatenate", ([call("reshape", (each, -1), {}) for each in parts],), {"axis": 0}
    kept_none = _NONE_MATTERS.get(function)
    kwargs = {name: value for name, value in kwargs.items() if value is not None or name == kept_none}
    for name in ("out", "where"):
        if kwargs.pop(name, True) is not True and not (function == "where" and name == "where"):
            raise NotImplementedError(f"mx.sym.np.{function}: {name}= is for arrays; compose with np.where instead")
    kwargs = {arguments.SECOND_NAMES.get(name, name): value for name, value in kwargs.items() if name not in _DROPPED}
    if "dtype" in kwargs:
        kwargs["dtype"] = given_dtype(kwargs["dtype"])
    if function == "linalg.norm":
        args, kwargs = arguments.with_order(args, kwargs)
    if function in _SPELLED and not kwargs:
        return _SPELLED[function](*args)
    found = named.named_call(function, args, kwargs, _is_symbol)
    if found is not None:
        name, parameters, inputs = found
    else:
        name, parameters, inputs = _unnamed(function, args, kwargs)
    cls = lookup(name)
    names = [f"arg{index}" for index in range(len(inputs))] if cls.variadic else cls.arguments
    made = compose(cls, dict(zip(names, inputs, strict=True)), parameters, label, None, name)
    if len(made._entries) > 1 or function in _LISTS:
        return [NumPySymbol([entry]) for entry in made._entries]
    return as_np(made)


_LISTS = table.names("array_split dsplit hsplit split vsplit unravel_index meshgrid broadcast_arrays")
"""Functions that return a list, whatever its length is."""


_NONE_MATTERS = {"partition": "axis", "argpartition": "axis"}
"""Arguments that are not None by default, and may be."""
_SPELLED: dict[str, Callable[..., Any]] = {
    "ravel": lambda x: call("reshape", (x, -1), {}),
    "inner": lambda a, b: call("tensordot", (a, b), {"axes": (-1, -1)}),
    "outer": lambda a, b: call("tensordot", (a.reshape(-1), b.reshape(-1)), {"axes": 0}),
    "vdot": lambda a, b: call("tensordot", (a.reshape(-1), b.reshape(-1)), {"axes": 1}),
    "flipud": lambda m: call("flip", (m,), {"axis": 0}),
    "fliplr": lambda m: call("flip", (m,), {"axis": 1}),
}
"""Functions that MXNet's symbols write as others."""


def _unnamed(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any], list[Any]]:
    inputs: list[Symbol] = []

    def sorted_out(value: Any) -> Any:
        if isinstance(value, Symbol):
            inputs.append(value)
            return Slot(len(inputs) - 1)
        if isinstance(value, (list, tuple)):
            return type(value)([sorted_out(each) for each in value])
        if hasattr(value, "asnumpy") or (isinstance(value, np.ndarray) and value.size > 1):
            raise NotImplementedError(f"mx.sym.np.{function}: an argument is an array, expected symbols and numbers")
        return np.dtype(value) if isinstance(value, type) and issubclass(value, np.generic) else value

    placed = [sorted_out(each) for each in args]
    by_name = {name: sorted_out(each) for name, each in kwargs.items()}
    parameters = {
        "num_args": len(inputs), "function": function, "form": encode(placed, by_name),
        "num_outputs": named.outputs_of(function, placed, by_name, len(inputs)),
    }  # fmt: skip
    return ("_np_waiting" if _waits(function) else "_np_call"), parameters, inputs


def _waits(function: str) -> bool:
    return (function in table.WAITING and function != "diag_indices_from") or function.removeprefix(
        "linalg."
    ) in table.LINALG_WAITING


@cache
def _signature(name: str) -> inspect.Signature | None:
    """The signature of a function of ``mx.np`` that is written out; None for those that are NumPy's own."""
    for module, names in table.WRITTEN.items():
        if name in names and module in ("creation", "shaping"):
            return inspect.signature(getattr(importlib.import_module(f"flowmx.numpy.{module}"), name))
    return None


_MADE = table.names("""
    zeros ones full arange linspace logspace eye identity tri indices hanning hamming blackman bartlett kaiser
""")
"""Functions that make arrays of numbers alone, float32 where no dtype is given."""


def _written(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a function that ``mx.np`` has written out, with its own arguments, as one of NumPy's."""
    signature = _signature(name)
    assert signature is not None
    label = kwargs.pop("name", None)
    given = {key: value for key, value in signature.bind(*args, **kwargs).arguments.items() if key not in _DROPPED}
    if name in _MADE:
        given["dtype"] = given.get("dtype") or name_of(default_float())
        if name == "indices" and "dtype" not in kwargs:
            given["dtype"] = "int64"
    if name == "arange":
        start, stop = (given["start"], given["stop"]) if "stop" in given else (0, given["start"])
        given = {"start": start, "stop": stop, "step": given.get("step", 1), "dtype": given["dtype"]}
    elif name in ("eye", "identity"):
        name, given = "eye", {"N": given.get("N", given.get("n")), **given}
        given = {"N": given["N"], "M": given.get("M", given["N"]), "k": given.get("k", 0), "dtype": given["dtype"]}
    elif name in ("linspace", "logspace"):
        places = {key: given.pop(key, 50) for key in ("start", "stop", "num")}
        given = {**places, **given}
    if name in ("zeros_like", "ones_like", "full_like"):
        given = {"a": given.pop("a"), "fill_value": {"z": 0, "o": 1}.get(name[0], given.get("fill_value")), **given}
        name = "full_like"
    if name == "clip":
        low, high = given.get("a_min", given.get("min")), given.get("a_max", given.get("max"))
        given = {"a": given["a"], "low": low, "high": high}
    if name == "reshape":
        given = {"a": given["a"], "shape": given.get("newshape", given.get("shape"))}
    if name in ("sort", "argsort"):
        kept = {"dtype": "int64"} if name == "argsort" else {}
        ascending = not given.get("descending", False)
        return as_np(classic.op(name, given["a"], axis=given.get("axis", -1), is_ascend=ascending, name=label, **kept))
    starred = next((each.name for each in signature.parameters.values() if each.kind is each.VAR_POSITIONAL), None)
    placed = given.pop(starred, ()) if starred else ()
    dtype = {"dtype": given.pop("dtype")} if "dtype" in given else {}
    count = {"meshgrid": 0, "broadcast_arrays": 0, "linspace": 3, "logspace": 3}.get(name, len(given))
    positional = list(given.values())[:count]
    return call(name, (*placed, *positional), {**dtype, **dict(list(given.items())[count:])}, label)


def _function(name: str) -> Callable[..., Any]:
    """The function of a name of ``mx.np``, of symbols."""
    served = table.RENAMED.get(name, name)
    written = _signature(name.rpartition(".")[2]) if "." not in name else None

    def function(*args: Any, **kwargs: Any) -> Any:
        if written is not None:
            return _written(name, args, kwargs)
        label = kwargs.pop("name", None)
        places = names_of(served)
        placed = list(args)
        while len(placed) < len(places) and _is_symbol(kwargs.get(places[len(placed)])):
            placed.append(kwargs.pop(places[len(placed)]))
        return call(served, placed, kwargs, label)

    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__doc__ = f"As :obj:`numpy.{name}`, of symbols."
    return function


class _Module:
    """A module of functions of symbols, each made when it is first asked for."""

    def __init__(self, name: str, names: Iterable[str], make: Callable[[str], Any], **others: Any) -> None:
        self.__name__ = name
        self.__dict__.update(others)
        self._names, self._make = frozenset(names), make

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._names:
            from flowmx.suggestions import did_you_mean

            raise AttributeError(f"{self.__name__} has no function {name!r}{did_you_mean(name, list(self._names))}")
        found = self.__dict__[name] = self._make(name)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*self._names, *(each for each in self.__dict__ if not each.startswith("_"))})

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


def _in_module(module: str) -> Callable[[str], Callable[..., Any]]:
    return lambda name: _function(f"{module}.{name}")


# -- random numbers --------------------------------------------------------------------------------------------


def _drawing(name: str) -> Callable[..., Any]:
    from flowmx.numpy import random

    if name in ("rand", "randn"):
        method = {"rand": "uniform", "randn": "normal"}[name]
        return lambda *size, **kwargs: _drawing(method)(size=size or None, **kwargs)
    if name in ("randint", "choice"):
        return _randint if name == "randint" else _choice
    row = random.TABLE[name]

    def function(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip([*row.parameters, "size", "dtype", "ctx", "out"], args, strict=False)) | kwargs
        numbers = {each: given.get(each, default) for each, default in row.parameters.items()}
        size = given.get("size")
        size = (size,) if isinstance(size, int) else size
        inputs = [each for each in numbers.values() if _is_symbol(each)]
        mxnet = next((key for key, method in named._DRAWS.items() if method == row.method), None)
        if mxnet is not None and not row.whole:
            texts = {key: "None" if _is_symbol(each) else str(each) for key, each in numbers.items()}
            texts["size"] = str(None if size in (None, ()) else tuple(size))
            if given.get("dtype") is not None:
                texts["dtype"] = name_of(given_dtype(given["dtype"]))  # type: ignore[arg-type]
            return _composed(mxnet, texts, inputs, given.get("name"))
        slots = iter(range(len(inputs)))
        kept = [Slot(next(slots)) if _is_symbol(each) else each for each in numbers.values()]
        kwargs = {} if size in (None, ()) else {"size": tuple(size)}
        dtype = given_dtype(given.get("dtype")) or (np.dtype(np.int64) if row.whole else default_float())
        parameters = {"num_args": len(inputs), "function": row.method, "form": encode(kept, kwargs), "dtype": dtype}
        return _composed("_np_random", parameters, inputs, given.get("name"))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Numbers drawn as by :func:`flowmx.np.random.{name}`, of symbols."
    return function


def _randint(
    low: Any, high: Any = None, size: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None, **kwargs: Any
) -> Any:
    low, high = (0, low) if high is None else (low, high)
    size = () if size is None else (size,) if isinstance(size, int) else tuple(size)
    parameters = {
        "num_args": 0, "function": "integers", "form": encode([low, high], {"size": size}),
        "dtype": given_dtype(dtype) or np.dtype(np.int64),
    }  # fmt: skip
    return _composed("_np_random", parameters, [], kwargs.get("name"))


def _choice(a: Any, size: Any = None, replace: bool = True, p: Any = None, ctx: Any = None, **kwargs: Any) -> Any:
    """Elements of a symbol, or whole numbers below ``a``, chosen at random, with the probabilities ``p``."""
    size = (size,) if isinstance(size, int) else size
    inputs = [each for each in (a, p) if _is_symbol(each)]
    slots = iter(range(len(inputs)))
    kept = [Slot(next(slots)) if _is_symbol(each) else each for each in (a, p)]
    parameters = {
        "num_args": len(inputs), "function": "choice", "form": encode([kept[0], size, replace, kept[1]], {}),
        "dtype": default_float() if _is_symbol(a) else np.dtype(np.int64),
    }  # fmt: skip
    return _composed("_np_random", parameters, inputs, kwargs.get("name"))


def _batch(method: str) -> Callable[..., Any]:
    def function(one: Any = 0.0, other: Any = 1.0, batch_shape: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        size = () if batch_shape is None else (batch_shape,) if isinstance(batch_shape, int) else tuple(batch_shape)
        inputs = [each for each in (one, other) if _is_symbol(each)]
        slots = iter(range(len(inputs)))
        kept = [Slot(next(slots)) if _is_symbol(each) else each for each in (one, other)]
        parameters = {
            "num_args": len(inputs), "function": method, "form": encode(kept, {"size": size}),
            "dtype": given_dtype(dtype) or default_float(),
        }  # fmt: skip
        return _composed("_np_random", parameters, inputs, kwargs.get("name"))

    return function


def _bernoulli(
    prob: Any = None, logit: Any = None, size: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    if (prob is None) == (logit is None):
        raise ValueError("bernoulli: exactly one of prob and logit must be given")
    size = (size,) if isinstance(size, int) else size
    texts = {key: "None" if value is None or _is_symbol(value) else str(value)
             for key, value in (("prob", prob), ("logit", logit))}  # fmt: skip
    texts |= {"is_logit": str(logit is not None), "size": str(None if size in (None, ()) else tuple(size))}
    if dtype is not None:
        texts["dtype"] = name_of(given_dtype(dtype))  # type: ignore[arg-type]
    return _composed("_npi_bernoulli", texts, [each for each in (prob, logit) if _is_symbol(each)], None)


def _composed(name: str, parameters: Mapping[str, Any], inputs: Sequence[Symbol], label: str | None) -> Any:
    places = [f"arg{index}" for index in range(len(inputs))]
    return as_np(compose(lookup(name), dict(zip(places, inputs, strict=True)), parameters, label, None, name))


# -- the modules -----------------------------------------------------------------------------------------------


@cache
def np_functions() -> Any:
    """``mx.sym.np``."""
    from flowmx.numpy import random

    written = {*table.WRITTEN["creation"], *table.WRITTEN["shaping"]} - _OF_ARRAYS
    linalg = _Module("mx.sym.np.linalg", {*table.LINALG, *table.LINALG_WAITING}, _in_module("linalg"))
    return _Module(
        "mx.sym.np",
        {*table.CALLS, *table.RENAMED, *(table.WAITING - _OF_ARRAYS), *written},
        _function,
        linalg=linalg,
        fft=_Module("mx.sym.np.fft", table.FFT, _in_module("fft")),
        random=_Module("mx.sym.np.random", {*random.TABLE, "choice", "rand", "randn", "randint"}, _drawing),
        _Symbol=NumPySymbol,
        **table.CONSTANTS,
        **{name: np.bool_ if name in ("bool", "bool_") else getattr(np, name) for name in table.DTYPES},
    )


_OF_ARRAYS = table.names("""
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

        def function(*args: Any, **kwargs: Any) -> Any:
            made = classic.op(operator, *args, **kwargs)
            return [NumPySymbol([each]) for each in made._entries] if len(made) > 1 else as_np(made)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"The operator ``{operator}``, of symbols with NumPy's arithmetic."
        return function

    def of_image(name: str) -> Callable[..., Any]:
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
        image=_Module("mx.sym.npx.image", dir(image), of_image),
    )


def _npx_reshape(a: Symbol, newshape: Any, reverse: bool = False, order: str = "C", **kwargs: Any) -> Any:
    """The same content with another shape, by the codes of ``npx.reshape``."""
    codes = (newshape,) if isinstance(newshape, int) else tuple(newshape)
    return as_np(classic.op("_npx_reshape", a, newshape=codes, reverse=reverse, order=order, **kwargs))


# -- methods ---------------------------------------------------------------------------------------------------

_OPERANDS = (int, float, np.generic, Symbol)


def _binary(function: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
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
    made = _function(name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return made(self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"NumPySymbol.{name}"
    method.__doc__ = f"As :func:`flowmx.np.{name}` of this symbol."
    return method


for _name in sorted(table.METHODS - {*vars(NumPySymbol)}):
    setattr(NumPySymbol, _name, _method(_name))
