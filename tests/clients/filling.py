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
        found = 1 + values(place, shape, 0.2)
    elif name.endswith(("beta", "running_mean", "bias")):
        found = values(place, shape, 0.1)
    elif "weight" in name:
        inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        found = values(place, shape, (3.0 / max(inputs, 1)) ** 0.5)
    else:
        return param.data()
    return mx.nd.array(found, dtype=param.dtype)


def flat(result, prefix="out"):
    """The arrays of a nested result, by name, as NumPy arrays."""
    if result is None:
        return {}
    if isinstance(result, dict):
        result = [result[key] for key in sorted(result)]
    if isinstance(result, (list, tuple)):
        found = {}
        for index, each in enumerate(result):
            found.update(flat(each, f"{prefix}.{index}"))
        return found
    return {prefix: result.asnumpy() if hasattr(result, "asnumpy") else np.asarray(result)}


def trained(block, inputs):
    """The outputs of a block in prediction and in training, and gradients of their mean squares in prediction.

    Each is computed operator by operator, and then hybridized. Nothing is dropped, since draws differ; gradients are
    those of prediction, since with so small a batch those of BatchNorm tell of rounding alone.
    """
    import mxnet as mx

    block.apply(lambda each: setattr(each, "_rate", 0) if isinstance(each, mx.gluon.nn.Dropout) else None)
    found = {}
    for mode in ("imperative", "hybridized"):
        if mode == "hybridized":
            block.hybridize()
        with mx.autograd.record(train_mode=False):
            outputs = block(*inputs)
            loss = sum((each.astype("float32") ** 2).mean() for each in _arrays(outputs))
        loss.backward()
        found.update(flat(outputs, f"{mode}.predicted"))
        for place, param in enumerate(block.collect_params().values()):
            if param.grad_req != "null" and place % 7 == 0:  # each seventh tells enough, and all take gigabytes
                found[f"{mode}.gradient.{place}"] = param.grad().asnumpy()
        with mx.autograd.record():
            outputs = block(*inputs)
            loss = sum(each.astype("float32").sum() for each in _arrays(outputs))
        loss.backward()  # MXNet moves BatchNorm's averages in the backward pass
        found.update(flat(outputs, f"{mode}.trained"))
    return found


def _arrays(result):
    if isinstance(result, (list, tuple)):
        return [each for part in result for each in _arrays(part)]
    return [result] if str(result.dtype).find("float") >= 0 else []
