"""Names of PyTorch's and Keras' interfaces, and what to use in flowmx, for the messages of AttributeErrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

__all__ = ["ARRAYS", "BLOCKS", "MODULES", "TRAINERS", "advice", "raise_missing"]

_PAUSE = "mx.autograd.pause(); outside of mx.autograd.record() nothing is recorded"
_RECORD = "mx.autograd.record()"
_MODE = "mx.autograd.record() for training; calls outside of it predict"
_GPU = "x.as_in_context(mx.gpu(0))"
_OVERWRITES = (
    "no call: each backward() overwrites the gradients (with grad_req='add', net.collect_params().zero_grad())"
)
_PARAMETERS = "net.collect_params()"
_SAVE, _LOAD = "net.save_parameters(file)", "net.load_parameters(file)"
_ESTIMATOR = "mx.gluon.contrib.estimator.Estimator(net, loss, trainer=trainer)"
_FIT = f"{_ESTIMATOR}.fit(data, epochs=10), or a loop with mx.autograd.record() and trainer.step()"
_CROSS_ENTROPY = "mx.gluon.loss.SoftmaxCrossEntropyLoss()"
_HYBRID = "a HybridBlock, such as gluon.nn.HybridSequential"

ARRAYS: Mapping[str, str] = {
    "add_": "x += y", "bfloat16": "x.astype('bfloat16')", "bool": "x.astype('bool')", "clamp": "x.clip(low, high)",
    "clone": "x.copy()", "contiguous": "x itself: arrays are contiguous", "cpu": "x.as_in_context(mx.cpu())",
    "cuda": _GPU, "device": "x.context", "dim": "x.ndim", "div_": "x /= y", "double": "x.astype('float64')",
    "eq": "x == y", "fill_": "x[:] = value", "float": "x.astype('float32')", "half": "x.astype('float16')",
    "int": "x.astype('int32')", "is_cuda": "x.context.device_type == 'gpu'", "long": "x.astype('int64')",
    "masked_fill": "mx.nd.where(mask, value, x)", "matmul": "mx.nd.dot(x, y), or mx.nd.batch_dot(x, y)",
    "mm": "mx.nd.dot(x, y)", "mul_": "x *= y", "numel": "x.size",
    "numpy": "x.asnumpy(), or in a coroutine (await x).asnumpy()", "permute": "x.transpose(axes)",
    "pow": "x ** y", "requires_grad": "x.attach_grad()", "requires_grad_": "x.attach_grad()",
    "scatter": "mx.nd.scatter_nd",
    "std": "mx.np, or ((x - x.mean()) ** 2).mean() ** 0.5", "sub_": "x -= y",
    "to": "x.as_in_context(mx.gpu(0)) for a device, x.astype('float16') for an element type",
    "type": "x.astype(dtype)", "unsqueeze": "x.expand_dims(axis)", "view": "x.reshape(shape)",
    "zero_": "x[:] = 0",
}  # fmt: skip
"""By attribute of arrays."""

BLOCKS: Mapping[str, str] = {
    "add": "gluon.nn.Sequential or HybridSequential, which have add()",
    "add_module": "net.register_child(block), or an attribute", "bfloat16": "net.cast('bfloat16')",
    "buffers": f"{_PARAMETERS}, whose grad_req is 'null'",
    "children": "net.apply(function), which calls it for each block",
    "compile": f"net.hybridize() to compile; the loss and the optimizer go to {_ESTIMATOR}",
    "cpu": "net.collect_params().reset_ctx(mx.cpu())", "cuda": "net.collect_params().reset_ctx(mx.gpu(0))",
    "double": "net.cast('float64')",
    "eval": _MODE, "evaluate": f"{_ESTIMATOR}.evaluate(data)", "export": _HYBRID, "fit": _FIT,
    "float": "net.cast('float32')", "get_weights": _PARAMETERS, "half": "net.cast('float16')", "infer_shape": _HYBRID,
    "load_state_dict": _LOAD, "load_weights": _LOAD, "modules": "net.apply(function), which calls it for each block",
    "named_parameters": f"{_PARAMETERS}.items()", "optimize_for": _HYBRID, "parameters": _PARAMETERS,
    "predict": "net(x)", "register_buffer": "self.params.get(name, shape=shape, grad_req='null')",
    "register_parameter": "self.params.get(name, shape=shape)",
    "requires_grad_": "net.collect_params().setattr('grad_req', 'null'), or 'write'", "save_weights": _SAVE,
    "set_weights": "param.set_data(array) for each of net.collect_params().values()",
    "state_dict": f"{_PARAMETERS}, or {_SAVE}",
    "to": "net.collect_params().reset_ctx(mx.gpu(0)) for a device, net.cast('float16') for an element type",
    "train": _MODE, "trainable_variables": _PARAMETERS, "trainable_weights": _PARAMETERS, "weights": _PARAMETERS,
    "zero_grad": _OVERWRITES,
}  # fmt: skip
"""By attribute of blocks."""

TRAINERS: Mapping[str, str] = {
    "apply_gradients": "trainer.step(batch_size)", "load_state_dict": "trainer.load_states(file)",
    "minimize": "loss.backward(); trainer.step(batch_size)",
    "param_groups": "trainer.learning_rate and set_learning_rate(); param.lr_mult and wd_mult of single parameters",
    "state_dict": "trainer.save_states(file)", "zero_grad": _OVERWRITES,
}  # fmt: skip
"""By attribute of trainers."""

_LOSSES: Mapping[str, str] = {
    "BCELoss": "mx.gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=True)",
    "BCEWithLogitsLoss": "mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()", "CategoricalCrossentropy": _CROSS_ENTROPY,
    "CrossEntropyLoss": _CROSS_ENTROPY, "MSELoss": "mx.gluon.loss.L2Loss(), which is half of it",
    "MeanSquaredError": "mx.gluon.loss.L2Loss(), which is half of it",
    "NLLLoss": "mx.gluon.loss.SoftmaxCrossEntropyLoss(from_logits=True)",
    "SmoothL1Loss": "mx.gluon.loss.HuberLoss()", "SparseCategoricalCrossentropy": _CROSS_ENTROPY,
}  # fmt: skip
_OPERATORS = ("arange", "concat", "dot", "exp", "eye", "full", "linspace", "ones", "ones_like", "split", "stack",
              "sum", "where", "zeros", "zeros_like")  # fmt: skip
_DTYPES = ("bfloat16", "float16", "float32", "float64", "int32", "int64", "int8", "uint8")

MODULES: Mapping[str, Mapping[str, str]] = {
    "flowmx": {
        **{name: f"mx.nd.{name}" for name in _OPERATORS}, **{name: f"the name {name!r}" for name in _DTYPES},
        "Module": "mx.mod.Module, or mx.gluon.Block", "Sequential": "mx.gluon.nn.Sequential()",
        "Tensor": "mx.nd.NDArray", "array": "mx.nd.array(values)", "as_tensor": "mx.nd.array(values)",
        "cat": "mx.nd.concat(x, y, dim=0)", "compile": "net.hybridize()", "cuda": "mx.gpu(0) and mx.num_gpus()",
        "device": "mx.gpu(0) or mx.cpu()", "enable_grad": _RECORD, "from_numpy": "mx.nd.array(values)",
        "inference_mode": _PAUSE, "jit": "net.hybridize()", "keras": "mx.gluon", "layers": "mx.gluon.nn",
        "load": "mx.nd.load(file), or net.load_parameters(file)", "losses": "mx.gluon.loss",
        "manual_seed": "mx.random.seed(seed)", "matmul": "mx.nd.dot(x, y)", "nn": "mx.gluon.nn", "no_grad": _PAUSE,
        "rand": "mx.nd.random.uniform(shape=shape)", "randn": "mx.nd.random.normal(shape=shape)",
        "save": "mx.nd.save(file, arrays), or net.save_parameters(file)",
        "set_grad_enabled": "mx.autograd.set_recording",
        "tensor": "mx.nd.array(values)", "vmap": "batched operators, such as mx.nd.batch_dot",
    },
    "flowmx.autograd": {
        "enable_grad": _RECORD, "inference_mode": _PAUSE, "no_grad": _PAUSE,
        "set_grad_enabled": "mx.autograd.set_recording",
    },
    "flowmx.gluon": {"Module": "mx.gluon.Block", "DataLoader": "mx.gluon.data.DataLoader"},
    "flowmx.gluon.data": {
        "ConcatDataset": "mx.gluon.data.SimpleDataset(list(a) + list(b))",
        "Subset": "dataset.take(n) or dataset.sample(s)",
        "TensorDataset": "mx.gluon.data.ArrayDataset(x, y)",
    },
    "flowmx.gluon.loss": _LOSSES,
    "flowmx.gluon.nn": {
        **_LOSSES, "LogSoftmax": "mx.nd.log_softmax(x)", "ReLU": "gluon.nn.Activation('relu')",
        "Sigmoid": "gluon.nn.Activation('sigmoid')", "Softmax": "mx.nd.softmax(x)",
        "Tanh": "gluon.nn.Activation('tanh')",
    },
    "flowmx.lr_scheduler": {
        "CosineAnnealingLR": "CosineScheduler(max_update)", "ExponentialLR": "FactorScheduler(step, factor)",
        "LambdaLR": "a subclass of LRScheduler with rate()", "MultiStepLR": "MultiFactorScheduler(steps, factor)",
        "OneCycleLR": "OneCycleScheduler(max_update)", "StepLR": "FactorScheduler(step, factor)",
    },
    "flowmx.ndarray": {
        "enable_grad": _RECORD, "from_torch": "mx.nd.from_dlpack(tensor)", "no_grad": _PAUSE,
        "rand": "mx.nd.random.uniform(shape=shape)", "randn": "mx.nd.random.normal(shape=shape)",
        "tensor": "mx.nd.array(values)", "Tensor": "mx.nd.NDArray",
    },
}  # fmt: skip
"""By module, then by its attribute."""


def advice(table: Mapping[str, str], name: str) -> str:
    """Return the end of a message, ``": use x.reshape(shape)"``, or "" for other names."""
    return f": use {table[name]}" if name in table else ""


def raise_missing(owner: object, name: str, table: Mapping[str, str]) -> NoReturn:
    """Raise the AttributeError of an attribute that an object lacks; for its ``__getattr__``.

    Raises:
        AttributeError: always; if a property of the class has failed with one, that of the property.
    """
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)  # a property, which raises its own error again
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in table:
        raise AttributeError(f"{text}{advice(table, name)}", name=name)
    raise AttributeError(text, name=name, obj=owner)
