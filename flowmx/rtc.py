"""``mx.rtc``: kernels in CUDA C++, compiled at run time by NVRTC through CuPy, and launched on arrays.

Example:
    >>> module = mx.rtc.CudaModule(r'''
    ... extern "C" __global__ void axpy(const float *x, float *y, float alpha) {
    ...     int i = threadIdx.x + blockIdx.x * blockDim.x;
    ...     y[i] += alpha * x[i];
    ... }''')
    >>> axpy = module.get_kernel("axpy", "const float *x, float *y, float alpha")
    >>> axpy.launch([x, y, 3.0], mx.gpu(0), (1, 1, 1), (10, 1, 1))

A launch is enqueued as any operation: it waits for what writes its arrays, and what reads them waits for it. No
gradient flows through it.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx import devices
from flowmx.devices import Context
from flowmx.errors import ArgumentError, ArgumentTypeError, DeviceError, MXNetError
from flowmx.ndarray import recording, writing
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import BaseArray, push_on
from flowmx.ops.registry.dtypes import name_of

__all__ = ["CudaKernel", "CudaModule"]

_DTYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "__half": np.dtype(np.float16),
    "uint8_t": np.dtype(np.uint8),
    "int": np.dtype(np.int32),
    "int32_t": np.dtype(np.int32),
    "int8_t": np.dtype(np.int8),
    "char": np.dtype(np.int8),
    "int64_t": np.dtype(np.int64),
}
_ARGUMENT = re.compile(r"(const )?\s*(\w+)\s*(\*)?\s*(\w+)?")
_STANDARD = "-std=c++17"


class _Argument(NamedTuple):
    """An argument of a kernel.

    Attributes:
        text: how the signature declares it.
        dtype: of the array's elements, or of the number.
        is_array: whether it is an array.
        is_read_only: whether it is declared ``const``.
    """

    text: str
    dtype: np.dtype[Any]
    is_array: bool
    is_read_only: bool


class CudaModule:
    """A source in CUDA C++, compiled.

    Args:
        source: the source. Kernels are declared ``extern "C"``, or named in ``exports``.
        options: flags of NVRTC, as ``-I/usr/local/cuda/include``; one may be given by itself.
        exports: names of kernels without ``extern "C"``, as of templates: ``axpy<float>``.

    Raises:
        DeviceError: there is no GPU here, or CuPy is missing.
        MXNetError: the source does not compile; the message has the compiler's.
    """

    def __init__(self, source: str, options: Sequence[str] = (), exports: Sequence[str] = ()) -> None:
        device = _first_gpu()
        flags = (options,) if isinstance(options, str) else tuple(options)
        names = (exports,) if isinstance(exports, str) else tuple(exports)
        if names and not any("-std=" in flag for flag in flags):
            flags = (*flags, _STANDARD)  # without which CuPy exports none
        try:
            with device.selected():
                self._module = device.xp.RawModule(code=source, options=flags, name_expressions=names or None)
                self._module.compile()
        except Exception as error:
            raise MXNetError(f"CudaModule: the source could not be compiled: {error}") from error

    def get_kernel(self, name: str, signature: str) -> CudaKernel:
        """A kernel of the source, by its name.

        Args:
            name: its name, as in ``exports`` where it stands there.
            signature: its arguments in C, as ``"const float *x, double *y, int alpha"``; their names may be left out.
                A ``*`` marks arrays, ``const`` those that are only read.

        Raises:
            ValueError: an argument has another form.
            TypeError: an argument has a type that arrays and numbers here have not.
            MXNetError: the source has no such kernel.
        """
        arguments = [_read(text) for text in signature.split(",")]
        try:
            with _first_gpu().selected():
                function = self._module.get_function(name)
        except Exception as error:
            raise MXNetError(
                f'get_kernel: the module has no kernel {name!r} ({error}): declare it extern "C", or name it in exports'
            ) from error
        return CudaKernel(function, name, arguments)


class CudaKernel:
    """A kernel, made by :meth:`CudaModule.get_kernel`.

    Args:
        function: CuPy's.
        name: its name.
        arguments: what it takes.
    """

    def __init__(self, function: Callable[..., None], name: str, arguments: Sequence[_Argument]) -> None:
        self._function = function
        self._name = name
        self._arguments = arguments

    def launch(
        self, args: Sequence[Any], ctx: Context, grid_dims: Sequence[Any], block_dims: Sequence[Any],
        shared_mem: int = 0,
    ) -> None:  # fmt: skip
        """Enqueue a launch.

        Args:
            args: the arguments: arrays where the signature has a ``*``, numbers elsewhere.
            ctx: the GPU, on which the arrays are.
            grid_dims: three ints, the numbers of blocks.
            block_dims: three ints, the numbers of threads in a block.
            shared_mem: bytes of dynamic shared memory in a block.

        Raises:
            ArgumentError, ArgumentTypeError: the arguments are not those of the signature.
            DeviceError: an array is on another device.
        """
        if ctx.device_type != "gpu":
            raise ArgumentError(f"launch: ctx is {ctx}, expected a GPU, as mx.gpu(0): kernels of CUDA run there alone")
        for what, dims in (("grid_dims", grid_dims), ("block_dims", block_dims)):
            if len(dims) != 3 or not all(isinstance(each, (int, np.integer)) and each > 0 for each in dims):
                raise ArgumentError(f"launch: {what} is {dims!r}, expected three ints of at least 1")
        if len(args) != len(self._arguments):
            raise ArgumentError(
                f"launch: {self._name} was given {len(args)} arguments, expected {len(self._arguments)}: "
                + ", ".join(each.text for each in self._arguments)
            )
        given = [
            _checked(self._name, at, value, argument, ctx)
            for at, (value, argument) in enumerate(zip(args, self._arguments, strict=True))
        ]
        pairs = [*zip(given, self._arguments, strict=True)]
        arrays = [(each, argument) for each, argument in pairs if isinstance(each, BaseArray)]
        written = [each for each, argument in arrays if not argument.is_read_only]
        if recording.state.get().recording:  # what a kernel writes is a constant to the tape
            for each in written:
                writing.record_constant(each, self._name)
        device = devices.get(ctx)
        push_on(
            device,
            self._launched,
            (given, tuple(map(int, grid_dims)), tuple(map(int, block_dims)), int(shared_mem)),
            tuple([each._storage for each, _ in arrays]),
            tuple([each._storage for each in written]),
            self._name,
        )

    def _launched(self, given: Sequence[Any], grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> None:
        raw = [
            each if not isinstance(each, BaseArray) else each._read() if argument.is_read_only else each._written()
            for each, argument in zip(given, self._arguments, strict=True)
        ]
        self._function(grid, block, tuple(raw), shared_mem=shared_mem)


def _read(text: str) -> _Argument:
    """An argument of a signature."""
    plain = " ".join(text.split())
    found = _ARGUMENT.fullmatch(plain)
    if found is None or found[2] == "const":
        raise ValueError(f'get_kernel: an argument is "{plain}", expected "[const] type [*] [name]"')
    if found[2] not in _DTYPES:
        raise TypeError(f'get_kernel: the type of "{plain}" is {found[2]}, expected one of {", ".join(_DTYPES)}')
    return _Argument(plain, _DTYPES[found[2]], bool(found[3]), bool(found[1]))


def _checked(name: str, at: int, value: Any, argument: _Argument, ctx: Context) -> Any:
    """An argument of a launch as the kernel takes it: an array, or a number of the dtype."""
    what = f"launch: argument {at} of {name} ({argument.text})"
    if argument.is_array:
        if not isinstance(value, NDArray) or value.stype != "default":
            raise ArgumentTypeError(f"{what} is {type(value).__name__}, expected a dense array")
        if value._dtype != argument.dtype:
            raise ArgumentTypeError(f"{what} has dtype {name_of(value._dtype)}, expected {name_of(argument.dtype)}")
        if value.context != ctx:
            raise DeviceError(f"{what} is on {value.context}, expected {ctx}; bring it there with as_in_context")
        return value
    if not isinstance(value, (numbers.Real, np.generic)):
        raise ArgumentTypeError(f"{what} is {type(value).__name__}, expected a number")
    try:
        made = argument.dtype.type(value)
    except OverflowError as error:
        raise ArgumentError(f"{what} is {value}: {error}") from None
    if argument.dtype.kind in "iu" and made != value:
        raise ArgumentError(f"{what} is {value}, expected a whole number that {name_of(argument.dtype)} has")
    return made


def _first_gpu() -> Any:
    """The device ``gpu(0)``.

    Raises:
        DeviceError: there is none, or it only simulates one.
    """
    device: Any = devices.get(Context("gpu", 0))
    if not hasattr(device, "selected"):
        raise DeviceError(f"rtc: {device} is simulated, and runs no kernels of CUDA")
    return device
