"""Runners, which run a network's steps and record all results: Gluon, an executor, a module.

A record has an array of float64 for each name, such as ``0 train: gradient of 1.weight``.
"""

import tempfile
from pathlib import Path

import numpy as np

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.ops.registry.dtypes import as_dtype
from tests.modes import lots
from tests.modes import network as networks
from tests.modes.network import structure, value

UPDATES = ("train", "twice")


def rounded(values, dtype):
    """Round numbers to a dtype."""
    return np.asarray(values, as_dtype(dtype)).astype(np.float64)


def flat(nested):
    """Flatten nested lists."""
    return [each for part in nested for each in flat(part)] if isinstance(nested, (list, tuple)) else [nested]


def read(array):
    """Read an array from any device as float64."""
    return array.asnumpy().astype(np.float64)


class Runner:
    """Runner of a network's steps.

    Args:
        network: the network.
        mode: how.
        grid: the dtype whose numbers inputs and parameters are.
        wrap: what changes the block before it is called.
    """

    def __init__(self, network, mode, grid, wrap=None):
        self.network, self.mode, self.grid, self.wrap = network, mode, grid, wrap
        self.contexts = networks.contexts(mode.devices)
        self.record = {}

    def run(self):
        """Run all steps; returns the record."""
        self.start()
        for number, step in enumerate(self.network.steps):
            if step.kind not in self.mode.leaves_out:
                self.name = f"{number} {step.kind}"
                for context in self.contexts:
                    mx.random.seed(1000 + number, ctx=context)
                self.step(step, number)
        self.name = "end"
        for name, array in self.state().items():
            self.keep(name, array)
        return self.record

    def step(self, step, number):
        """Run one step."""
        self.mode.begin(self, number)
        batches = [self.batch(step.batch, number, 0)]
        if step.kind == "twice":
            batches.append(self.batch(step.batch + 1, number, 1))
        if step.kind in ("predict", "observe"):
            self.keep_all("output", self.predict(batches[0], step.kind == "observe"))
            return
        self.differentiate(batches, step.kind != "frozen")
        if step.kind in UPDATES:
            self.update()

    def keep(self, what, array):
        """Record an array."""
        self.record[f"{self.name}: {what}"] = array

    def keep_all(self, what, arrays):
        """Record arrays by number."""
        for index, array in enumerate(arrays):
            self.keep(f"{what} {index}", array)

    def batch(self, size, number, which):
        """Draw the values of all inputs."""
        results = []
        for index, each in enumerate(self.network.inputs):
            random = np.random.default_rng([self.network.seed, number, which, index])
            results.append(rounded(each.draw(random, size), self.grid))
        return results

    def head(self, shape, *index):
        """Draw the gradient of an output, by the numbers of batch, output and (for a scalar) device."""
        seed = [self.network.seed, *self.name.encode(), *index]
        return rounded(np.random.default_rng(seed).standard_normal(shape), self.grid)

    def dtype_of(self, which):
        """Return the dtype of an input."""
        return self.network.inputs[which].dtype or self.mode.dtype

    def array(self, values, context, which):
        """Create an input's array."""
        return mx.nd.array(values, context, self.dtype_of(which))

    def fill(self, net):
        """Set a block's parameters; every third is skipped if the network says so."""
        for number, (name, param) in enumerate(net._collect_params_with_prefix().items()):
            if isinstance(param, gluon.Constant):
                continue
            results = rounded(value(name, param.shape, self.network.seed), self.grid)
            if name.endswith("gamma") and param.grad_req == "null":
                results = np.ones_like(results)  # a BatchNorm that has no scale sets it to 1, in some modes
            param.set_data(mx.nd.array(results, dtype=param.dtype))
            if param.grad_req != "null":
                still = self.network.request == "some" and number % 3 == 0
                param.grad_req = "null" if still else "add" if self.network.request == "add" else "write"


class Gluon(Runner):
    """A block, on one or several devices, imperative, hybridized or imported."""

    def start(self):
        """Create the block."""
        net = self.network.make()
        if self.wrap is not None:
            self.wrap(net)
        if self.mode.dtype != "float32":
            net.cast(self.mode.dtype)
        first = self.batch(self.network.steps[0].batch, 0, 0)
        feed = [self.array(values, self.contexts[0], which) for which, values in enumerate(first)]
        self.mode.prepare(net, self.network)
        networks.initialize(net, self.contexts, feed)
        self.names = structure(net)
        self.fill(net)
        self.net = self.imported(net, feed) if self.mode.imported else net
        self.params = {self.names[name]: param for name, param in self.net.collect_params().items()}
        name, arguments = self.network.optimizer
        self.trainer = gluon.Trainer(self.net.collect_params(), name, dict(arguments))

    def imported(self, net, feed):
        """Export the block to files and import it."""
        requests = {name: param.grad_req for name, param in net.collect_params().items()}
        if not net._active:
            net.hybridize()
            net(*feed)
        names = ["data"] if len(feed) == 1 else [f"data{index}" for index in range(len(feed))]
        with tempfile.TemporaryDirectory() as folder:
            files = net.export(Path(folder) / "net")
            results = gluon.SymbolBlock.imports(files[0], names, files[1], ctx=self.contexts)
        for name, param in results.collect_params().items():
            param.grad_req = requests[name]
        self.mode.prepare(results, self.network)
        return results

    def split(self, values, before=0):
        """Split a batch for the devices, into views of arrays with ``before`` more rows at the start."""
        cuts = np.round(np.linspace(0, len(values[0]), len(self.contexts) + 1)).astype(int)  # as a module does
        parts = []
        for device, context in enumerate(self.contexts):
            rows = [each[cuts[device] : cuts[device + 1]] for each in values]
            longer = [np.concatenate([each[:1]] * before + [each]) for each in rows]
            parts.append([self.array(each, context, which)[before:] for which, each in enumerate(longer)])
        return parts

    def predict(self, values, train):
        """Return the outputs for a batch whose arrays are views."""
        with autograd.train_mode() if train else autograd.predict_mode():
            return self.joined([flat(self.net(*feed)) for feed in self.split(values, 1)])

    def joined(self, parts):
        """Concatenate arrays from several devices."""
        results = [[read(each) for each in row] for row in zip(*parts, strict=True)]
        return [np.concatenate(row) if row[0].ndim else np.stack(row) for row in results]

    def heads(self, outputs, which):
        """Draw the gradients of the outputs on all devices."""
        results = []
        for index, row in enumerate(zip(*outputs, strict=True)):
            if not row[0].ndim:
                results.append([self.head((), which, index, device) for device in range(len(row))])
                continue
            whole = self.head((sum(map(len, row)), *row[0].shape[1:]), which, index)
            results.append(np.split(whole, np.cumsum([len(each) for each in row])[:-1]))
        return [
            [mx.nd.array(each, out.context, out.dtype) for each, out in zip(row, outs, strict=True)]
            for row, outs in zip(zip(*results, strict=True), outputs, strict=True)
        ]

    def differentiate(self, batches, train):
        """Record the outputs of batches, and all gradients."""
        parts = [self.split(values) for values in batches]
        for feed in parts:
            self.attach(feed)
        with autograd.record(train_mode=train):
            outputs = [[flat(self.net(*feed)) for feed in each] for each in parts]
        heads = [self.heads(each, which) for which, each in enumerate(outputs)]
        autograd.backward(flat(outputs), flat(heads))
        for which, (feed, results) in enumerate(zip(parts, outputs, strict=True)):
            self.keep_all(f"batch {which}, output", self.joined(results))
            for index, each in enumerate(self.network.inputs):
                if each.kind == "normal":
                    grads = [[row[index].grad] for row in feed]
                    self.keep(f"batch {which}, gradient of input {index}", self.joined(grads)[0])
        for name, param in self.params.items():
            if param.grad_req != "null":
                self.keep(f"gradient of {name}", sum(map(read, param.list_grad())))

    def attach(self, parts):
        """Attach gradients to the inputs."""
        for feed in parts:
            for each, array in zip(self.network.inputs, feed, strict=True):
                if each.kind == "normal":
                    array.attach_grad()

    def update(self):
        """Update the parameters."""
        self.trainer.step(1, ignore_stale_grad=True)

    def state(self):
        """Return the parameters and running averages."""
        return {
            name: sum(map(read, param.list_data())) / len(self.contexts) for name, param in self.params.items()
        }  # fmt: skip


class Symbolic(Runner):
    """Base class of runners of a block's symbol."""

    def start(self):
        """Compose the symbol, and bind it."""
        net = self.network.make()
        if self.mode.dtype != "float32":
            net.cast(self.mode.dtype)
        first = self.batch(self.network.steps[0].batch, 0, 0)
        networks.initialize(net, [mx.cpu()], [self.array(v, mx.cpu(), i) for i, v in enumerate(first)])
        self.fill(net)
        self.names = structure(net)
        self.inputs = [f"data{index}" for index in range(len(first))]
        outputs = net(*[mx.sym.var(name) for name in self.inputs])
        self.symbol = mx.sym.load_json(mx.sym.Group(flat(outputs)).tojson())
        params = net.collect_params()
        self.requests = {name: param.grad_req for name, param in params.items()}
        self.args = {name: params[name].data() for name in self.symbol.list_arguments() if name in params}
        self.aux = {name: params[name].data() for name in self.symbol.list_auxiliary_states()}
        if self.mode.partitioned:
            self.symbol = self.symbol.optimize_for(args=self.args, aux=self.aux, **lots.options(self.network))
        self.bind([values.shape for values in first])

    def heads(self, outputs, which):
        """Draw the gradients of the outputs."""
        results = []
        for index, out in enumerate(outputs):
            head = self.head(out.shape, which, index, *(() if out.ndim else (0,)))
            results.append(mx.nd.array(head, out.context, out.dtype))
        return results

    def differentiate(self, batches, train):
        """Record the outputs of batches, and all gradients, batch by batch."""
        totals = {}
        for which, values in enumerate(batches):
            outputs, inputs, params = self.pass_through(values, which)
            self.keep_all(f"batch {which}, output", [read(each) for each in outputs])
            for index, each in enumerate(self.network.inputs):
                if each.kind == "normal":
                    self.keep(f"batch {which}, gradient of input {index}", read(inputs[index]))
            add = self.network.request == "add"
            for name, grad in params.items():
                totals[name] = grad + totals[name] if name in totals and not add else grad.copy()
        for name, grad in totals.items():
            self.keep(f"gradient of {self.names[name]}", read(grad))
        self.totals = totals


class Bound(Symbolic):
    """An executor for training, and one for prediction with the same parameters."""

    def bind(self, shapes):
        """Bind the symbol for inputs of these shapes."""
        self.requests |= {
            name: "write" if each.kind == "normal" else "null"
            for name, each in zip(self.inputs, self.network.inputs, strict=True)
        }
        types = {name: self.dtype_of(which) for which, name in enumerate(self.inputs)}
        feed = dict(zip(self.inputs, shapes, strict=True))
        requests = {name: self.requests[name] for name in self.symbol.list_arguments()}
        self.executor = self.symbol.simple_bind(self.contexts[0], grad_req=requests, type_dict=types, **feed)
        self.executor.copy_params_from(self.args, self.aux)
        name, arguments = self.network.optimizer
        self.updater = mx.optimizer.get_updater(mx.optimizer.create(name, **arguments))

    def predict(self, values, train):
        arrays = {name: self.array(values[i], self.contexts[0], i) for i, name in enumerate(self.inputs)}
        params = {name: self.executor.arg_dict[name] for name in self.args}
        bound = self.symbol.bind(
            self.contexts[0], args=params | arrays, aux_states=self.executor.aux_dict, grad_req="null"
        )
        return [read(each) for each in bound.forward(is_train=train)]

    def pass_through(self, values, which):
        """A forward and a backward pass; returns the outputs and the gradients of inputs and parameters."""
        feed = {name: self.array(values[i], self.contexts[0], i) for i, name in enumerate(self.inputs)}
        self.reshape({name: each.shape for name, each in feed.items()})
        outputs = self.both_passes(feed, which)
        grads = self.executor.grad_dict
        return outputs, [grads[name] for name in self.inputs], {n: grads[n] for n in self.args if grads[n] is not None}

    def reshape(self, shapes):
        """Bind for other input shapes."""
        self.executor = self.executor.reshape(partial_shaping=True, allow_up_sizing=True, **shapes)

    def both_passes(self, feed, which):
        """Enqueue both passes; returns the outputs."""
        outputs = self.executor.forward(is_train=True, **feed)
        self.executor.backward(self.heads(outputs, which))
        return outputs

    def update(self):
        for number, (name, grad) in enumerate(self.totals.items()):
            self.updater(number, grad, self.executor.arg_dict[name])

    def state(self):
        results = {**self.executor.arg_dict, **self.executor.aux_dict}
        return {self.names[name]: read(results[name]) for name in (*self.args, *self.aux)}


class Joint(Bound):
    """An executor that runs both passes as one operation, in a fraction of the memory."""

    def bind(self, shapes):
        super().bind(shapes)
        self.reshape(dict(zip(self.inputs, shapes, strict=True)))

    def reshape(self, shapes):
        """Bind for other input shapes, in the first sufficient fraction of the memory."""
        super().reshape(shapes)
        plain = self.executor
        for part in self.mode.budgets:
            budget = max(1, int(part * plain.internal_bytes()))
            try:
                with mx.engine.using(exec_memory_budget=budget):
                    self.executor = plain.reshape(partial_shaping=True, allow_up_sizing=True, **shapes)
                    assert self.planned() <= budget
                return
            except mx.errors.BudgetError:
                self.executor = plain

    def planned(self):
        """Return the bytes of internal values."""
        return self.executor.internal_bytes()

    def both_passes(self, feed, which):
        return self.executor.forward_backward(self.heads(self.executor.outputs, which), **feed)


class Apart(Joint):
    """The same with separate forward and backward operations."""

    def planned(self):
        return self.executor._mode(True).plan.internal_bytes()

    def both_passes(self, feed, which):
        return Bound.both_passes(self, feed, which)


class Module(Symbolic):
    """A module, on one device or several."""

    def bind(self, shapes):
        """Bind a module for inputs of these shapes."""
        kinds = {name: each.kind == "normal" for name, each in zip(self.inputs, self.network.inputs, strict=True)}
        self.data = [name for name in self.inputs if kinds[name]] or self.inputs
        self.labels = [name for name in self.inputs if name not in self.data]
        still = [name for name in self.args if self.requests[name] == "null"]
        requests = dict.fromkeys(self.args, "add" if self.network.request == "add" else "write")
        requests |= dict.fromkeys(self.inputs, "write")
        self.module = mx.mod.Module(
            self.symbol, self.data, self.labels, context=self.contexts, fixed_param_names=still
        )  # fmt: skip
        described = {
            name: mx.io.DataDesc(name, shape, self.dtype_of(which))
            for which, (name, shape) in enumerate(zip(self.inputs, shapes, strict=True))
        }
        self.module.bind(
            [described[name] for name in self.data], [described[name] for name in self.labels] or None,
            inputs_need_grad=any(kinds.values()), grad_req=requests,
        )  # fmt: skip
        self.module.init_params(arg_params=self.args, aux_params=self.aux)
        name, arguments = self.network.optimizer
        self.module.init_optimizer(optimizer=name, optimizer_params={**arguments, "rescale_grad": 1.0})

    def data_batch(self, values):
        """Return a batch for a module."""
        arrays = {name: self.array(values[i], mx.cpu(), i) for i, name in enumerate(self.inputs)}
        return mx.io.DataBatch([arrays[name] for name in self.data], [arrays[name] for name in self.labels] or None)

    def predict(self, values, train):
        self.module.forward(self.data_batch(values), is_train=train)
        return [read(each) for each in self.module.get_outputs()]

    def pass_through(self, values, which):
        """A forward and a backward pass; returns the outputs and the gradients of inputs and parameters."""
        self.module.forward(self.data_batch(values), is_train=True)
        outputs = self.module.get_outputs()
        self.module.backward(self.heads(outputs, which))
        inputs = {}
        if self.module.inputs_need_grad:
            inputs = dict(zip(self.data, self.module.get_input_grads(), strict=True))
        differentiable = [name for name in self.args if self.requests[name] != "null"]
        params = {}
        for name in differentiable:
            first, *others = self.module._group.gradients(name)
            params[name] = sum((each.as_in_context(first.context) for each in others), start=first)
        return outputs, [inputs.get(name) for name in self.inputs], params

    def update(self):
        self.module.update()

    def state(self):
        # The mean over the devices; running averages inside loops are arguments, of which a module takes the first.
        arrays_of_devices = {name: self.module._group.on_devices(name) for name in (*self.args, *self.aux)}
        return {self.names[name]: sum(map(read, arrays)) / len(arrays) for name, arrays in arrays_of_devices.items()}
