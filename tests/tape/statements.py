"""The language of random programs: each statement's Python text, and its effect on the oracle."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tests.tape.jets import Jet, join
from tests.tape.oracle import Handle, Invalid, Memory, Refused

MARGIN = 0.02
"""The distance from a kink below which a statement is invalid."""


class Statement(NamedTuple):
    """One statement: its kind, the name that it assigns (if any), and its arguments."""

    kind: str
    out: str
    args: tuple[object, ...] = ()

    def text(self):
        return KINDS[self.kind][0](self.out, *self.args)

    def run(self, world):
        result = KINDS[self.kind][1](world, *self.args)
        if self.out and result is not None:
            world.handles[self.out] = result


def smooth(*kinks, step=None):
    """Check that a value is not near a kink: at some numbers, or at all multiples of one."""

    def near(x):
        gaps = [np.abs(x - each) for each in kinks]
        if step is not None:
            gaps.append(np.abs(x / step - np.round(x / step)) * step)
        if any(np.any(gap < MARGIN) for gap in gaps):
            raise Invalid("a kink")

    return near


def inside(low, high):
    def outside(x):
        if np.any(x < low) or np.any(x > high):
            raise Invalid("outside")

    return outside


def nothing(x):
    return np.zeros_like(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# name: what is checked, the function, its first and its second derivative
UNARY = {
    "relu": (smooth(0), lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0, nothing),
    "sigmoid": (None, sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x)),
                lambda x: sigmoid(x) * (1 - sigmoid(x)) * (1 - 2 * sigmoid(x))),
    "tanh": (None, np.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2)),
    "exp": (inside(-9, 2.5), np.exp, np.exp, np.exp),
    "square": (None, np.square, lambda x: 2 * x, lambda x: np.full_like(x, 2)),
    "sin": (None, np.sin, np.cos, lambda x: -np.sin(x)),
    "abs": (smooth(0), np.abs, np.sign, nothing),
    "negative": (None, np.negative, lambda x: -np.ones_like(x), nothing),
    "floor": (smooth(step=1), np.floor, nothing, nothing),
    "sign": (smooth(0), np.sign, nothing, nothing),
    "radians": (None, np.radians, lambda x: np.full_like(x, np.pi / 180), nothing),
    "sqrt": (inside(0.3, 99), np.sqrt, lambda x: 0.5 / np.sqrt(x), lambda x: -0.25 * x**-1.5),
    "log": (inside(0.3, 99), np.log, lambda x: 1 / x, lambda x: -1 / x**2),
    "reciprocal": (inside(0.3, 99), lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3),
    "softsign": (smooth(0), lambda x: x / (1 + abs(x)), lambda x: (1 + abs(x)) ** -2,
                 lambda x: -2 * np.sign(x) * (1 + abs(x)) ** -3),
    "hard_sigmoid": (smooth(-2.5, 2.5), lambda x: np.clip(0.2 * x + 0.5, 0, 1), lambda x: 0.2 * (abs(x) < 2.5),
                     nothing),
    "identity": (None, lambda x: x, np.ones_like, nothing),
    "BlockGrad": (None, lambda x: x, nothing, nothing),
    "zeros_like": (None, nothing, nothing, nothing),
    "ones_like": (None, np.ones_like, nothing, nothing),
    "logical_not": (smooth(0), lambda x: (x == 0) * 1.0, nothing, nothing),
    "round": (smooth(0.5, -0.5, 1.5, -1.5, 2.5, -2.5), lambda x: np.trunc(x + np.copysign(0.5, x)), nothing, nothing),
}  # fmt: skip


def unary(jet, name):
    unfit, *functions = UNARY[name]
    if unfit is not None:
        unfit(jet.value)
    result = jet.apply(*functions)
    return result.blocked() if functions[1] is nothing else result


def compare(one, two):
    gap = one.value - two.value if isinstance(two, Jet) else one.value - two
    smooth(0)(gap)
    return gap > 0


def pick(mask, one, two):
    """Select elements of one where the mask is True, else of the other, as a maximum and `where` do."""
    shape = np.broadcast_shapes(mask.shape, one.shape, two.shape)
    spread = [each._padded(len(shape)) for each in (one, two)]
    return join(spread, lambda x: np.where(mask, *(np.broadcast_to(each, (len(each), *shape)) for each in x)))


def binary(one, two, name):
    try:
        np.broadcast_shapes(one.shape, two.shape)
    except ValueError:
        raise Invalid("shapes") from None
    if name == "add":
        return one + two
    if name == "sub":
        return one - two
    if name == "mul":
        return one * two
    if name == "div":
        inside(0.3, 99)(np.abs(two.value))
        return one * two.reciprocal()
    mask = compare(one, two)
    if name == "greater":
        return pick(mask, (one * 0 + two * 0 + 1).blocked(), (one * 0 + two * 0).blocked())
    return pick(mask, one, two) if name == "maximum" else pick(mask, two, one)


SCALAR = {
    "{0} + {1}": lambda x, n: x + n,
    "{0} * {1}": lambda x, n: x * n,
    "{1} - {0}": lambda x, n: -x + n,
    "{0} ** 2": lambda x, n: x * x,
    "{0} > {1}": lambda x, n: greater(x, n),
    "nd.clip({0}, -{2}, {2})": lambda x, n: clip(x, n),
    "nd.maximum({0}, {1})": lambda x, n: pick(compare(x, n), x, Jet(np.full(x.shape, n))),
}


def greater(x, n):
    return Jet(compare(x, n) * 1.0, reach=x.reach, order=x.order)


def clip(x, n):
    n = abs(n)
    smooth(n, -n)(x.value)
    return x.apply(lambda v: np.clip(v, -n, n), lambda v: (abs(v) < n) * 1.0, nothing)


# -- moving elements ---------------------------------------------------------------------------------------

MOVES = {
    "nd.sum({0}, axis=0, keepdims=True)": lambda p: ("sum", 0),
    "{0}.sum()": lambda p: ("total",),
    "{0}.mean()": lambda p: ("mean",),
    "nd.transpose({0})": lambda p: p.T,
    "nd.flip({0}, axis=0)": lambda p: p[::-1],
    "nd.reshape({0}, shape=(-1,))": lambda p: p.reshape(-1),
    "nd.expand_dims({0}, axis=0)": lambda p: p[None],
    "nd.slice_axis({0}, axis=0, begin=0, end=1)": lambda p: p[:1],
    "nd.concat({0}, {0}, dim=0)": lambda p: np.concatenate([p, p]),
    "nd.tile({0}, reps=(2,))": lambda p: np.tile(p, 2),
    "nd.take({0}, nd.array([0, 0], {0}.context, 'int32'))": lambda p: p[[0, 0]],
    "{0}.copy()": lambda p: p,
    "{0}.as_in_context(mx.cpu(0))": lambda p: p,
}


def move(jet, template):
    places = np.arange(jet.value.size).reshape(jet.shape)
    places_found = MOVES[template](places)
    if not isinstance(places_found, tuple):
        return jet.at(places_found)
    if places_found[0] == "sum":
        return jet.sum(0, keepdims=True)
    total = jet.sum()
    total = total.linear(lambda x: x.reshape(len(x), 1))
    return total if places_found[0] == "total" else total * (1 / jet.value.size)


# -- keys --------------------------------------------------------------------------------------------------


class _Arrays:
    @staticmethod
    def array(values, dtype):
        return np.asarray(values, dtype)


@lru_cache(4096)
def key_of(text):
    """Convert a key's text to NumPy's key; index arrays are written with nd.array."""
    return eval(f"np.s_[{text}]", {"nd": _Arrays, "np": np})


def selected(handle, text):
    """Return the positions in a handle's memory that a key selects; one element becomes an array of one."""
    try:
        at = handle.at[key_of(text)]
    except IndexError:
        raise Invalid("index") from None
    return np.asarray(at).reshape(1) if np.ndim(at) == 0 else at


def spread(jet, shape):
    """Broadcast a jet to the shape of an assignment's target."""
    while jet.value.ndim > len(shape) and jet.shape[0] == 1:
        jet = jet.linear(lambda x: x.reshape(len(x), *x.shape[2:]))
    try:
        if np.broadcast_shapes(jet.shape, shape) != shape:
            raise Invalid("shapes")
    except ValueError:
        raise Invalid("shapes") from None
    return Jet(np.zeros(shape)) + jet


# -- statements --------------------------------------------------------------------------------------------


def like(world, *names):
    """Return the dtype and device of a result."""
    handles = [world.handles[each] for each in names]
    kinds = {(each.memory.dtype, each.memory.device) for each in handles}
    if len(kinds) > 1:
        raise Invalid("dtypes or devices")
    return next(iter(kinds))


def floats(world, *names):
    places_found = like(world, *names)
    if places_found[0] == "int32":
        raise Invalid("integers")
    return places_found


def run_array(world, values, dtype, device):
    return world.new(Jet(np.array(values)), dtype, device)


def run_unary(world, name, a):
    kind = floats(world, a)
    return world.new(unary(world.read(a), name), *kind)


def run_binary(world, name, a, b):
    kind = floats(world, a, b)
    return world.new(binary(world.read(a), world.read(b), name), *kind)


def run_scalar(world, template, a, number):
    kind = floats(world, a)
    return world.new(SCALAR[template](world.read(a), number), *kind)


def run_move(world, template, a):
    kind = floats(world, a)
    if template.endswith("cpu(0))"):
        if kind[1] == "cpu(0)":
            return world.handles[a]
        kind = (kind[0], "cpu(0)")
    return world.new(move(world.read(a), template), *kind)


def run_join(world, a, b):
    kind = floats(world, a, b)
    jets = [world.read(a), world.read(b)]
    if jets[0].shape[1:] != jets[1].shape[1:]:
        raise Invalid("shapes")
    return world.new(join(jets, lambda x: np.concatenate(x, axis=1)), *kind)


def run_dot(world, a, b):
    kind = floats(world, a, b)
    one, two = world.read(a), world.read(b)
    if one.value.ndim != 2 or two.value.ndim != 2 or one.shape[1] != two.shape[0]:
        raise Invalid("shapes")
    one = one.linear(lambda x: x[..., None])
    two = two.linear(lambda x: x[:, None])
    return world.new((one * two).sum(1), *kind)


def run_where(world, a, b, c):
    kind = floats(world, a, b, c)
    mask, one, two = (world.read(each) for each in (a, b, c))
    if not mask.shape == one.shape == two.shape:
        raise Invalid("shapes")
    smooth(0)(mask.value)
    result = pick(mask.value != 0, one, two)
    result.reach = (mask * 0 + result).reach
    return world.new(result, *kind)


def run_view(world, a, key):
    """Index a handle: contiguous positions are shared, others are copied."""
    handle = world.handles[a]
    at = selected(handle, key)
    if at.size < 2 or np.all(np.diff(at.reshape(-1)) == 1):
        return world.view(handle, at)
    places = np.arange(handle.at.size).reshape(handle.shape)[key_of(key)]
    return world.new(world.read(a).at(places), *like(world, a))


def run_reshape(world, a, shape):
    if 0 in shape:  # which stands for the length that the axis has
        raise Invalid("shapes")
    handle = world.handles[a]
    if int(np.prod(shape)) != handle.at.size:
        raise Invalid("shapes")
    return world.view(handle, handle.at.reshape(shape))


def run_gather(world, a, key):
    handle = world.handles[a]
    selected(handle, key)
    places = np.arange(handle.at.size).reshape(handle.shape)[key_of(key)]
    return world.new(world.read(a).at(places), *floats(world, a))


def run_cast(world, a, dtype):
    if dtype == "int32":
        smooth(step=1)(world.handles[a].value)
        if world.recording and world.handles[a].line.reach is not None:
            raise Invalid("integers")
    return world.new(world.read(a), dtype, world.handles[a].memory.device)


def run_bring(world, a, device):
    return world.new(world.read(a), world.handles[a].memory.dtype, device)


def run_assign(world, a, key, b):
    handle = world.handles[a]
    at = handle.at[key_of(key)] if key else handle.at
    part = Handle(handle.memory, np.asarray(at), handle.line)
    value = value_of(world, handle, b)
    write(world, part, spread(value, part.shape), handle)


def value_of(world, handle, b):
    if isinstance(b, str):
        if world.recording and world.handles[b].line.reach is not None and handle.memory.dtype == "int32":
            raise Invalid("integers")
        return world.read(b)
    return Jet(np.array(b))


def write(world, part, value, handle, keeps=False):
    if handle.memory.dtype == "int32":
        smooth(step=1)(value.value + (value.value == np.round(value.value)) * 0.5)
    world.write(part, value, keeps)


def run_choose(world, a, key, b):
    handle = world.handles[a]
    try:
        at = handle.at[key_of(key)]
    except IndexError:
        raise Invalid("index") from None
    value = spread(value_of(world, handle, b), at.shape)
    if world.recording:
        world.read(a)
    # If a position occurs twice, the last value wins.
    places, first = np.unique(at.reshape(-1)[::-1], return_index=True)
    last = at.size - 1 - first
    result = value.linear(lambda x: x.reshape(len(x), -1)[:, last])
    write(world, Handle(handle.memory, places, handle.line), result, handle, keeps=True)


def run_update(world, template, a, b):
    handle = world.handles[a]
    floats(world, a)
    name = {"+=": "add", "-=": "sub", "*=": "mul", "/=": "div"}[template]
    before = world.read(a)
    if isinstance(b, str):
        other = world.handles[b]
        if other.memory.dtype == "int32" or other.memory.device != handle.memory.device:
            raise Invalid("dtypes or devices")
        after = world.read(b)
    else:
        after = Jet(np.array(b))
    write(world, handle, spread(binary(before, spread(after, before.shape), name), handle.shape), handle)


def run_into(world, name, a, b, out):
    floats(world, *(each for each in (a, b, out) if each))
    result = unary(world.read(a), name) if not b else binary(world.read(a), world.read(b), name)
    if result.shape != world.handles[out].shape:
        raise Invalid("shapes")
    write(world, world.handles[out], result, world.handles[out])


def run_copyto(world, a, b):
    if world.handles[a] is world.handles[b]:
        return
    if world.handles[a].shape != world.handles[b].shape:
        raise Invalid("shapes")
    handle = world.handles[b]
    write(world, handle, value_of(world, handle, a), handle)


def run_slice_assign(world, a, begin, end, b):
    run_assign(world, a, f"{begin}:{end}", b)


def run_mark(world, a, request):
    if world.handles[a].memory.dtype == "int32":
        raise Invalid("integers")
    world.mark(world.handles[a], request)


def run_gradient_of(world, a):
    leaf = world.handles[a].leaf
    if leaf is None:
        raise Invalid("no variable")
    if leaf.handle is None:
        leaf.handle = Handle(leaf.grad, np.arange(leaf.size).reshape(leaf.shape), leaf.grad.line())
    return leaf.handle


def run_grad(world, names, variables, head_grads, retain, create_graph, at):
    return world.grad(names, variables, head_grads, retain, create_graph)[at]


def run_softmax(world, a):
    kind = floats(world, a)
    x = world.read(a)
    e = x.apply(np.exp, np.exp, np.exp)
    total = e.linear(lambda v: v.sum(-1, keepdims=True))
    return world.new(e * total.reciprocal(), *kind)


def run_custom(world, name, a):
    """Functions with a custom gradient: `Scaled` is x² with three times its gradient, `Square` is x²."""
    kind = floats(world, a)
    x = world.read(a)
    result = x * x
    if name == "Scaled()" and result.first is not None:
        result.first = result.first * 3
    if result.reach is not None and name != "block":
        result.order, result.second = min(result.order, 1), None
    return world.new(result, *kind)


def run_chain(world, a, count):
    """Chain so many small operators that their gradients exceed one bulk."""
    kind = floats(world, a)
    return world.new(world.read(a) * 1.01**count, *kind)


def run_block(world, a, b):
    kind = floats(world, a, b)
    one, two = world.read(a), world.read(b)
    if one.shape != two.shape:
        raise Invalid("shapes")
    reach = (one * 0 + two * 0).reach
    result = unary(one * two, "tanh") * one
    result.reach = reach
    return world.new(result, *kind)


def run_look(world, a):
    handle = world.handles[a]
    if handle.leaf is None:
        raise Invalid("no variable")
    world.seen.append((f"gradient of {a}", handle.leaf.grad.value.reshape(handle.shape).copy()))


def run_enter(world, scope):
    world.scopes.append(scope)


def run_leave(world):
    if not world.scopes:
        raise Invalid("no scope")
    world.scopes.pop()


SCOPES = {"bulk": "mx.engine.bulk(4)"}
SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "greater": ">"}


def binary_text(out, name, a, b):
    symbol = SYMBOLS.get(name)
    return f"{out} = {a} {symbol} {b}" if symbol else f"{out} = nd.broadcast_{name}({a}, {b})"


def names_text(names):
    return f"[{', '.join(str(each) for each in names)}]"


def backward_text(out, names, head_grads, retain):
    head_text = f", {names_text(head_grads)}" if any(head_grads) else ""
    return f"autograd.backward({names_text(names)}{head_text}{', retain_graph=True' if retain else ''})"


def grad_text(out, names, variables, head_grads, retain, create_graph, at):
    head_text = f", {names_text(head_grads)}" if any(head_grads) else ""
    more = f", retain_graph={retain}" if retain is not None else ""
    more += ", create_graph=True" if create_graph else ""
    return f"{out} = autograd.grad({names_text(names)}, {names_text(variables)}{head_text}{more})[{at}]"


def plain(values):
    return np.round(np.asarray(values, np.float64), 3).tolist()


def _value_text(b):
    return b if isinstance(b, str) else repr(b)


KINDS = {
    "array": (lambda out, v, t, d: f"{out} = nd.array({plain(v)}, mx.{d}, '{t}')", run_array),
    "unary": (lambda out, name, a: f"{out} = nd.{name}({a})", run_unary),
    "binary": (binary_text, run_binary),
    "scalar": (lambda out, t, a, n: f"{out} = {t.format(a, n, abs(n))}", run_scalar),
    "move": (lambda out, t, a: f"{out} = {t.format(a)}", run_move),
    "join": (lambda out, a, b: f"{out} = nd.concat({a}, {b}, dim=0)", run_join),
    "dot": (lambda out, a, b: f"{out} = nd.dot({a}, {b})", run_dot),
    "where": (lambda out, a, b, c: f"{out} = nd.where({a}, {b}, {c})", run_where),
    "view": (lambda out, a, key: f"{out} = {a}[{key}]", run_view),
    "reshape": (lambda out, a, shape: f"{out} = {a}.reshape({shape})", run_reshape),
    "gather": (lambda out, a, key: f"{out} = {a}[{key}]", run_gather),
    "detach": (lambda out, a: f"{out} = {a}.detach()", lambda world, a: world.detach(world.handles[a])),
    "cast": (lambda out, a, t: f"{out} = {a}.astype('{t}')", run_cast),
    "bring": (lambda out, a, d: f"{out} = {a}.copyto(mx.{d})", run_bring),
    "assign": (lambda out, a, key, b: f"{a}[{key or ':'}] = {_value_text(b)}", run_assign),
    "choose": (lambda out, a, key, b: f"{a}[{key}] = {_value_text(b)}", run_choose),
    "update": (lambda out, t, a, b: f"{a} {t} {b}", run_update),
    "into": (
        lambda out, name, a, b, to: f"nd.{'broadcast_' + name if b else name}({a}{', ' + b if b else ''}, out={to})",
        run_into,
    ),
    "copyto": (lambda out, a, b: f"{a}.copyto({b})", run_copyto),
    "slice_assign": (
        lambda out, a, i, j, b: f"{a}.slice_assign({b}, begin=({i},), end=({j},), step=(1,))", run_slice_assign
    ),
    "mark": (lambda out, a, request: f"{a}.attach_grad('{request}')", run_mark),
    "gradient": (lambda out, a: f"{out} = {a}.grad", run_gradient_of),
    "backward": (backward_text, lambda world, *args: world.backward(*args)),
    "grad": (grad_text, run_grad),
    "custom": (lambda out, name, a: f"{out} = {name}({a})", run_custom),
    "chain": (lambda out, a, count: f"{out} = chain({a}, {count})", run_chain),
    "block": (lambda out, a, b: f"{out} = block({a}, {b})", run_block),
    "look": (lambda out, a: f"look('gradient of {a}', {a}.grad)", run_look),
    "enter": (lambda out, scope: f"with {SCOPES.get(scope, f'autograd.{scope}()')}:", run_enter),
    "stretches": (lambda out, are_on: f"stretches({are_on})", lambda world, are_on: None),
    "softmax": (lambda out, a: f"{out} = nd.softmax({a})", run_softmax),
    "leave": (lambda out: "", run_leave),
}  # fmt: skip

__all__ = ["KINDS", "Memory", "Refused", "Statement"]
