"""``mx.rtc``: CUDA C++ kernels, compiled at run time by NVRTC through CuPy, and launched on arrays.

Example:
    >>> module = mx.rtc.CudaModule(r'''
    ... extern "C" __global__ void axpy(const float *x, float *y, float alpha) {
    ...     int i = threadIdx.x + blockIdx.x * blockDim.x;
    ...     y[i] += alpha * x[i];
    ... }''')
    >>> axpy = module.get_kernel("axpy", "const float *x, float *y, float alpha")
    >>> axpy.launch([x, y, 3.0], mx.gpu(0), (1, 1, 1), (10, 1, 1))

A launch is enqueued like any operation and ordered with the other operations on its arrays. It is not differentiable.
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
from flowmx.ndarray import recorded_writes, recording
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import BaseArray, push_on
from flowmx.ops.registry.dtypes import DType, name_of

__all__ = ["CudaKernel", "CudaModule"]

_DTYPES: dict[str, DType] = {
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
        text: its declaration in the signature.
        dtype: dtype of the array or number.
        is_array: whether it is an array.
        is_read_only: whether it is declared ``const``.
    """

    text: str
    dtype: DType
    is_array: bool
    is_read_only: bool


class CudaModule:
    """A compiled CUDA C++ module.

    Args:
        source: the source. Kernels are declared ``extern "C"``, or listed in ``exports``.
        options: NVRTC flags such as ``-I/usr/local/cuda/include``; a sequence, or a single str.
        exports: names of kernels without ``extern "C"``, such as templates: ``axpy<float>``.

    Raises:
        DeviceError: there is no GPU, or CuPy is missing.
        MXNetError: the compilation failed; the message has the compiler's output.
    """

    def __init__(self, source: str, options: Sequence[str] = (), exports: Sequence[str] = ()) -> None:
        device = _first_gpu()
        flags = (options,) if isinstance(options, str) else tuple(options)
        names = (exports,) if isinstance(exports, str) else tuple(exports)
        if names and not any("-std=" in flag for flag in flags):
            flags = (*flags, _STANDARD)  # CuPy requires it for exports
        try:
            with device.as_current():
                self._module = device.xp.RawModule(code=source, options=flags, name_expressions=names or None)
                self._module.compile()
        except Exception as error:  # CuPy raises errors of many kinds
            raise MXNetError(f"CudaModule: the compilation failed: {error}") from error

    def get_kernel(self, name: str, signature: str) -> CudaKernel:
        """Return a kernel of the module.

        Args:
            name: its name, as in ``exports`` if it is exported.
            signature: its arguments in C, such as ``"const float *x, double *y, int alpha"``; names are optional. ``*``
                marks arrays, ``const`` marks read-only arrays.

        Raises:
            ValueError: an argument is malformed.
            TypeError: the type of an argument is not supported.
            MXNetError: the module has no such kernel.
        """
        arguments = [_parse_argument(text) for text in signature.split(",")]
        try:
            with _first_gpu().as_current():
                function = self._module.get_function(name)
        except Exception as error:  # CuPy raises errors of many kinds
            raise MXNetError(
                f'get_kernel: the module has no kernel {name!r} ({error}): declare it extern "C", or list it in exports'
            ) from error
        return CudaKernel(function, name, arguments)


class CudaKernel:
    """A kernel, returned by :meth:`CudaModule.get_kernel`.

    Args:
        function: CuPy's kernel.
        name: its name.
        arguments: its arguments.
    """

    def __init__(self, function: Callable[..., None], name: str, arguments: Sequence[_Argument]) -> None:
        self._function = function
        self._name = name
        self._arguments = arguments

    def launch(
        self, args: Sequence[object], ctx: Context, grid_dims: Sequence[Any], block_dims: Sequence[Any],
        shared_mem: int = 0,
    ) -> None:  # fmt: skip
        """Enqueue a launch.

        Args:
            args: the arguments: arrays for ``*`` in the signature, otherwise numbers.
            ctx: the GPU of the arrays.
            grid_dims: three ints, the numbers of blocks.
            block_dims: three ints, the numbers of threads per block.
            shared_mem: the size of dynamic shared memory per block, in bytes.

        Raises:
            ArgumentError, ArgumentTypeError: the arguments do not match the signature.
            DeviceError: an array is on another device.
        """
        if ctx.device_type != "gpu":
            raise ArgumentError(
                f"launch: ctx is {ctx}, expected a GPU such as mx.gpu(0): CUDA kernels run only on GPUs"
            )
        for name, dims in (("grid_dims", grid_dims), ("block_dims", block_dims)):
            if len(dims) != 3 or not all(isinstance(size, (int, np.integer)) and size > 0 for size in dims):
                raise ArgumentError(f"launch: {name} is {dims!r}, expected three positive ints")
        if len(args) != len(self._arguments):
            raise ArgumentError(
                f"launch: {self._name} received {len(args)} arguments, expected {len(self._arguments)}: "
                + ", ".join(argument.text for argument in self._arguments)
            )
        values = [
            _convert(self._name, index, value, argument, ctx)
            for index, (value, argument) in enumerate(zip(args, self._arguments, strict=True))
        ]
        pairs = [*zip(values, self._arguments, strict=True)]
        arrays = [(value, argument) for value, argument in pairs if isinstance(value, BaseArray)]
        written = [array for array, argument in arrays if not argument.is_read_only]
        if recording.state.get().recording:  # the tape treats the results of kernels as constants
            for array in written:
                recorded_writes.record_constant(array, self._name)
        device = devices.get(ctx)
        push_on(
            device,
            self._run,
            (values, tuple(map(int, grid_dims)), tuple(map(int, block_dims)), int(shared_mem)),
            tuple([array.storage for array, _ in arrays]),
            tuple([array.storage for array in written]),
            self._name,
        )

    def _run(self, values: Sequence[object], grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> None:
        raw = [
            value
            if not isinstance(value, BaseArray)
            else value.raw()
            if argument.is_read_only
            else value.raw_for_writing()
            for value, argument in zip(values, self._arguments, strict=True)
        ]
        self._function(grid, block, tuple(raw), shared_mem=shared_mem)


def _parse_argument(text: str) -> _Argument:
    """Parse an argument of a signature."""
    plain = " ".join(text.split())
    match = _ARGUMENT.fullmatch(plain)
    if match is None or match[2] == "const":
        raise ValueError(f'get_kernel: an argument is "{plain}", expected "[const] type [*] [name]"')
    if match[2] not in _DTYPES:
        raise TypeError(f'get_kernel: the type of "{plain}" is {match[2]}, expected one of {", ".join(_DTYPES)}')
    return _Argument(plain, _DTYPES[match[2]], bool(match[3]), bool(match[1]))


def _convert(name: str, index: int, value: object, argument: _Argument, ctx: Context) -> Any:
    """Check an argument of a launch, and convert numbers to their dtype."""
    label = f"launch: argument {index} of {name} ({argument.text})"
    if argument.is_array:
        if not isinstance(value, NDArray) or value.stype != "default":
            raise ArgumentTypeError(f"{label} is {type(value).__name__}, expected a dense array")
        if value.element_type != argument.dtype:
            raise ArgumentTypeError(
                f"{label} has dtype {name_of(value.element_type)}, expected {name_of(argument.dtype)}"
            )
        if value.context != ctx:
            raise DeviceError(f"{label} is on {value.context}, expected {ctx}; copy it with as_in_context")
        return value
    if not isinstance(value, (numbers.Real, np.generic)):
        raise ArgumentTypeError(f"{label} is {type(value).__name__}, expected a number")
    try:
        number = argument.dtype.type(value)
    except OverflowError as error:
        raise ArgumentError(f"{label} is {value}: {error}") from None
    if argument.dtype.kind in "iu" and number != value:
        raise ArgumentError(f"{label} is {value}, expected an integer in the range of {name_of(argument.dtype)}")
    return number


def _first_gpu() -> Any:
    """Return the device ``gpu(0)``.

    Raises:
        DeviceError: the device does not exist, or is simulated.
    """
    device: Any = devices.get(Context("gpu", 0))
    if not hasattr(device, "as_current"):
        raise DeviceError(f"rtc: {device} is simulated and cannot run CUDA kernels")
    return device
