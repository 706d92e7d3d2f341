"""Arrays of the stand-in for CuPy: NumPy's functions, put on the current stream to be done later.

Shapes and dtypes are known at once, as NumPy gives them for zeros; what needs values (a mask, ``float``) waits.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np

from tests.cupy_stand_in.machine import Machine, cuda

_BASIC = (int, np.integer, slice, type(Ellipsis), type(None))
_READ = (
    "sum", "mean", "max", "min", "prod", "argmax", "argmin", "round", "clip", "take", "cumsum", "all", "any", "repeat",
)  # fmt: skip


def _span(shape, strides, itemsize):
    """Return the numbers of bytes that an array spans before its first element, and from there on."""
    if 0 in shape:
        return 0, 0
    ways = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return -sum(way for way in ways if way < 0), itemsize + sum(way for way in ways if way > 0)


class _Where:
    """An argument of queued work: an address, which keeps nothing alive."""

    def __init__(self, machine, array):
        self.machine = machine
        self.place = array.data.ptr, array.shape, array.dtype, array.strides

    def content(self):
        address, shape, dtype, strides = self.place
        before, after = _span(shape, strides, dtype.itemsize)
        if after:
            self.machine.owner(address - before)
            self.machine.owner(address + after - 1)
        return _host(address, shape, dtype, strides)


def _host(address, shape, dtype, strides):
    before, after = _span(shape, strides, dtype.itemsize)
    memory = (ctypes.c_char * max(1, before + after)).from_address(address - before)
    return np.ndarray(shape, dtype, memory, before, strides)


def make(machine: Machine):
    """Make a module that replaces ``cupy`` on a machine."""

    def seen(value, read):
        if isinstance(value, ndarray):
            return read(value)
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")
        if isinstance(value, (list, tuple)):
            return type(value)([seen(each, read) for each in value])
        return value

    def zeros_like(array):
        return np.zeros(array.shape, array.dtype)

    def wait():
        machine.waits()
        machine.finish_all(machine.here.device)
        machine.check(machine.here.device)

    def call(function, args, kwargs, outs=None):
        """Put a function on the current stream; return the arrays of its future results."""
        if outs is None:
            with np.errstate(all="ignore"):
                shapes = function(*seen(args, zeros_like), **seen_all(kwargs, zeros_like))
            several = isinstance(shapes, (tuple, list))
            outs = [ndarray(np.shape(each), np.asarray(each).dtype) for each in (shapes if several else (shapes,))]
        else:
            several = len(outs) > 1
        where = [_Where(machine, each) for each in outs]
        args, kwargs = seen(tuple(args), at), seen_all(kwargs, at)

        def work():
            results = function(*opened(args), **opened(kwargs))
            results = results if isinstance(results, (tuple, list)) else (results,)
            for place, result in zip(where, results, strict=True):
                np.copyto(place.content(), result, casting="unsafe")

        machine.put(machine.current(), work)
        return outs if several or not outs else outs[0]

    def at(array):
        return _Where(machine, array)

    def seen_all(kwargs, read):
        return {name: seen(value, read) for name, value in kwargs.items()}

    def opened(value):
        if isinstance(value, _Where):
            return value.content()
        if isinstance(value, dict):
            return {name: opened(each) for name, each in value.items()}
        return type(value)([opened(each) for each in value]) if isinstance(value, (list, tuple)) else value

    class ndarray(np.lib.mixins.NDArrayOperatorsMixin):  # noqa: N801
        def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
            self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
            self.dtype = np.dtype(dtype)
            self.size = int(np.prod(self.shape, dtype=np.int64))
            self.ndim, self.itemsize = len(self.shape), self.dtype.itemsize
            self.nbytes = self.size * self.itemsize
            self.data = namespace.cuda.alloc(self.nbytes) if memptr is None else memptr
            self.strides = self._dense() if strides is None else tuple(strides)
            self.flags = SimpleNamespace(c_contiguous=self._shown().flags.c_contiguous)

        def _dense(self):
            strides, step = [], self.itemsize
            for length in reversed(self.shape):
                strides.append(step)
                step *= max(1, length)
            return tuple(reversed(strides))

        def _shown(self):
            """Return the memory of the array; its content may not be computed yet, so it must not be read."""
            return _host(self.data.ptr, self.shape, self.dtype, self.strides)

        def _like(self, shown):
            offset = shown.ctypes.data - self.data.ptr if shown.size else 0
            return ndarray(shown.shape, shown.dtype, self.data + offset, shown.strides)

        __array__ = None

        def __array_ufunc__(self, ufunc, method, *args, out=None, **kwargs):
            function = getattr(ufunc, method)
            return call(function, args, kwargs, None if out is None else list(out))

        def __array_function__(self, function, types, args, kwargs):
            return getattr(namespace, function.__name__)(*args, **kwargs)

        def __getitem__(self, key):
            parts = key if isinstance(key, tuple) else (key,)
            if all(isinstance(part, _BASIC) for part in parts):
                parts = parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)
                return self._like(self._shown()[parts])
            if any(isinstance(part, ndarray) and part.dtype == bool for part in parts):
                wait()
            return call(lambda array, *index: array[index], (self, *parts), {})

        def __setitem__(self, key, value):
            def assign(target, value, *index):
                target[index] = value
                return ()

            parts = key if isinstance(key, tuple) else (key,)
            call(assign, (self, value, *parts), {}, [])

        def reshape(self, *shape):
            shown = self._shown().reshape(*shape)
            if np.shares_memory(shown, self._shown()) or not self.size:
                return self._like(shown)
            return call(lambda array: array.reshape(*shape), (self,), {})

        def view(self, dtype):
            return self._like(self._shown().view(dtype))

        def transpose(self, *axes):
            return self._like(self._shown().transpose(*axes))

        def swapaxes(self, one, other):
            return self._like(self._shown().swapaxes(one, other))

        T = property(transpose)

        def ravel(self):
            return self.reshape(-1)

        def astype(self, dtype, copy=True):
            return call(lambda array: array.astype(dtype), (self,), {})

        def copy(self, order="C"):
            return call(np.copy, (self,), {})

        def fill(self, value):
            self[...] = value

        def get(self, stream=None):
            wait()
            return self._shown().copy()

        def set(self, arr, stream=None):
            wait()
            self._shown()[...] = arr

        def item(self):
            return self.get().item()

        def tolist(self):
            return self.get().tolist()

        def __float__(self):
            return float(self.item())

        def __int__(self):
            return int(self.item())

        def __bool__(self):
            return bool(self.item())

        def __len__(self):
            return self.shape[0]

        def __getattr__(self, name):
            if name not in _READ:
                raise AttributeError(name)
            return lambda *args, **kwargs: getattr(namespace, name)(self, *args, **kwargs)

    def as_strided(x, shape=None, strides=None):
        return ndarray(shape, x.dtype, x.data, strides)

    class Namespace:
        """``cupy``: NumPy's names."""

        def __init__(self):
            self.ndarray = ndarray
            self.cuda = cuda(machine)
            self.machine = machine
            self.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=as_strided))
            self.random = SimpleNamespace(Generator=Generator, Philox4x3210=Philox4x3210)

        def __getattr__(self, name):
            attribute = getattr(np, name)
            if isinstance(attribute, type) or not callable(attribute):
                return attribute

            def function(*args, out=None, **kwargs):
                if isinstance(attribute, np.ufunc) and len(args) > attribute.nin:
                    args, out = args[: attribute.nin], args[attribute.nin :]
                outs = None if out is None else list(out) if isinstance(out, tuple) else [out]
                if outs is not None and isinstance(attribute, np.ufunc):
                    kwargs["casting"] = "unsafe"
                return call(attribute, args, kwargs, outs)

            return function

        def copyto(self, dst, src, casting="same_kind"):
            shape = dst.shape
            call(lambda value: np.broadcast_to(value, shape), (src,), {}, [dst])

        def empty(self, shape, dtype=float):
            return ndarray(shape, dtype)

        def ascontiguousarray(self, array, dtype=None):
            return array if array.flags.c_contiguous else array.copy()

        def asarray(self, source, dtype=None):
            if isinstance(source, ndarray):
                return source if dtype in (None, source.dtype) else source.astype(dtype)
            source = np.asarray(source, dtype)
            array = ndarray(source.shape, source.dtype)
            pinned = self.cuda.alloc_pinned_memory(max(1, source.nbytes))
            np.frombuffer(pinned, np.uint8)[: source.nbytes] = source.reshape(-1).view(np.uint8)
            array.data.copy_from_host_async(pinned.ptr, source.nbytes)
            sources.append(pinned)
            return array

        array = asarray

        def get_default_pinned_memory_pool(self):
            return self.cuda.PinnedMemoryPool()

    class Philox4x3210:
        def __init__(self, seed, size=-1):
            self.seed = seed
            self.state = ndarray((1,), np.int64)
            self.state[...] = 0

    class Generator:
        """A generator whose state lives and advances on the device."""

        def __init__(self, bits):
            self.bits = bits

        def _draw(self, name, size, dtype):
            seed = self.bits.seed

            def draw(out, state):
                state += 1
                out[...] = getattr(np.random.Generator(np.random.SFC64([seed, int(state[0])])), name)(out.shape, dtype)
                return ()

            out = ndarray(size, dtype)
            call(draw, (out, self.bits.state), {}, [])
            return out

        def random(self, size=None, dtype=np.float64):
            return self._draw("random", size, dtype)

        def standard_normal(self, size=None, dtype=np.float64):
            return self._draw("standard_normal", size, dtype)

        def standard_exponential(self, size=None, dtype=np.float64):
            return self._draw("standard_exponential", size, dtype)

    sources: list[object] = []
    namespace = Namespace()
    return namespace
