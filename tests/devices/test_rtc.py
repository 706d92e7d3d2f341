"""``mx.rtc`` on the stand-in for CuPy: sources in CUDA C++ are compiled by g++ and run thread by thread."""

import ctypes
import itertools
import subprocess

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import DeviceError, MXNetError
from tests.cupy_stand_in import compiled
from tests.cupy_stand_in.standing import standing

AXPY = """
extern "C" __global__ void axpy(const float *x, float *y, float alpha) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    y[i] += alpha * x[i];
}
"""
TEMPLATE = """
template<typename DType>
__global__ void scale(DType *x, int64_t by, int8_t less) {
    x[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * blockIdx.z)] *= (DType)(by - less);
}
"""
_C = {"f4": ctypes.c_float, "f8": ctypes.c_double, "i1": ctypes.c_int8, "i4": ctypes.c_int32, "i8": ctypes.c_int64}
needs_compiler = pytest.mark.skipif(compiled.COMPILER is None, reason="there is no g++ to compile kernels with")


def raw_module(cp, folder):
    """``RawModule`` of the stand-in ``cp``, for kernels without barriers."""

    class RawModule:
        compilations = 0

        def __init__(self, code, options=(), name_expressions=None):
            self.code, self.options, self.names = code, options, name_expressions or ()
            if self.names and not any("-std=c++" in option for option in options):
                raise ValueError("need to specify C++ standard for name expressions")

        def compile(self):
            RawModule.compilations += 1
            source = folder / f"{RawModule.compilations}.cc"
            places = [
                f'extern "C" void* export{at}() {{ return (void*)&{name}; }}' for at, name in enumerate(self.names)
            ]
            copies = [
                f"memcpy(&{name}, at + {3 * at}, 12);"
                for at, name in enumerate(("blockIdx", "threadIdx", "gridDim", "blockDim"))
            ]
            where = f'extern "C" void place(const unsigned* at) {{ {" ".join(copies)} }}'
            source.write_text("\n".join([compiled.SHIM, self.code, *places, where]))
            command = ["g++", "-std=c++17", "-w", "-fPIC", "-shared", source, "-o", source.with_suffix(".so")]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            self.library = ctypes.CDLL(str(source.with_suffix(".so")))

        def get_function(self, name):
            if name in self.names:
                export = getattr(self.library, f"export{self.names.index(name)}")
                export.restype = ctypes.c_void_p
                run = ctypes.CFUNCTYPE(None)(export())
            elif name in self.code.replace("(", " ").split() and 'extern "C"' in self.code:
                run = getattr(self.library, name)
            else:
                raise RuntimeError("named symbol not found")
            address = ctypes.cast(run, ctypes.c_void_p).value

            def launch(grid, block, args, shared_mem=0):
                assert shared_mem in (0, 64)
                kinds, values = [], []
                for each in args:
                    if isinstance(each, cp.ndarray):
                        assert each.flags.c_contiguous
                        kinds.append(ctypes.c_void_p)
                        values.append(each.data.ptr)
                    else:
                        assert isinstance(each, np.generic)
                        kinds.append(_C[each.dtype.str[1:]])
                        values.append(each.item())
                kernel = ctypes.CFUNCTYPE(None, *kinds)(address)

                def work():
                    for bz, by, bx, tz, ty, tx in itertools.product(*map(range, (*grid[::-1], *block[::-1]))):
                        self.library.place((ctypes.c_uint * 12)(bx, by, bz, tx, ty, tz, *grid, *block))
                        kernel(*values)

                cp.machine.put(cp.machine.current(), work)

            return launch

    return RawModule


@pytest.fixture(params=["at launch", "adversarial timing"])
def gpus(request, tmp_path):
    with standing(2, streams=2, seed=None if request.param == "at launch" else 3) as stand_in:
        stand_in.cp.RawModule = raw_module(stand_in.cp, tmp_path)
        yield stand_in


@needs_compiler
def test_a_kernel_is_an_operation_among_others(gpus):
    axpy = mx.rtc.CudaModule(AXPY).get_kernel("axpy", "const float *x, float *y, float alpha")
    for number in range(2):
        gpu = mx.gpu(number)
        x, y = mx.nd.arange(12, ctx=gpu), mx.nd.zeros((3, 4), gpu)
        for _ in range(5):
            x += 1
            axpy.launch([x, y, 3.0], gpu, (3, 1, 1), (4, 1, 1))
            y *= 2
        expected = np.zeros(12, np.float32)
        for step in range(1, 6):
            expected = 2 * (expected + 3 * (np.arange(12, dtype=np.float32) + step))
        np.testing.assert_array_equal(y.asnumpy().ravel(), expected)
        axpy.launch((x[2:6], y[1], np.float64(-1)), gpu, (1, 1, 1), (4, 1, 1), 64)  # parts of arrays
        np.testing.assert_array_equal(y.asnumpy()[1], expected[4:8] - np.arange(7, 11))
        np.testing.assert_array_equal(y.asnumpy()[[0, 2]].ravel(), expected[[0, 1, 2, 3, 8, 9, 10, 11]])


@needs_compiler
def test_templates_are_exported_by_name(gpus):
    module = mx.rtc.CudaModule(TEMPLATE, exports=["scale<float>", "scale<double>"])
    for name, dtype in (("float", "float32"), ("double", "float64")):
        scale = module.get_kernel(f"scale<{name}>", f"{name} *, int64_t  by,int8_t")
        x = mx.nd.arange(24, ctx=mx.gpu(0), dtype=dtype)
        scale.launch([x, 2**40, 3], mx.gpu(0), (1, 1, 2), (3, 4, 1))
        np.testing.assert_array_equal(x.asnumpy(), (np.arange(24, dtype=dtype) * np.dtype(dtype).type(2**40 - 3)))


@needs_compiler
def test_outputs_of_a_kernel_have_no_gradient(gpus):
    axpy = mx.rtc.CudaModule(AXPY, "-w").get_kernel("axpy", "const float *x, float *y, float alpha")
    x = mx.nd.ones((4,), mx.gpu(0))
    x.attach_grad()
    with mx.autograd.record():
        y = x * 2
        axpy.launch([x, y, 1.0], mx.gpu(0), (1, 1, 1), (4, 1, 1))
        z = y + x
    z.backward()
    np.testing.assert_array_equal(z.asnumpy(), np.full(4, 4))
    np.testing.assert_array_equal(x.grad.asnumpy(), np.ones(4))


@needs_compiler
def test_refuses(gpus):
    with pytest.raises(MXNetError, match=r"the compilation failed: [\s\S]*expected"):
        mx.rtc.CudaModule("void f( {")
    module = mx.rtc.CudaModule(AXPY)
    with pytest.raises(MXNetError, match=r"no kernel 'other' .*extern"):
        module.get_kernel("other", "int")
    for signature, error in [
        ("const const *x", ValueError),
        ("float **x", ValueError),
        ("const", ValueError),
        ("", ValueError),
        ("bool x", TypeError),
    ]:
        with pytest.raises(error, match="get_kernel: "):
            module.get_kernel("axpy", signature)
    axpy = module.get_kernel("axpy", "const float *x, float *y, int alpha")
    gpu, one = mx.gpu(0), (1, 1, 1)
    x = mx.nd.ones((4,), gpu)
    for args, ctx, grid, block, error, says in [
        ([x, x, 1], mx.cpu(), one, one, AssertionError, "expected a GPU"),
        ([x, x, 1], gpu, (1, 1), one, AssertionError, "grid_dims is"),
        ([x, x, 1], gpu, one, (0, 1, 1), AssertionError, "block_dims is"),
        ([x, x], gpu, one, one, AssertionError, "2 arguments, expected 3: const float"),
        ([1.0, x, 1], gpu, one, one, TypeError, "is float, expected a dense array"),
        ([x, x.astype("float64"), 1], gpu, one, one, TypeError, "dtype float64, expected float32"),
        ([x, x, x], gpu, one, one, TypeError, "expected a number"),
        ([x, x, 1.5], gpu, one, one, ValueError, "expected an integer in the range"),
        ([x, x, 1 << 40], gpu, one, one, ValueError, "out of bounds"),
        ([x, mx.nd.ones((4,)), 1], gpu, one, one, DeviceError, r"is on cpu\(0\), expected gpu\(0\)"),
    ]:
        with pytest.raises(error, match=says):
            axpy.launch(args, ctx, grid, block)


@pytest.mark.skipif(mx.num_gpus() > 0, reason="there is a GPU")
def test_without_a_gpu_the_error_says_so():
    with pytest.raises(DeviceError, match="this machine has no GPU"):
        mx.rtc.CudaModule(AXPY)
