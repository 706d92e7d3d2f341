"""An error that the device reports late. It makes CUDA unusable, so the test runs in a separate process."""

import subprocess
import sys
import textwrap

PROGRAM = """
    import cupy
    import flowmx as mx
    from flowmx.errors import DeviceError

    bad = cupy.RawKernel('extern "C" __global__ void bad(float* x) { x[1ull << 40] = 1; }', "bad")
    a = mx.nd.ones((4,), ctx=mx.gpu(0))
    a.wait_to_read()
    mx.engine.push(lambda: bad((1,), (1,), (a.raw(),)), writes=[a], device=mx.gpu(0), name="breaking")
    try:
        (a * 2).asnumpy()
    except DeviceError as error:
        print("raised:", error, error.__notes__)
    try:
        mx.nd.ones((4,), ctx=mx.gpu(0)).asnumpy()
    except DeviceError:
        print("refused")
    print("cpu:", (mx.nd.ones(3) + 1).asnumpy().sum())
"""


def test_a_device_error_is_reported_and_the_cpu_still_works():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "raised: gpu(0) failed" in done.stdout and "CUDA_LAUNCH_BLOCKING" in done.stdout, done.stdout + done.stderr
    assert "breaking" in done.stdout and "refused" in done.stdout and "cpu: 6.0" in done.stdout
    assert done.returncode == 0, done.stderr
