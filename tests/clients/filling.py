"""Equal weights and inputs for two systems, from NumPy."""

import zlib

import numpy as np


def values(name, shape, scale=1.0):
    """Random numbers that follow from a name alone, in float32."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return (random.uniform(-1, 1, shape) * scale).astype("float32")


def fill(block, inputs=()):
    """Give every parameter of a block values that follow from its place in the block; run it once where shapes wait.

    Weights are small enough for deep networks to stay finite, scales near one, variances positive.
    """
    if any(param.shape is None or 0 in param.shape for param in block.collect_params().values()):
        block(*inputs)
    for place, (name, param) in enumerate(block.collect_params().items()):
        param.set_data(_array(param, str(place), name))


def _array(param, place, name):
    import mxnet as mx

    shape = param.shape
    if name.endswith(("gamma", "running_var")):
        array = 1 + values(place, shape, 0.2)
    elif name.endswith(("beta", "running_mean", "bias")):
        array = values(place, shape, 0.1)
    elif "weight" in name:
        inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        array = values(place, shape, (3.0 / max(inputs, 1)) ** 0.5)
    else:
        return param.data()
    return mx.nd.array(array, dtype=param.dtype)


def flat(result, prefix="out"):
    """The arrays of a nested result, by name, as NumPy arrays."""
    if result is None:
        return {}
    if isinstance(result, (dict, list, tuple)):
        arrays = {}
        for key, each in sorted(result.items()) if isinstance(result, dict) else enumerate(result):
            arrays.update(flat(each, f"{prefix}.{key}"))
        return arrays
    return {prefix: result.asnumpy() if hasattr(result, "asnumpy") else np.asarray(result)}


def drop_nothing(block):
    """Disable Dropout."""
    block.apply(lambda each: setattr(each, "_rate", 0) if type(each).__name__ == "Dropout" else None)


SHAKES = 2
"""The number of times that a step of training is repeated with other roundings."""


def trained(block, inputs, loss=None, targets=()):
    """Return a block's predictions, and its outputs, gradients and BatchNorm averages in training.

    Each is computed operator by operator, and then hybridized, from the same weights. Nothing is dropped, since draws
    differ. A step of training is done twice: as ``fixed`` BatchNorm keeps to its averages, as ``trained`` it takes the
    batch's. Over few values the latter multiplies roundings, and anywhere a ReLU of nearly zero may turn the other way;
    how far that goes is seen from ``shaken0``, ``shaken1``, steps with weights that differ in their last bit.

    loss: a function of the block's outputs; without one, the mean of their squares.
    targets: what the block takes in training in addition to its inputs.
    """
    drop_nothing(block)
    results, weights = {}, {param: param.data().copy() for param in block.collect_params().values()}
    for mode in ("imperative", "hybridized"):
        block.hybridize(mode == "hybridized")
        results.update(flat(block(*inputs), f"{mode}.predicted"))
        for way in ("fixed", "trained"):
            _fix_averages(block, way == "fixed")
            block.hybridize(mode == "hybridized")  # another graph
            for shake in ["", *(f".shaken{index}" for index in range(SHAKES) if mode == "imperative")]:
                for param, weight in weights.items():
                    param.set_data(_shaken(weight, shake) if shake else weight)
                results.update(flat(step(block, inputs, loss, targets), f"{mode}.{way}{shake}"))
        for param, weight in weights.items():
            param.set_data(weight)
    return results


def _shaken(weight, name):
    import mxnet as mx

    noise = np.resize(values(name, (4099,), 2.0**-23), weight.shape)
    return weight * (1 + mx.nd.array(noise, dtype=weight.dtype)) if "float" in str(weight.dtype) else weight


def _fix_averages(block, fixed):
    """Make all BatchNorms of a block use their running averages in training, or the batch's."""
    if "use_global_stats" in getattr(block, "_kwargs", {}):
        block._kwargs["use_global_stats"] = fixed
    for each in block._children.values():
        _fix_averages(each, fixed)


def step(block, inputs, loss=None, targets=()):
    """The outputs of a block in training, gradients of its inputs and each seventh parameter, and moving averages.

    loss: a function of the block's outputs; without one, the mean of their squares.
    """
    import mxnet as mx

    copies = [x.copy() for x in inputs]
    pictures = [x for x in copies if x.ndim == 4]
    for x in pictures:
        x.attach_grad()  # MXNet moves the averages of a BatchNorm of data only where these want a gradient
    with mx.autograd.record():
        outputs = block(*copies, *targets)
        total = loss(outputs) if loss else sum((each**2).mean() for each in _arrays(outputs))
    total.backward()
    params = list(block.collect_params().values())
    return {
        "output": outputs,
        "gradient": [x.grad for x in pictures] + [p.grad() for p in params[::7] if p.grad_req != "null"],
        "running": [p.data() for p in params if "running_" in p.name][::7],
    }


def _arrays(result):
    if isinstance(result, (list, tuple)):
        return [each for part in result for each in _arrays(part)]
    return [result] if str(result.dtype).find("float") >= 0 else []
