"""gluoncv 0.10.5: a step of training of every family in double precision, so that rounding hides no differences."""

from filling import drop_nothing, fill, flat, step
from gluoncv_networks import FAMILIES, made

HEAVY = ["alexnet", "vgg11_bn", "senet_154"]
"""Networks for which double precision would take minutes and gigabytes; others have the same layers."""


def training(name):
    """Outputs, gradients and moved averages of a step, operator by operator and hybridized."""

    def run():
        net, x = made(name)
        drop_nothing(net)
        net.cast("float64")
        results = {}
        for mode in ("imperative", "hybridized"):
            net.hybridize(mode == "hybridized")
            fill(net)
            results |= flat(step(net, [x.astype("float64")]), mode)
        return results

    return run


CASES = {name: training(name) for name in FAMILIES if name not in HEAVY}
