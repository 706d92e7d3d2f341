"""Compare the oracle with PyTorch, in an environment with PyTorch and NumPy; flowmx is not imported.

    python -m tests.tape.under_torch [programs] [seed]

PyTorch refuses some programs that flowmx takes, and knows no gradient where flowmx writes zeros: those are no
differences.
"""

import sys
from collections import Counter

import numpy as np
import torch

from tests.tape.generate import make
from tests.tape.statements import key_of

FUNCTIONS = {
    "BlockGrad": lambda x: x.detach().clone(), "identity": torch.clone, "softsign": torch.nn.functional.softsign,
    "hard_sigmoid": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1), "radians": torch.deg2rad,
    "logical_not": lambda x: (x == 0).to(x.dtype),
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "greater": lambda a, b: (a > b).to(a.dtype),
}  # fmt: skip
SCALAR = {
    "{0} + {1}": lambda x, n: x + n, "{0} * {1}": lambda x, n: x * n, "{1} - {0}": lambda x, n: n - x,
    "{0} ** 2": lambda x, n: x**2, "{0} > {1}": lambda x, n: (x > n).to(x.dtype),
    "nd.clip({0}, -{2}, {2})": lambda x, n: torch.clamp(x, -abs(n), abs(n)),
    "nd.maximum({0}, {1})": lambda x, n: torch.clamp(x, min=n),
}  # fmt: skip
MOVES = {
    "nd.sum({0}, axis=0, keepdims=True)": lambda x: x.sum(0, keepdim=True), "{0}.sum()": lambda x: x.sum().reshape(1),
    "{0}.mean()": lambda x: x.mean().reshape(1),
    "nd.transpose({0})": lambda x: x.permute(*range(x.ndim)[::-1]).contiguous().clone(),
    "nd.flip({0}, axis=0)": lambda x: x.flip(0), "nd.reshape({0}, shape=(-1,))": lambda x: x.reshape(-1).clone(),
    "nd.expand_dims({0}, axis=0)": lambda x: x[None].clone(), "{0}.copy()": torch.clone,
    "nd.slice_axis({0}, axis=0, begin=0, end=1)": lambda x: x[:1].clone(),
    "nd.concat({0}, {0}, dim=0)": lambda x: torch.cat([x, x]), "nd.tile({0}, reps=(2,))": lambda x: x.tile(2),
}  # fmt: skip
DTYPES = {"float32": torch.float64, "float64": torch.float64, "int32": torch.int32}  # floats alike: no rounding


class Cube(torch.autograd.Function):  # type: ignore[misc]
    """x² with a multiple of its gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x

    @staticmethod
    def backward(ctx, head):
        return 2 * ctx.factor * ctx.saved_tensors[0] * head, None


class Different(Exception):
    """PyTorch has no equivalent."""


class Machine:
    """Interpreter of statements with PyTorch."""

    def __init__(self, world):
        self.handles = world.handles
        self.names, self.buffers, self.requests, self.seen, self.scopes = {}, {}, {}, [], []
        self.variables = []
        """All tensors ever created, so that ids stay unique."""

    def run(self, statement):
        with torch.set_grad_enabled(self.recording):
            result = getattr(self, statement.kind)(*statement.args)
            if statement.kind == "move" and "as_in_context" in statement.args[0]:
                a = statement.args[1]
                result = self.names[a] if self.handles[a] is self.handles[statement.out] else self.names[a].clone()
        if statement.out and result is not None:
            self.names[statement.out] = result

    @property
    def recording(self):
        return next((each == "record" for each in reversed(self.scopes) if each in ("record", "pause")), False)

    def value(self, b):
        return self.names[b] if isinstance(b, str) else torch.tensor(b, dtype=torch.float64)

    def key(self, text):
        key = key_of(text)
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(each, slice) and (each.step or 1) < 0 for each in parts):
            raise Different  # no negative strides
        return tuple(torch.from_numpy(np.array(e)).to(torch.bool if e.dtype == bool else torch.int64)
                     if isinstance(e, np.ndarray) else e for e in parts)  # fmt: skip

    def array(self, values, dtype, device):
        return torch.tensor(values, dtype=DTYPES[dtype])

    def unary(self, name, a):
        return FUNCTIONS.get(name, getattr(torch, name, None))(self.names[a])

    def softmax(self, a):
        return torch.softmax(self.names[a], -1)

    def binary(self, name, a, b):
        return BINARY[name](self.names[a], self.names[b])

    def scalar(self, template, a, number):
        return SCALAR[template](self.names[a], number)

    def move(self, template, a):
        if template.startswith("nd.take"):
            return self.names[a][[0, 0]]
        return MOVES[template](self.names[a]) if template in MOVES else None

    def join(self, a, b):
        return torch.cat([self.names[a], self.names[b]])

    def dot(self, a, b):
        return self.names[a] @ self.names[b]

    def where(self, a, b, c):
        return torch.where(self.names[a] != 0, self.names[b], self.names[c])

    def view(self, a, key):
        result = self.names[a][self.key(key)]
        result = result if result.is_contiguous() else result.clone()
        return result if result.ndim else result[None]

    def reshape(self, a, shape):
        return self.names[a].view(shape)

    def gather(self, a, key):
        return self.names[a][self.key(key)]

    def detach(self, a):
        return self.names[a].detach()

    def cast(self, a, dtype):
        return self.names[a].clone().to(DTYPES[dtype])

    def bring(self, a, device):
        return self.names[a].clone()

    def assign(self, a, key, b):
        part = self.names[a][self.key(key)] if key else self.names[a]
        value = self.value(b)
        part.copy_(value.reshape(value.shape[max(0, value.ndim - part.ndim) :]))

    def choose(self, a, key, b):
        key = self.key(key)
        for each in key:
            if isinstance(each, torch.Tensor) and each.dtype != torch.bool and len(each.unique()) < each.numel():
                raise Different  # which one stays is left open there
        self.names[a][key] = self.value(b).to(self.names[a].dtype)

    def update(self, template, a, b):
        x, other = self.names[a], self.value(b)
        getattr(x, {"+=": "add_", "-=": "sub_", "*=": "mul_", "/=": "div_"}[template])(other)

    def into(self, name, a, b, out):
        self.names[out].copy_(self.binary(name, a, b) if b else self.unary(name, a))

    def copyto(self, a, b):
        self.names[b].copy_(self.names[a])

    def slice_assign(self, a, begin, end, b):
        self.names[a][begin:end].copy_(self.names[b])

    def mark(self, a, request):
        before = self.names[a]
        x = before.detach().requires_grad_()
        self.variables.append(x)
        self.names.update({name: x for name, each in self.names.items() if each is before})
        self.requests[id(x)], self.buffers[id(x)] = request, torch.zeros_like(x, requires_grad=False)

    def gradient(self, a):
        return self.buffers[id(self.names[a])]

    def backward(self, names, head_grads, retain):
        leaves = list({id(x): x for x in self.names.values() if id(x) in self.buffers}.values())
        for x in leaves:
            x.grad = None
        heads = [self.names[each] for each in names]
        head_grads_given = [
            torch.ones_like(x) if h is None else self.names[h].detach() for x, h in zip(heads, head_grads, strict=True)
        ]
        torch.autograd.backward(heads, head_grads_given, retain_graph=retain)
        for x in leaves:
            if x.grad is not None:
                buffer = self.buffers[id(x)]
                if buffer.requires_grad or buffer.grad_fn is not None or (buffer.any() and not x.grad.any()):
                    raise Different  # zeros may also stand for what was overwritten, from which nothing comes
                buffer.copy_(buffer + x.grad if self.requests[id(x)] == "add" else x.grad)

    def grad(self, names, variables, head_grads, retain, create_graph, at):
        heads = [self.names[each] for each in names]
        head_grads_given = [
            torch.ones_like(x) if h is None else self.names[h] for x, h in zip(heads, head_grads, strict=True)
        ]
        head_grads_given = [x if create_graph else x.detach() for x in head_grads_given]
        targets = [self.names[each] for each in variables]
        with torch.enable_grad():
            gradient = torch.autograd.grad(heads, targets, head_grads_given, retain, create_graph, allow_unused=True)[
                at
            ]
            return torch.zeros_like(targets[at]).detach() if gradient is None else gradient.clone()

    def custom(self, name, a):
        return Cube.apply(self.names[a], 3 if name == "Scaled()" else 1)

    def block(self, a, b):
        return torch.tanh(self.names[a] * self.names[b]) * self.names[a]

    def chain(self, a, count):
        return self.names[a] * 1.01**count

    def stretches(self, are_on):
        """Do nothing: irrelevant for PyTorch."""

    def look(self, a):
        self.seen.append(self.buffers[id(self.names[a])].detach().numpy().copy())

    def enter(self, scope):
        self.scopes.append(scope)

    def leave(self):
        self.scopes.pop()


def compare(program, world):
    """The extent to which PyTorch agrees with the oracle: why it stopped, and how many gradients were compared.

    Raises:
        AssertionError: it gives another gradient.
    """
    machine, why = Machine(world), "the end"
    for each in program[: len(program) if world.refusal is None else world.refusal[0]]:
        try:
            machine.run(each)
        except Different:
            why = "another rule"
            break
        except RuntimeError as error:
            why = str(error).partition("\n")[0][:60]
            break
    for (what, expected), gradient in zip(world.seen, machine.seen, strict=False):
        if not expected.any() and gradient.any():
            return "no gradient, where zeros are written", 0
        np.testing.assert_allclose(gradient, expected, 1e-6, 1e-8, err_msg=what)
    if why == "the end" and world.refusal is None:
        for name, x in machine.names.items():
            np.testing.assert_allclose(x.detach().numpy(), world.handles[name].value, 1e-6, 1e-8, err_msg=name)
    return why, min(len(world.seen), len(machine.seen))


def main(arguments):
    count, seed = int(arguments[0]) if arguments else 2000, int(arguments[1]) if len(arguments) > 1 else 0
    reasons, looks = Counter(), 0
    for each in range(seed, seed + count):
        program, world = make(each)
        try:
            why, compared = compare(program, world)
        except AssertionError:
            print(f"seed {each}", *(statement.text() for statement in program), sep="\n")
            raise
        reasons[why] += 1
        looks += compared
    print(f"{count} programs, {looks} gradients compared; stopped at:")
    for why, times in reasons.most_common():
        print(f"{times:6}  {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
