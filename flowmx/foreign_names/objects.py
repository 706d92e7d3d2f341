"""Attributes of PyTorch's and Keras' arrays, models and optimizers, and their equivalents in flowmx."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ARRAYS", "BLOCKS", "ENABLE_GRAD", "MODULE_OBJECTS", "NO_GRAD", "PARAMETERS", "TRAINERS"]

NO_GRAD = "mx.autograd.pause(); outside mx.autograd.record() nothing is recorded"
ENABLE_GRAD = "mx.autograd.record()"
_MODE = "mx.autograd.record() for training; calls outside it predict"
_GPU = "x.as_in_context(mx.gpu(0))"
_OVERWRITES = (
    "no call: each backward() overwrites the gradients (with grad_req='add', net.collect_params().zero_grad())"
)
_COLLECT = "net.collect_params()"
_SAVE, _LOAD = "net.save_parameters(file)", "net.load_parameters(file)"
_ESTIMATOR = "mx.gluon.contrib.estimator.Estimator(net, loss, trainer=trainer)"
_FIT = f"{_ESTIMATOR}.fit(data, epochs=10), or a loop with mx.autograd.record() and trainer.step()"
_HYBRID = "a HybridBlock, such as gluon.nn.HybridSequential"

ARRAYS: Mapping[str, str] = {
    "backward_": "x.backward()", "bmm": "mx.nd.batch_dot(x, y)", "byte": "x.astype('uint8')",
    "char": "x.astype('int8')", "chunk": "x.split(num_outputs, axis)", "clamp_": "x[:] = x.clip(low, high)",
    "copy_": "x[:] = y", "cumsum": "mx.nd.cumsum(x, axis)", "data": "x.detach()", "detach_": "x.detach()",
    "element_size": "x.dtype.itemsize", "equal": "(x == y).asnumpy().all()", "expand": "x.broadcast_to(shape)",
    "gather": "mx.nd.pick(x, index, axis), or mx.nd.gather_nd", "ge": "x >= y", "get_shape": "x.shape",
    "grad_fn": "the tape, which mx.autograd.record() writes", "gt": "x > y",
    "index_select": "x.take(index, axis)", "is_contiguous": "x itself: arrays are contiguous",
    "isnan": "mx.nd.contrib.isnan(x)", "le": "x <= y", "logical_not": "mx.nd.logical_not(x)", "lt": "x < y",
    "masked_fill_": "x[:] = mx.nd.where(mask, value, x)", "masked_select": "mx.nd.contrib.boolean_mask(x, mask)",
    "nelement": "x.size", "ndimension": "x.ndim", "new_zeros": "mx.nd.zeros(shape, x.context, x.dtype)",
    "nonzero": "mx.np.nonzero", "normal_": "x[:] = mx.nd.random.normal(shape=x.shape)",
    "pin_memory": "x.as_in_context(mx.cpu_pinned())", "ravel": "x.reshape(-1)", "relu_": "x[:] = x.relu()",
    "repeat_interleave": "x.repeat(repeats, axis)", "reshape_as": "x.reshape_like(y)",
    "scatter_": "mx.nd.scatter_nd", "set_shape": "x.reshape(shape)", "short": "x.astype('int16')",
    "t": "x.T", "tensor": "x itself", "type_as": "x.astype(y.dtype)", "unbind": "list(x)",
    "uniform_": "x[:] = mx.nd.random.uniform(shape=x.shape)", "unsqueeze_": "x.expand_dims(axis)",
    "var": "mx.np, or ((x - x.mean()) ** 2).mean()", "view_as": "x.reshape_like(y)", "where": "mx.nd.where(mask, x, y)",
    "is_leaf": "x.grad is not None", "retain_grad": "x.attach_grad(), before the computation that uses x",
    "register_hook": "net.register_forward_hook(function), or mx.autograd.Function for gradients",
    "eval": "x.asnumpy(), or await x", "assign": "x[:] = value",
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
    "append": "net.add(block)", "extend": "net.add(*blocks)", "insert": "a new Sequential: add() appends",
    "pop": "a new Sequential with net[:-1]", "build": "net.initialize(), and a first call for the shapes",
    "call": "forward(self, x), which calls of the block use", "compute_output_shape": "net.summary(x)",
    "fit_generator": _FIT, "train_on_batch": _FIT, "get_layer": "net[index], or the block's attribute",
    "get_parameter": f"{_COLLECT}[name]", "inputs": "net.summary(x)", "output": "net.summary(x)",
    "outputs": "net.summary(x)", "layers": "list(net)", "metrics": "mx.metric, or the metrics of an Estimator",
    "named_children": "net.apply(function), which calls it for each block",
    "named_modules": "net.apply(function), which calls it for each block",
    "non_trainable_weights": f"{_COLLECT}, whose grad_req is 'null'",
    "optimizer": "mx.gluon.Trainer(net.collect_params(), 'adam')",
    "predict_classes": "net(x).argmax(axis=1)", "predict_proba": "mx.nd.softmax(net(x))",
    "register_full_backward_hook": "mx.autograd.Function", "register_module": "net.register_child(block)",
    "reset_parameters": "net.initialize(force_reinit=True)", "requires_grad": "param.grad_req of its parameters",
    "share_memory": "params=other.params in the constructor, to share parameters",
    "to_empty": "net.collect_params().reset_ctx(ctx)", "trainable": "net.collect_params().setattr('grad_req', 'null')",
    "training": "mx.autograd.is_training()", "type": "net.cast(dtype)",
    "add": "gluon.nn.Sequential or HybridSequential, which have add()",
    "add_module": "net.register_child(block), or an attribute", "bfloat16": "net.cast('bfloat16')",
    "buffers": f"{_COLLECT}, whose grad_req is 'null'",
    "children": "net.apply(function), which calls it for each block",
    "compile": f"net.hybridize() to compile; the loss and the optimizer go to {_ESTIMATOR}",
    "cpu": "net.collect_params().reset_ctx(mx.cpu())", "cuda": "net.collect_params().reset_ctx(mx.gpu(0))",
    "double": "net.cast('float64')",
    "eval": _MODE, "evaluate": f"{_ESTIMATOR}.evaluate(data)", "export": _HYBRID, "fit": _FIT,
    "float": "net.cast('float32')", "get_weights": _COLLECT, "half": "net.cast('float16')", "infer_shape": _HYBRID,
    "load_state_dict": _LOAD, "load_weights": _LOAD, "modules": "net.apply(function), which calls it for each block",
    "named_parameters": f"{_COLLECT}.items()", "optimize_for": _HYBRID, "parameters": _COLLECT,
    "predict": "net(x)", "register_buffer": "self.params.get(name, shape=shape, grad_req='null')",
    "register_parameter": "self.params.get(name, shape=shape)",
    "requires_grad_": "net.collect_params().setattr('grad_req', 'null'), or 'write'", "save_weights": _SAVE,
    "set_weights": "param.set_data(array) for each of net.collect_params().values()",
    "state_dict": f"{_COLLECT}, or {_SAVE}",
    "to": "net.collect_params().reset_ctx(mx.gpu(0)) for a device, net.cast('float16') for an element type",
    "train": _MODE, "trainable_variables": _COLLECT, "trainable_weights": _COLLECT, "weights": _COLLECT,
    "zero_grad": _OVERWRITES,
}  # fmt: skip
"""By attribute of blocks."""

TRAINERS: Mapping[str, str] = {
    "add_param_group": "another mx.gluon.Trainer, or param.lr_mult",
    "clip_gradients": "mx.gluon.utils.clip_global_norm(arrays, max_norm), or the option clip_gradient of the optimizer",
    "compile": _FIT, "fit": _FIT, "get_lr": "trainer.learning_rate", "learning_rates": "trainer.learning_rate",
    "load": "trainer.load_states(file)", "lr": "trainer.learning_rate", "parameters": "net.collect_params()",
    "save": "trainer.save_states(file)", "set_lr": "trainer.set_learning_rate(rate)",
    "state": "trainer.save_states(file)", "train": _FIT,
    "apply_gradients": "trainer.step(batch_size)", "load_state_dict": "trainer.load_states(file)",
    "minimize": "loss.backward(); trainer.step(batch_size)",
    "param_groups": "trainer.learning_rate and set_learning_rate(); param.lr_mult and wd_mult of single parameters",
    "state_dict": "trainer.save_states(file)", "zero_grad": _OVERWRITES,
}  # fmt: skip
"""By attribute of trainers."""

PARAMETERS: Mapping[str, str] = {
    "assign": "param.set_data(array)", "asnumpy": "param.data().asnumpy()", "bias": "the block's attribute bias",
    "copy_": "param.set_data(array)", "cpu": "param.reset_ctx(mx.cpu())", "cuda": "param.reset_ctx(mx.gpu(0))",
    "detach": "param.data()", "fill_": "param.set_data(array)", "item": "param.data().asscalar()",
    "mean": "param.data().mean()", "numpy": "param.data().asnumpy()",
    "requires_grad": "param.grad_req, which is 'write', 'add' or 'null'",
    "requires_grad_": "param.grad_req = 'null', or 'write'", "size": "param.shape, or param.data().size",
    "sum": "param.data().sum()", "to": "param.reset_ctx(mx.gpu(0)), or param.cast('float16')",
    "value": "param.data()", "weight": "the block's attribute weight",
    "zero_": "param.set_data(mx.nd.zeros(param.shape))",
}  # fmt: skip
"""By attribute of parameters."""

MODULE_OBJECTS: Mapping[str, str] = {
    "compile": "mod.bind(data_shapes), init_params() and init_optimizer(); or mod.fit(iterator), which calls them",
    "cpu": "mx.mod.Module(symbol, context=mx.cpu())", "cuda": "mx.mod.Module(symbol, context=mx.gpu(0))",
    "eval": "mod.forward(batch, is_train=False)", "evaluate": "mod.score(iterator, metric)",
    "hybridize": "nothing: modules are compiled", "initialize": "mod.init_params(initializer)",
    "load_state_dict": "mod.set_params(arg_params, aux_params)", "parameters": "mod.get_params()",
    "save": "mod.save_checkpoint(prefix, epoch)", "state_dict": "mod.get_params()", "step": "mod.update()",
    "summary": "mx.viz.print_summary(symbol)", "to": "mx.mod.Module(symbol, context=mx.gpu(0))",
    "train": "mod.fit(iterator), or mod.forward(batch, is_train=True)",
    "zero_grad": "no call: each backward() overwrites the gradients",
}  # fmt: skip
"""By attribute of modules (``mx.mod``)."""
