"""The checker of the tape: random programs under flowmx, compared with the oracle.

    python -m tests.tape.check [programs] [seed]

A program passes if every gradient and every array equals the oracle's, or flowmx raises an AutogradError for a known
reason. A failing program is shrunk and printed as a program that can be run.
"""

import itertools
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

import flowmx as mx
from flowmx import autograd, nd
from flowmx.engine.runtime import engine
from flowmx.errors import AutogradError, CrossDeviceWarning
from flowmx.gluon import nn
from tests.native_runs import eager_native_runs
from tests.replays import eager_replays
from tests.tape.generate import again, make
from tests.tape.oracle import Invalid

RUNS = 3
"""Runs of each program: backward passes are learned in the first, and become native runs in the second."""
TOLERANCE = 2e-3
numbers = itertools.count()


class Square(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, head):
        return 2 * self.saved_tensors[0] * head


class Scaled(autograd.Function):
    def forward(self, x):
        y = x.copy()
        y *= x
        self.x = x
        return y

    def backward(self, head):
        return 6 * self.x * head


class CustomSquare(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


@mx.operator.register("tape_square")
class CustomSquareProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return CustomSquare()


def custom(x):
    return nd.Custom(x, op_type="tape_square")


class Block(nn.HybridBlock):
    def hybrid_forward(self, F, x, y):
        return F.tanh(x * y) * x


block = Block()
block.hybridize()


def stretches(are_on):
    """Set whether backward passes collect gradients in bulks (FLOWMX_BACKWARD_BULKS)."""
    engine.config = replace(engine.config, backward_bulks=are_on)


def chain(x, count):
    for _ in range(count):
        x = x * 1.01
    return x


PRELUDE = """\
import flowmx as mx
from flowmx import autograd, nd
from tests.tape.check import Scaled, Square, block, chain, custom, stretches


def look(what, array):
    print(what, array.asnumpy().tolist())

"""


def source(program):
    """Return the lines of a program; one for each statement."""
    lines, depth, empty = [], 0, False
    for each in program:
        if each.kind == "leave":
            lines.append("    " * depth + "pass" if empty else "")
            depth -= 1
        else:
            lines.append("    " * depth + each.text())
            depth += each.kind == "enter"
        empty = each.kind == "enter"
    return [*lines, *(["    " * depth + "pass"] if empty else [])]


@dataclass
class Outcome:
    """The outcome of a program under flowmx: values that it read, its arrays, an error with the statement's number."""

    values: list[tuple[str, np.ndarray]] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    error: Exception | None = None
    at: int = -1


def run(program):
    """Run a program under flowmx."""
    outcome = Outcome()
    space = {
        "mx": mx, "nd": nd, "autograd": autograd, "Scaled": Scaled, "Square": Square, "block": block, "custom": custom,
        "chain": chain, "stretches": stretches,
        "look": lambda what, array: outcome.values.append((what, array.asnumpy())),
    }  # fmt: skip
    # A unique name, since warnings are issued once for each line.
    code = compile("\n".join(source(program)) or "pass", f"<program {next(numbers)}>", "exec")
    with warnings.catch_warnings():
        stretches(True)
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", CrossDeviceWarning)
        try:
            exec(code, space)
            names = {each.out for each in program if each.out}
            outcome.arrays = {name: space[name].asnumpy() for name in names}
            nd.waitall()
        except Exception as error:
            outcome.error = error
            trace = error.__traceback__
            while trace is not None:
                if trace.tb_frame.f_code is code:
                    outcome.at = trace.tb_lineno - 1
                trace = trace.tb_next
    return outcome


def judge(program, world=None):
    """Return the fault of a program under flowmx (None: no fault), and the kind of error that it ended with.

    Raises:
        Invalid: the program is invalid.
    """
    world = world or again(program)
    if world.refusal is not None:
        program = program[: world.refusal[0] + 1]
    with eager_replays(), eager_native_runs():
        for _ in range(RUNS):
            wrong, ending = judged(program, world, run(program))
            if wrong is not None:
                break
    return wrong, ending


def judged(program, world, outcome):
    """Compare an outcome with the oracle; returns the fault and the kind of error, as :func:`judge`."""
    for (what, expected), (_, value) in zip(world.seen, outcome.values, strict=False):
        if not close(expected, value):
            if "was freed by" in world.excuses and not expected.any():
                return None, "was freed by"  # freed nodes lead to no variables any more
            return f"{what}: expected {shown(expected)}, got {shown(value)}", ""
    if outcome.error is not None:
        return excused(outcome, world)
    if world.refusal is not None:
        return f"statement {world.refusal[0]} must be refused ({world.refusal[1]!r}), and was not", ""
    for name, value in outcome.arrays.items():
        if not close(world.handles[name].value, value):
            return f"{name}: expected {shown(world.handles[name].value)}, got {shown(value)}", ""
    return None, ""


def excused(outcome, world):
    """Compare an error with the allowed reasons; returns the fault (None: allowed), and the reason."""
    text = f"{type(outcome.error).__name__}: {outcome.error}"
    if not isinstance(outcome.error, (AutogradError, UserWarning)):
        return f"statement {outcome.at}: {text}", ""
    reasons = {reason for reason, since in world.excuses.items() if since <= outcome.at}
    if "was freed by" in reasons:
        reasons.add("do not depend on")  # freed nodes lead to no variable any more
    if world.refusal is not None and world.refusal[0] == outcome.at:
        reasons.add(world.refusal[1])
    for reason in sorted(reasons):
        if reason in text:
            return None, reason
    return f"statement {outcome.at} was refused without a reason: {text}", ""


def close(expected, value):
    if expected.shape != value.shape:
        return False
    return np.allclose(value, expected, TOLERANCE, TOLERANCE * max(1.0, np.max(np.abs(expected), initial=0)))


def shown(array):
    return np.round(array, 4).tolist()


# -- shrinking ---------------------------------------------------------------------------------------------


def shrink(program, is_bad):
    """Return a smaller program that is still bad, by removing statements, one by one and in groups."""
    size = max(1, len(program) // 2)
    while size:
        at, before = 0, len(program)
        while at < len(program):
            smaller = program[:at] + program[at + size :]
            if is_bad(smaller):
                program = smaller
            else:
                at += 1
        program = without_scopes(program, is_bad)
        size = size // 2 if len(program) == before or size > 1 else 1
    return program


def without_scopes(program, is_bad):
    at = 0
    while at < len(program):
        if program[at].kind == "enter":
            end = leaving(program, at)
            smaller = [each for position, each in enumerate(program) if position not in (at, end)]
            if is_bad(smaller):
                program = smaller
                continue
        at += 1
    return program


def leaving(program, at):
    depth = 0
    for position in range(at, len(program)):
        depth += {"enter": 1, "leave": -1}.get(program[position].kind, 0)
        if not depth:
            return position
    return None


def is_bad(program):
    try:
        return judge(program)[0] is not None
    except Invalid:
        return False


# -- checking ----------------------------------------------------------------------------------------------


class Wrong(AssertionError):
    """A program with a wrong result."""


@dataclass
class Report:
    """The outcome of a run.

    Attributes:
        programs: how many programs passed.
        statements: how many statements they had.
        looks: how many gradients were compared.
        endings: how many programs ended with an error of each kind.
        kinds: how many statements of each kind there were.
    """

    programs: int = 0
    statements: int = 0
    looks: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def __str__(self):
        ended = ", ".join(f"{count} {kind!r}" for kind, count in self.endings.most_common())
        return (
            f"{self.programs} programs of {self.statements} statements, {self.looks} gradients compared; "
            f"ended by an error: {ended or 'none'}"
        )


def describe(program, seed):
    world = again(program)
    wrong = judge(program, world)[0]
    program = program if world.refusal is None else program[: world.refusal[0] + 1]
    return "\n".join([f"seed {seed}: {wrong}", "", PRELUDE + "\n".join(source(program)), ""])


def check(seeds, often=(), shrinks=True):
    """Check the programs of some seeds.

    Args:
        seeds: which programs.
        often: kinds of statements to draw often.
        shrinks: whether to search for a smaller program if one fails.

    Raises:
        Wrong: a program has a wrong result; the message is a smaller program that has one, too.
    """
    report = Report()
    for seed in seeds:
        program, world = make(seed, often)
        wrong, ending = judge(program, world)
        if wrong is not None:
            raise Wrong(describe(shrink(program, is_bad) if shrinks else program, seed))
        report.programs += 1
        report.statements += len(program)
        report.kinds.update(each.kind for each in program)
        report.looks += report_looks(program, ending)
        if ending:
            report.endings[ending] += 1
    return report


def report_looks(program, ending):
    return 0 if ending else sum(each.kind == "look" for each in program)


def main(arguments):
    count, seed = int(arguments[0]) if arguments else 20_000, int(arguments[1]) if len(arguments) > 1 else 0
    begun = time.monotonic()
    try:
        report = check(range(seed, seed + count))
    except Wrong as wrong:
        print(wrong)
        return 1
    print(f"{report}; {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
