"""Random programs for GPUs: their functions take arrays of CuPy, or of its stand-in."""

import numpy as np

from tests.programs import Flow


def flow_on(cp):
    """:class:`tests.programs.Flow` for the arrays of a module."""

    class GpuFlow(Flow):
        @staticmethod
        def opened(array):
            return array.raw()

        @staticmethod
        def last(array):
            return np.float32(array.reshape(-1)[-1].get())

        @staticmethod
        def draw(generator, target):
            target[...] = cp.asarray(generator.random(target.shape, np.float32))

    return GpuFlow
