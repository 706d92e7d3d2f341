"""The real MXNet, in a separate environment, as the reference for comparisons."""

import os


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that runs MXNet.

    Graphs stay as they are written; and no threads wait for each other in a loop, on cores that compute other tests.
    """
    return {**os.environ, "MXNET_SUBGRAPH_BACKEND": "NONE", "OMP_NUM_THREADS": "1", **more}
