"""Random programs for GPUs: their functions work on arrays of CuPy, or of what stands for it."""

import numpy as np

from tests.programs import Flow


def flow_on(cp):
    """:class:`tests.programs.Flow` for the arrays of a module."""

    class GpuFlow(Flow):
        @staticmethod
        def opened(array):
            return array._read()

        @staticmethod
        def last(array):
            return np.float32(array.reshape(-1)[-1].get())

        @staticmethod
        def draw(generator, target):
            target[...] = cp.asarray(generator.random(target.shape, np.float32))

    return GpuFlow
