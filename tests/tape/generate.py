"""Random programs: each statement is drawn, run on the oracle, and added if it is valid."""

import copy
import random

import numpy as np

from tests.tape.oracle import Invalid, Refused, World
from tests.tape.statements import MOVES, SCALAR, UNARY, Statement, key_of

SHAPES = [(3,), (3,), (4,), (2, 2), (2, 3), (1,), (1, 3), (2, 1)]
DTYPES = ["float32"] * 8 + ["float64"]
DEVICES = ["cpu(0)"] * 9 + ["cpu(1)"]
UNARY_NAMES = list(UNARY)


class Maker:
    """Generator of one program.

    Args:
        rng: the source of all decisions.
        length: the approximate number of statements.
        often: kinds of statements to draw often.
    """

    def __init__(self, rng, length, often=()):
        self.rng, self.length = rng, length
        self.kinds = [kind for kind, _ in STEPS]
        self.weights = [weight * (8 if kind in often else 1) for kind, weight in STEPS]
        self.world = World()
        self.program = []
        self.count = 0

    def make(self):
        """Return the statements."""
        if self.rng.random() < 0.15:
            self.add("stretches", "", False)
        for _ in range(self.rng.randint(1, 3)):
            self.leaf()
        for _ in range(self.rng.randint(0, 2)):
            self.buffer()
        self.add("enter", "", "record")
        while len(self.program) < self.length and not self.is_over:
            self.step()
        if not self.is_over:
            self.finish()
        return self.program

    is_over = False

    def add(self, kind, prefix, *args):
        """Run a statement on the oracle; returns whether it was added."""
        out = ""
        if prefix:
            out = f"{prefix}{self.count}"
        statement = Statement(kind, out, args)
        self.world.at = len(self.program)
        try:
            self.is_over = perform(self.world, statement)
        except Invalid:
            return False
        if self.is_over and self.rng.random() > 0.2:  # a statement that flowmx must refuse ends the program
            self.is_over, self.world.refusal = False, None
            return False
        self.count += bool(prefix)
        self.program.append(statement)
        return True

    # -- drawing ---------------------------------------------------------------------------------------

    def name(self, wanted=lambda handle: True):
        """Draw a name, preferably a recent one."""
        names = [each for each, handle in self.world.handles.items() if wanted(handle)]
        if not names:
            raise Invalid("no such name")
        if self.rng.random() < 0.5:
            names = names[-4:]
        return self.rng.choice(names)

    def traced(self):
        return self.name(lambda handle: handle.line.reach is not None)

    def any_or_traced(self):
        return self.traced() if self.rng.random() < 0.6 else self.name()

    def of_shape(self, shape, *others):
        """Draw a name whose shape broadcasts to ``shape``."""

        def fits(handle):
            return handle.shape == shape or (
                len(handle.shape) <= len(shape)
                and all(a in (1, b) for a, b in zip(handle.shape[::-1], shape[::-1], strict=False))
            )

        return self.name(fits)

    def values(self, shape):
        drawn = np.array([self.rng.uniform(-1.6, 1.6) for _ in range(int(np.prod(shape)))])
        return np.round(np.where(abs(drawn) < 0.05, 0.7, drawn), 3).reshape(shape).tolist()

    def number(self):
        return self.rng.choice([0.5, -1.5, 2.0, 0.25, 1.0, -0.5, 0.0])

    def leaf(self):
        shape = self.rng.choice(SHAPES[:6])
        if self.add("array", "x", self.values(shape), self.rng.choice(DTYPES), self.rng.choice(DEVICES)):
            self.add("mark", "", self.last(), "add" if self.rng.random() < 0.2 else "write")

    def buffer(self):
        shape = self.rng.choice(SHAPES)
        dtype = "int32" if self.rng.random() < 0.05 else self.rng.choice(DTYPES)
        values = np.zeros(shape).tolist() if self.rng.random() < 0.4 else self.values(shape)
        if dtype == "int32":
            values = np.round(values).tolist()
        self.add("array", "z", values, dtype, self.rng.choice(DEVICES))

    def last(self):
        return list(self.world.handles)[-1]

    def key(self, shape):
        """Draw a basic key, as text."""
        needs_elements(shape)
        parts = []
        for length in shape[: self.rng.randint(1, len(shape))]:
            kind = self.rng.random()
            if kind < 0.3:
                parts.append(str(self.rng.randrange(-length, length)))
            elif kind < 0.9:
                begin = self.rng.randrange(length)
                end = self.rng.randint(begin + 1, length)
                parts.append(f"{begin or ''}:{end if end < length else ''}")
            else:
                parts.append("::-1" if self.rng.random() < 0.6 else "::2")
        if self.rng.random() < 0.06:
            parts.insert(self.rng.randint(0, len(parts)), self.rng.choice(["None", "..."]))
        return ", ".join(parts)

    def chooser(self, shape):
        """Draw a key with an index array, as text."""
        needs_elements(shape)
        length = shape[0]
        if self.rng.random() < 0.3:
            mask = [self.rng.random() < 0.6 for _ in range(length)]
            mask[self.rng.randrange(length)] = True
            return f"nd.array({[int(each) for each in mask]}, dtype='bool')"
        index = [self.rng.randrange(length) for _ in range(self.rng.randint(1, 3))]
        more = f", {self.rng.randrange(shape[1])}" if len(shape) > 1 and self.rng.random() < 0.3 else ""
        return f"nd.array({index}, dtype='int32'){more}"

    # -- statements ------------------------------------------------------------------------------------

    def step(self):
        """Add a statement, or fail to."""
        try:
            getattr(self, self.rng.choices(self.kinds, self.weights)[0])()
        except (Invalid, IndexError):  # "..." in a key moves the others to other axes
            pass

    def unary(self):
        self.add("unary", "a", self.rng.choice(UNARY_NAMES), self.any_or_traced())

    def softmax(self):
        self.add("softmax", "a", self.any_or_traced())

    def binary(self):
        one = self.any_or_traced()
        other = self.of_shape(self.world.handles[one].shape)
        name = self.rng.choice(["add", "sub", "mul", "mul", "div", "maximum", "minimum", "greater"])
        pair = (one, other) if self.rng.random() < 0.5 else (other, one)
        self.add("binary", "a", name, *pair)

    def scalar(self):
        self.add("scalar", "a", self.rng.choice(list(SCALAR)), self.any_or_traced(), self.number())

    def move(self):
        self.add("move", "a", self.rng.choice(list(MOVES)), self.any_or_traced())

    def join(self):
        one = self.any_or_traced()
        shape = self.world.handles[one].shape
        other = self.name(lambda handle: len(handle.shape) == len(shape))
        self.add("dot" if len(shape) == 2 and self.rng.random() < 0.6 else "join", "a", one, other)

    def where(self):
        one = self.any_or_traced()
        shape = self.world.handles[one].shape
        self.add("where", "a", self.of_shape(shape), one, self.of_shape(shape))

    def view(self):
        a = self.name()
        self.add("view", "v", a, self.key(self.world.handles[a].shape))

    def reshape(self):
        a = self.name()
        handle = self.world.handles[a]
        size = handle.at.size
        shapes = [(size,), (1, size), (size, 1), *((n, size // n) for n in (2, 3) if size % n == 0)]
        self.add("reshape", "v", a, self.rng.choice(shapes))

    def gather(self):
        a = self.any_or_traced()
        self.add("gather", "a", a, self.chooser(self.world.handles[a].shape))

    def detach(self):
        self.add("detach", "d", self.name())

    def cast(self):
        if self.rng.random() < 0.6:
            self.add("cast", "a", self.any_or_traced(), self.rng.choice(["float32", "float64", "int32"]))
        else:
            self.add("bring", "a", self.any_or_traced(), self.rng.choice(["cpu(0)", "cpu(1)", "sim(0)"]))

    def value(self, shape):
        if self.rng.random() < 0.15:
            return self.number()
        if self.rng.random() < 0.1:
            return self.values(shape)
        return self.of_shape(shape)

    def target(self):
        return self.name(lambda handle: handle.leaf is None or self.rng.random() < 0.1)

    def assign(self):
        a = self.target()
        handle = self.world.handles[a]
        key = "" if self.rng.random() < 0.4 else self.key(handle.shape)
        part = handle.at
        if key:
            part = np.zeros(handle.shape)[key_of(key)]
        self.add("assign", "", a, key, self.value(np.shape(part)))

    def choose(self):
        a = self.target()
        handle = self.world.handles[a]
        key = self.chooser(handle.shape)
        self.add("choose", "", a, key, self.value(np.zeros(handle.shape)[key_of(key)].shape))

    def update(self):
        a = self.target()
        b = self.number() if self.rng.random() < 0.2 else self.of_shape(self.world.handles[a].shape)
        self.add("update", "", self.rng.choice(["+=", "-=", "*=", "*=", "/="]), a, b)

    def into(self):
        to = self.target()
        shape = self.world.handles[to].shape
        a = self.name(lambda handle: handle.shape == shape)
        if self.rng.random() < 0.5:
            self.add("into", "", self.rng.choice(UNARY_NAMES), a, "", to)
        else:
            name = self.rng.choice(["add", "sub", "mul", "div", "maximum", "greater"])
            self.add("into", "", name, a, self.of_shape(shape), to)

    def copyto(self):
        a = self.name()
        shape = self.world.handles[a].shape
        self.add("copyto", "", a, self.name(lambda handle: handle.shape == shape and handle.leaf is None))

    def slice_assign(self):
        a = self.target()
        shape = self.world.handles[a].shape
        needs_elements(shape)
        begin = self.rng.randrange(shape[0])
        end = self.rng.randint(begin + 1, shape[0])
        self.add("slice_assign", "", a, begin, end, self.name(lambda h: h.shape == (end - begin, *shape[1:])))

    def mark(self):
        self.add("mark", "", self.name(), self.rng.choice(["write", "write", "add"]))

    def gradient(self):
        self.add("gradient", "g", self.name(lambda handle: handle.leaf is not None))

    def scope(self):
        scopes = self.world.scopes
        if len(scopes) > 1 or (scopes and self.rng.random() < 0.3):
            self.add("leave", "")
        else:
            self.add("enter", "", self.rng.choice(["record", "record", "pause", "train_mode", "predict_mode", "bulk"]))

    def heads(self):
        names = [self.traced() for _ in range(self.rng.choice([1, 1, 1, 2]))]
        head_grads = [self.head_gradient(each) if self.rng.random() < 0.4 else None for each in names]
        return tuple(names), tuple(head_grads)

    def head_gradient(self, head):
        handle = self.world.handles[head]
        fits = lambda h: h.shape == handle.shape and h.memory.device == handle.memory.device  # noqa: E731
        return self.name(lambda h: fits(h) and h.memory.dtype == handle.memory.dtype)

    def backward(self):
        names, head_grads = self.heads()
        self.do_backward(names, head_grads, self.rng.random() < 0.6)

    def do_backward(self, names, head_grads, retain):
        inside = self.world.scopes and self.rng.random() < 0.7
        if inside:
            while self.world.scopes:
                self.add("leave", "")
        if self.add("backward", "", names, head_grads, retain):
            self.look()
        if inside and not self.is_over:
            self.add("enter", "", "record")

    def look(self):
        for name, handle in list(self.world.handles.items()):
            if handle.leaf is not None and not self.is_over:
                self.add("look", "", name)

    def grad(self):
        names, head_grads = self.heads()
        drawn = [self.name(lambda handle: handle.leaf is not None) for _ in range(self.rng.choice([1, 1, 2]))]
        variables = tuple(dict.fromkeys(drawn))
        retain = self.rng.choice([None, True, True])
        create = self.rng.random() < 0.7
        if self.add("grad", "g", names, variables, head_grads, retain, create, self.rng.randrange(len(variables))):
            self.look()

    def custom(self):
        name = self.rng.choices(["Scaled()", "Square()", "custom"], [6, 6, 1])[0]
        self.add("custom", "a", name, self.any_or_traced())

    def chain(self):
        self.add("chain", "a", self.any_or_traced(), self.rng.choice([20, 40, 70]))

    def block(self):
        one = self.any_or_traced()
        shape = self.world.handles[one].shape
        self.add("block", "a", one, self.name(lambda handle: handle.shape == shape))

    def finish(self):
        """End with backward passes over the latest results."""
        traced = [
            name for name, handle in self.world.handles.items() if handle.line.reach is not None and not handle.leaf
        ]
        for name in traced[::-1][:3]:
            if not self.is_over:
                self.do_backward((name,), (None,), True)


def needs_elements(shape):
    """Raise Invalid for an empty array, which has nothing to choose from."""
    if 0 in shape:
        raise Invalid("nothing to choose from")


STEPS = [
    ("unary", 8), ("softmax", 1), ("binary", 10), ("scalar", 5), ("move", 5), ("join", 2), ("where", 1),
    ("view", 9), ("reshape", 4), ("gather", 3), ("detach", 1.5), ("cast", 2), ("assign", 9), ("choose", 4),
    ("update", 8), ("into", 6), ("copyto", 3), ("slice_assign", 1), ("mark", 0.5), ("gradient", 0.7), ("scope", 4),
    ("backward", 2.5), ("grad", 4), ("custom", 2), ("block", 1.5), ("chain", 0.7), ("buffer", 1), ("leaf", 0.5),
]  # fmt: skip


def make(seed, often=()):
    """Generate the program of a seed; returns it and the world after it."""
    rng = random.Random(seed)
    maker = Maker(rng, rng.choice([8, 12, 16, 22, 30, 45]), often)
    return maker.make(), maker.world


def again(program):
    """Return the world after a program.

    Raises:
        Invalid: the program is invalid.
    """
    world = World()
    for position, each in enumerate(program):
        world.at = position
        if perform(world, each):
            break
    return world


def perform(world, statement):
    """Run a statement on the oracle; returns whether flowmx must refuse it.

    Raises:
        Invalid: the statement is invalid.
    """
    try:
        try:
            statement.run(world)
        except Refused as refused:
            blind = copy.deepcopy(world)
            blind.is_blind = True  # it may be invalid for other reasons, too
            statement.run(blind)
            world.refusal = world.at, str(refused)
    except KeyError:
        raise Invalid("no such name") from None
    return world.refusal is not None


__all__ = ["again", "make"]
