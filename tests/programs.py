"""Random programs over the public interface, and two interpreters for them: flowmx, and a serial one on NumPy.

A program is a list of statements on numbered slots that hold arrays. The serial interpreter also keeps track of
which storage is poisoned by which error, so that what an array carries can be compared like its content.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import flowmx as mx
from flowmx.devices import Context, Generator

Statement = tuple[Any, ...]
Outcome = tuple[Any, ...]
"""The outcome of reading an array: ``("content", shape, bytes)`` or ``("error", type, text)``."""

SLOTS = 7


class Mishap(Exception):
    """An error with an unusual constructor, as users write them."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"mishap {code}")


ERRORS: list[Callable[[int], Exception]] = [
    lambda code: ValueError(f"bad value {code}"),
    lambda code: ZeroDivisionError(f"by zero {code}"),
    lambda code: Mishap(code=code),
]


@dataclass
class Program:
    """Statements, with the information to run them again."""

    seed: int
    shape: tuple[int, int]
    statements: list[Statement] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(
            [f"program {self.seed}, arrays of shape {self.shape}", *(f"  {each}" for each in self.statements)]
        )


# -- making programs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slot:
    shape: tuple[int, ...]
    device: int


class _Writer:
    """Writes a program, following the shape and device of what each slot holds."""

    def __init__(self, seed: int, length: int) -> None:
        self.rng = random.Random(seed)
        # The larger one makes operations that do not count as light.
        shape = self.rng.choice([(4, 6), (3, 2), (128, 160)])
        self.program = Program(seed, shape)
        self.slots = [_Slot(shape, i % 2) for i in range(SLOTS)]
        self.length = length

    def write(self) -> Program:
        self.program.statements = list(self.block(self.length))
        return self.program

    def block(self, length: int, depth: int = 0) -> Iterator[Statement]:
        makers = [
            (6, self.mix), (4, self.scale), (3, self.in_place), (3, self.in_place_scalar), (4, self.view),
            (2, self.reshape), (5, self.assign), (2, self.copyto), (2, self.move), (6, self.push), (1, self.fail),
            (3, self.fill), (1, self.look), (1, self.wait),
        ]  # fmt: skip
        weights, functions = zip(*makers, strict=True)
        while length > 0:
            if depth == 0 and self.rng.random() < 0.06:
                inner = self.rng.randrange(1, 10)
                yield ("bulk", self.rng.choice((1, 2, 5, 16)), list(self.block(inner, depth + 1)))
                length -= inner
                continue
            statement = self.rng.choices(functions, weights)[0]()
            if statement is not None:
                length -= 1
                yield statement

    def fitting(self, like: _Slot | None, device: bool) -> list[int]:
        return [
            i
            for i, slot in enumerate(self.slots)
            if like is None or (slot.shape == like.shape and (not device or slot.device == like.device))
        ]

    def any(self, like: _Slot | None = None, device: bool = True) -> int:
        return self.rng.choice(self.fitting(like, device))

    def constant(self) -> float:
        return self.rng.randrange(-16, 17) / 2

    def mix(self) -> Statement:
        a = self.any()
        b = self.any(self.slots[a])
        target = self.rng.randrange(SLOTS)
        self.slots[target] = _Slot(self.slots[a].shape, self.slots[a].device)
        return ("mix", target, self.rng.choice(("add", "sub", "maximum")), a, b)

    def scale(self) -> Statement:
        a, target = self.any(), self.rng.randrange(SLOTS)
        self.slots[target] = _Slot(self.slots[a].shape, self.slots[a].device)
        return ("scale", target, a, self.rng.choice((-1.0, 0.5, -0.25)))

    def in_place(self) -> Statement:
        a = self.any()
        return ("in place", a, self.any(self.slots[a]))

    def in_place_scalar(self) -> Statement:
        return ("in place scalar", self.any(), self.rng.choice((-1.0, 0.5, -0.75)))

    def key(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        parts: list[Any] = []
        for n in shape:
            begin = self.rng.randrange(n)
            parts.append(
                self.rng.choice(
                    [
                        slice(None),
                        slice(begin, self.rng.randrange(begin, n) + 1),
                        slice(None, None, 2),
                        slice(None, None, -1),
                    ]
                )
            )
        return tuple(parts[: self.rng.randrange(1, len(shape) + 1)])

    def view(self) -> Statement | None:
        a, target = self.any(), self.rng.randrange(SLOTS)
        slot = self.slots[a]
        key = self.key(slot.shape)
        sample = np.empty(slot.shape, np.int8)[key]
        if not sample.size:
            return None
        self.slots[target] = _Slot(sample.shape, slot.device)
        return ("view", target, a, key)

    def reshape(self) -> Statement | None:
        a, target = self.any(), self.rng.randrange(SLOTS)
        slot = self.slots[a]
        size = int(np.prod(slot.shape))
        shape = self.rng.choice([(size,), (size, 1), slot.shape[::-1], self.program.shape])
        if np.prod(shape) != size:
            return None
        self.slots[target] = _Slot(shape, slot.device)
        return ("reshape", target, a, shape)

    def assign(self) -> Statement | None:
        a = self.any()
        key = self.key(self.slots[a].shape)
        selected = np.empty(self.slots[a].shape, np.int8)[key].shape
        value: Any = self.constant()
        if self.rng.random() < 0.6:
            # From either device: an assignment brings the value over.
            fitting = self.fitting(_Slot(selected, 0), device=False)
            if not fitting:
                return None
            return ("assign", a, key, "slot", self.rng.choice(fitting))
        return ("assign", a, key, "constant", value)

    def copyto(self) -> Statement:
        a = self.any()
        return ("copyto", a, self.any(self.slots[a], device=False))

    def move(self) -> Statement:
        a, target, device = self.any(), self.rng.randrange(SLOTS), self.rng.randrange(2)
        slot = self.slots[a]
        self.slots[target] = slot if slot.device == device else _Slot(slot.shape, device)
        return ("move", target, a, device)

    def push(self) -> Statement:
        reads = [self.any() for _ in range(self.rng.randrange(3))]
        writes = [self.any() for _ in range(self.rng.randrange(1, 3))]
        kind = self.rng.choice(("function", "function", "coroutine"))
        draws = self.rng.random() < 0.3
        return ("push", kind, reads, writes, draws, self.rng.choice((0, 0, 30, 300)), self.rng.choice((0, 0, 0, 1, -1)))

    def fail(self) -> Statement:
        reads = [self.any() for _ in range(self.rng.randrange(2))]
        writes = [self.any() for _ in range(self.rng.randrange(1, 3))]
        return ("fail", reads, writes, self.rng.randrange(len(ERRORS)), self.rng.randrange(1000))

    def fill(self) -> Statement:
        return ("fill", self.any(), self.constant())

    def look(self) -> Statement:
        return ("look", self.any())

    def wait(self) -> Statement:
        return self.rng.choice([("wait", self.any()), ("wait all",)])


def make(seed: int, length: int = 45) -> Program:
    """The program of that number."""
    return _Writer(seed, length).write()


def start(program: Program, device: int, index: int) -> np.ndarray[Any, Any]:
    """The initial content of a slot."""
    return _drawn(program.seed, device, index, program.shape).copy()


@functools.lru_cache(64)  # a program and the serial one that it is compared with begin with the same
def _drawn(seed: int, device: int, index: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, device, index]).integers(-8, 9, shape).astype(np.float32)


def draw(generator: np.random.Generator, target: Any) -> None:
    """Sample, as a random operation does."""
    target[...] = generator.random(target.shape, np.float32)


def last(array: Any) -> Any:
    """The last element."""
    return array.flat[-1]


def update(reads: list[Any], writes: list[Any], last: Callable[[Any], Any] = last) -> float:
    """The effect of a pushed function: all that it writes depends on all that it reads, in order."""
    total = np.float32(0)
    for each in reads:
        total = np.float32(total * np.float32(0.5) + last(each) * np.float32(0.25))
    for index, each in enumerate(writes):
        np.multiply(each, np.float32(0.5), out=each)
        each += np.float32(total * np.float32(0.25) + np.float32(index))
    return float(total)


BITS = np.random.SFC64
MIX = {"add": np.add, "sub": np.subtract, "maximum": np.maximum}


# -- the serial interpreter --------------------------------------------------------------------------------


@dataclass(eq=False)
class _Memory:
    """A storage: its content, and what poisons it."""

    content: np.ndarray[Any, Any]
    error: Exception | None = None


@dataclass(eq=False)
class _Ref:
    """An array: a view into a storage."""

    memory: _Memory
    view: np.ndarray[Any, Any]
    device: int

    @property
    def is_whole(self) -> bool:
        whole = self.memory.content
        return (
            self.view.shape == whole.shape
            and self.view.strides == whole.strides
            and self.view.ctypes.data == whole.ctypes.data
        )

    @property
    def updates(self) -> list[_Memory]:
        """The storages that a write into this array also reads: a view leaves the rest as it was."""
        return [] if self.is_whole else [self.memory]


def _new(like: np.ndarray[Any, Any], device: int) -> _Ref:
    memory = _Memory(np.zeros(like.shape, np.float32))
    return _Ref(memory, memory.content, device)


def _do(reads: list[_Memory], writes: list[_Memory], function: Callable[[], Any]) -> Outcome:
    """Law 3, serially."""
    error = next((each.error for each in reads if each.error is not None), None)
    result = None
    if error is None:
        try:
            result = function()
        except Exception as raised:
            error = raised
    for each in writes:
        each.error = error
    return ("result", result) if error is None else ("error", type(error), str(error))


class Serial:
    """Runs a program in order, on NumPy."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots: list[_Ref] = []
        for index in range(SLOTS):
            memory = _Memory(start(program, index % 2, index))
            self.slots.append(_Ref(memory, memory.content, index % 2))
        self.generators = [np.random.Generator(BITS([program.seed, device])) for device in range(2)]
        self.outcomes: list[Outcome] = []
        self.results: list[Outcome] = []

    def run(self) -> list[Outcome]:
        self.block(self.program.statements)
        return [*self.outcomes, *self.results, *(self.outcome(ref) for ref in self.slots)]

    def block(self, statements: list[Statement]) -> None:
        for name, *arguments in statements:
            getattr(self, name.replace(" ", "_"))(*arguments)

    def outcome(self, ref: _Ref) -> Outcome:
        error = ref.memory.error
        return _content(ref.view) if error is None else ("error", type(error), str(error))

    def compute(self, inputs: list[_Ref], function: Callable[..., Any]) -> _Ref:
        out = _new(inputs[0].view, inputs[0].device)
        _do([each.memory for each in inputs], [out.memory], lambda: function(*(i.view for i in inputs), out=out.view))
        return out

    def scaled(self, ref: _Ref, number: float) -> _Ref:
        return self.compute([ref], lambda x, out: np.multiply(x, np.float32(number), out=out))

    def mix(self, target: int, name: str, a: int, b: int) -> None:
        halves = [self.scaled(self.slots[i], 0.5) for i in (a, b)]
        self.slots[target] = self.compute(halves, lambda x, y, out: MIX[name](x, y, out=out))

    def scale(self, target: int, a: int, number: float) -> None:
        self.slots[target] = self.scaled(self.slots[a], number)

    def in_place(self, a: int, b: int) -> None:
        self.in_place_scalar(a, 0.5)
        half, x = self.scaled(self.slots[b], 0.5), self.slots[a]
        _do([x.memory, half.memory], [x.memory], lambda: np.add(x.view, half.view, out=x.view))

    def in_place_scalar(self, a: int, number: float) -> None:
        x = self.slots[a]
        _do([x.memory], [x.memory], lambda: np.multiply(x.view, np.float32(number), out=x.view))

    def view(self, target: int, a: int, key: Any) -> None:
        x = self.slots[a]
        part = x.view[key]
        self.slots[target] = _Ref(x.memory, part, x.device)
        if not part.flags.c_contiguous:  # what does not lie together is copied
            self.slots[target] = part_of_target = _new(part, x.device)
            _do([x.memory], [part_of_target.memory], lambda: np.copyto(part_of_target.view, part))

    def reshape(self, target: int, a: int, shape: tuple[int, ...]) -> None:
        x = self.slots[a]
        self.slots[target] = _Ref(x.memory, x.view.reshape(shape), x.device)

    def write(self, target: _Ref, sources: list[_Memory], function: Callable[[], Any]) -> None:
        _do([*sources, *target.updates], [target.memory], function)

    def assign(self, a: int, key: Any, kind: str, value: Any) -> None:
        x = self.slots[a]
        target = _Ref(x.memory, x.view[key], x.device)
        if kind == "constant":
            return self.write(target, [], lambda: np.copyto(target.view, value))
        source = self.moved(self.slots[value], x.device)
        return self.write(target, [source.memory], lambda: np.copyto(target.view, source.view.copy()))

    def fill(self, a: int, value: float) -> None:
        self.assign(a, slice(None), "constant", value)

    def copyto(self, a: int, b: int) -> None:
        if a != b and self.slots[a] is not self.slots[b]:
            x, y = self.slots[a], self.slots[b]
            self.write(y, [x.memory], lambda: np.copyto(y.view, x.view.copy()))

    def moved(self, ref: _Ref, device: int) -> _Ref:
        if ref.device == device:
            return ref
        out = _new(ref.view, device)
        _do([ref.memory], [out.memory], lambda: np.copyto(out.view, ref.view))
        return out

    def move(self, target: int, a: int, device: int) -> None:
        self.slots[target] = self.moved(self.slots[a], device)

    def push(self, kind: str, reads: list[int], writes: list[int], draws: bool, *_: Any) -> None:
        read, written = [self.slots[i] for i in reads], [self.slots[i] for i in writes]

        def work() -> float:
            if draws:
                draw(self.generators[written[0].device], written[0].view)
            return update([each.view for each in read], [each.view for each in written])

        tags = [each.memory for each in (*read, *written)]
        self.results.append(_do(tags, [each.memory for each in written], work))

    def fail(self, reads: list[int], writes: list[int], error: int, code: int) -> None:
        def work() -> None:
            raise ERRORS[error](code)

        tags = [self.slots[i].memory for i in reads]
        self.results.append(_do(tags, [self.slots[i].memory for i in writes], work))

    def look(self, a: int) -> None:
        self.outcomes.append(self.outcome(self.slots[a]))

    def wait(self, a: int) -> None:
        pass

    def wait_all(self) -> None:
        pass

    def bulk(self, size: int, body: list[Statement]) -> None:
        self.block(body)


def _content(view: Any) -> Outcome:
    return ("content", view.shape, np.ascontiguousarray(view).tobytes())


# -- flowmx ------------------------------------------------------------------------------------------------


class Flow:
    """Runs a program on flowmx; blocking with :meth:`run`, as a coroutine with :meth:`run_async`.

    Attributes:
        opened: the content of an array, for a function that runs on its device.
        last: the last element of that, on the host.
        draw: fills it with random numbers.
    """

    opened = staticmethod(np.from_dlpack)
    last = staticmethod(last)
    draw = staticmethod(draw)

    def __init__(self, program: Program, contexts: list[Context]) -> None:
        self.program = program
        self.contexts = contexts
        self.slots = [mx.nd.array(start(program, index % 2, index), ctx=contexts[index % 2]) for index in range(SLOTS)]
        self.generators = [Generator(f"of program {program.seed}, {device}", 0) for device in range(2)]
        for device, generator in enumerate(self.generators):
            generator.bits = np.random.Generator(BITS([program.seed, device]))
        self.outcomes: list[Outcome] = []
        self.handles: list[Any] = []

    def run(self) -> list[Outcome]:
        steps = self.block(self.program.statements)
        for array in steps:
            self.quiet(mx.nd.waitall if array is None else array.wait_to_read)
        results = [self.result(handle) for handle in self.handles]
        return [*self.outcomes, *results, *(self.outcome(array) for array in self.slots)]

    async def run_async(self) -> list[Outcome]:
        for array in self.block(self.program.statements):
            await self.until_ready(array)
        for handle in self.handles:
            await self.until_ready(handle)
        for array in self.slots:
            await self.until_ready(array)
        results = [self.result(handle) for handle in self.handles]
        return [*self.outcomes, *results, *(self.outcome(array) for array in self.slots)]

    async def until_ready(self, array: Any) -> None:
        try:
            await (mx.nd.waitall_async() if array is None else array)
        except Exception:
            pass  # what it carries is looked at later

    def quiet(self, wait: Callable[[], Any]) -> None:
        try:
            wait()
        except Exception:
            pass

    def outcome(self, array: Any) -> Outcome:
        try:
            return _content(array.asnumpy())
        except Exception as error:
            return ("error", type(error), str(error))

    def result(self, handle: Any) -> Outcome:
        try:
            return ("result", handle.wait())
        except Exception as error:
            return ("error", type(error), str(error))

    def block(self, statements: list[Statement]) -> Iterator[Any]:
        """Do the statements; yields where to wait: an array, or None for everything."""
        for name, *arguments in statements:
            if name == "bulk":
                with mx.engine.bulk(arguments[0]):
                    for array in self.block(arguments[1]):
                        yield array
            elif name == "look":
                array = self.slots[arguments[0]]
                yield array
                self.outcomes.append(self.outcome(array))
            elif name == "wait":
                yield self.slots[arguments[0]]
            elif name == "wait all":
                yield None
            else:
                getattr(self, name.replace(" ", "_"))(*arguments)

    def mix(self, target: int, name: str, a: int, b: int) -> None:
        x, y = self.slots[a] * 0.5, self.slots[b] * 0.5
        operators = {"add": lambda: x + y, "sub": lambda: x - y, "maximum": lambda: mx.nd.broadcast_maximum(x, y)}
        self.slots[target] = operators[name]()

    def scale(self, target: int, a: int, number: float) -> None:
        self.slots[target] = self.slots[a] * number

    def in_place(self, a: int, b: int) -> None:
        x = self.slots[a]
        x *= 0.5
        x += self.slots[b] * 0.5

    def in_place_scalar(self, a: int, number: float) -> None:
        x = self.slots[a]
        x *= number

    def view(self, target: int, a: int, key: Any) -> None:
        self.slots[target] = self.slots[a][key]

    def reshape(self, target: int, a: int, shape: tuple[int, ...]) -> None:
        self.slots[target] = self.slots[a].reshape(shape)

    def assign(self, a: int, key: Any, kind: str, value: Any) -> None:
        self.slots[a][key] = value if kind == "constant" else self.slots[value]

    def fill(self, a: int, value: float) -> None:
        self.slots[a][:] = value

    def copyto(self, a: int, b: int) -> None:
        self.slots[a].copyto(self.slots[b])

    def move(self, target: int, a: int, device: int) -> None:
        self.slots[target] = self.slots[a].as_in_context(self.contexts[device])

    def push(self, kind: str, reads: list[int], writes: list[int], draws: bool, spin: int, priority: int) -> None:
        read, written = [self.slots[i] for i in reads], [self.slots[i] for i in writes]
        device = self.contexts.index(written[0].context)
        generator = self.generators[device]

        def work() -> float:
            for _ in range(spin):
                pass
            targets = [self.opened(each) for each in written]
            if draws:
                self.draw(generator.bits, targets[0])
            return update([self.opened(each) for each in read], targets, self.last)

        async def work_async() -> float:
            for _ in range(spin // 30):
                await asyncio.sleep(0)
            return work()

        tags: list[Any] = [*written, generator] if draws else written
        function = work if kind == "function" else work_async
        self.handles.append(
            mx.engine.push(function, [*read, *written], tags, device=self.contexts[device], priority=priority)
        )

    def fail(self, reads: list[int], writes: list[int], error: int, code: int) -> None:
        function = functools.partial(_raise, ERRORS[error], code)
        handle = mx.engine.push(
            function, [self.slots[i] for i in reads], [self.slots[i] for i in writes], self.contexts[0], name="fail"
        )
        self.handles.append(handle)


def _raise(make: Callable[[int], Exception], code: int) -> None:
    raise make(code)
