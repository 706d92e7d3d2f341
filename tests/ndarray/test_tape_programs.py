"""Random programs on the tape give the right gradients or raise; the checker detects faulty implementations.

``python -m tests.tape.check`` checks 20,000 programs, ``make soak`` 200,000.
"""

import numpy as np
import pytest

from flowmx import autograd
from flowmx.ndarray import (
    backward,
    backward_replay,
    core,
    fast_calls,
    gradient_rules,
    indexing,
    recorded_writes,
    recording,
    views,
)
from flowmx.ndarray.backward import BackwardPass
from flowmx.ndarray.backward_bulks import Bulk
from flowmx.ndarray.recording import Leaf
from flowmx.ops.arrays.shape_arithmetic import key_from_template
from flowmx.ops.registry.operators import lookup, registered_operators
from tests.tape.check import Wrong, check
from tests.tape.generate import make
from tests.tape.jets import DIRECTIONS, Jet
from tests.tape.statements import KINDS, UNARY, unary

FOUND = [51191, 90469]
"""Seeds of programs that once gave a wrong gradient."""


@pytest.mark.parametrize(
    "seeds", [[*range(400), *FOUND], pytest.param(range(200_000), marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
def test_programs(seeds):
    report = check(seeds)
    print(report)
    # Most programs complete, and all kinds of statements occur.
    assert sum(report.endings.values()) < report.programs / 2
    assert set(report.kinds) == set(KINDS)


# -- the oracle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY)
def test_derivatives_of_the_oracle(name):
    x, eps = np.array([0.4, 1.3, 0.8, 1.1]), 1e-4
    first = np.zeros((DIRECTIONS, 4))
    first[range(4), range(4)] = 1
    jet = unary(Jet(x, first), name)
    above, below = (unary(Jet(x + step), name).value for step in (eps, -eps))
    if name != "BlockGrad":  # a jet without derivatives has those of a constant
        slope = 0 if jet.first is None else jet.first[range(4), range(4)]
        np.testing.assert_allclose((above - below) / (2 * eps), slope, 1e-5, 1e-7)
        curve = 0 if jet.second is None else jet.second[range(4), range(4), range(4)]
        np.testing.assert_allclose((above + below - 2 * jet.value) / eps**2, curve, 1e-5, 1e-5)


# -- the checker -------------------------------------------------------------------------------------------


def nothing(*arguments):
    return None


def forgets_assignments(patch, whole):
    def record_assignment(array, value, target, real=recorded_writes.record_assignment):
        if (target.strided_view == array.strided_view) != whole:
            real(array, value, target)

    patch.setattr(recorded_writes, "record_assignment", record_assignment)


def forgets_copies(patch, within):
    def record_copy(source, target, real=recorded_writes.record_copy):
        if (source.storage.device is target.storage.device) != within:
            real(source, target)

    patch.setattr(recorded_writes, "record_copy", record_copy)


def forgets_base(patch):
    patch.setattr(views.History, "write", lambda self, array, entry, origin: setattr(array, "_past", entry))


def forgets_views(patch):
    patch.setattr(indexing, "make_view", views.view_of)


def keeps_gradients_of_overwritten_values(patch):
    def gradient(self, F, inputs, outputs, heads):
        return [heads[0], self._read_part(F, heads[0])]

    patch.setattr(views.Part, "gradient_of_write", gradient)


def gives_all_duplicates_a_gradient(patch):
    def forward(self, run, inputs, outputs):
        outputs[0][...] = inputs[0][key_from_template(self.key, inputs[1:])]

    patch.setattr(lookup("_chosen_last"), "forward", forward)


def has_no_second_derivative_of_relu(patch):
    records_no_operator_without_gradient(patch)
    patch.setattr(BackwardPass, "_depend_on_variables", lambda self, gradient: gradient)


def records_no_operator_without_gradient(patch):
    def record(name, gradient, *more, real=core.record):
        if gradient is not None:
            real(name, gradient, *more)

    def record_result(name, gradient, *more, real=core.record_result):
        if gradient is not None:
            real(name, gradient, *more)

    patch.setattr(core, "record", record)
    patch.setattr(fast_calls, "record_result", record_result)


def leaves_buffers_unwritten(patch):
    def store(self, real=BackwardPass.store):
        self.leaves = {}
        real(self)

    patch.setattr(BackwardPass, "store", store)


def returns_the_first_row(patch):
    def grad(heads, variables, *more, real=autograd.grad, **options):
        gradients = real(heads, variables, *more, **options)
        return gradients[0] if options.get("create_graph") and len(gradients) == 1 else gradients

    patch.setattr(autograd, "grad", grad)


def stores_what_it_returns(patch):
    def gradients(self, leaves, variables, real=BackwardPass.gradients):
        self.store()
        return real(self, leaves, variables)

    patch.setattr(BackwardPass, "gradients", gradients)


def walks_with(patch, **changed):
    def init(self, retain, create_graph, train_mode, stores, real=BackwardPass.__init__):
        real(self, changed.get("retain", retain), create_graph, train_mode, changed.get("stores", stores))

    patch.setattr(BackwardPass, "__init__", init)


def adds_nothing_to_buffers(patch):
    def store(leaf, total, target, real=backward._store_array):
        real(Leaf(leaf.grad, "write"), total, target)

    patch.setattr(backward, "_store_array", store)
    patch.setattr(Bulk, "add_to", lambda self, value, target, rule: self.store(value, target))


def views_from_outside_are_recorded(patch):
    def make_view(array, offset, shape, strides):
        view = views.view_of(array, offset, shape, strides)
        view.history = views._history_of_views(array)
        return view

    patch.setattr(indexing, "make_view", make_view)


def detaches_nothing(patch):
    def detach(array):
        handle = array.without_history()
        handle.history = views._history_of_views(array)
        return handle

    patch.setattr(views, "detach", detach)


def replays(patch, change):
    def learn(self, real=backward_replay.ReplayRecorder.replay):
        learned = real(self)
        return None if learned is None else change(learned)

    patch.setattr(backward_replay.ReplayRecorder, "replay", learn)


def without_sums(learned):
    def plain(program):
        totals = [
            each._replace(forward=None) if isinstance(each, backward_replay.Total) else each for each in program.steps
        ]
        return program._replace(steps=tuple(totals))

    return learned._replace(programs=tuple([plain(each) for each in learned.programs]))


def ignores_connections_of_tapes(patch):
    def key_of(nodes, *more, real=backward_replay.key_of):
        return None if real(nodes, *more) is None else tuple([id(node.rules) for node in nodes])

    patch.setattr(backward_replay, "key_of", key_of)


WRONG = {
    "an assignment to a whole array is not recorded": lambda patch: forgets_assignments(patch, True),
    "an assignment to a part is not recorded": lambda patch: forgets_assignments(patch, False),
    "an assignment by index arrays is not recorded": lambda patch: patch.setattr(
        recorded_writes, "record_selection", nothing
    ),
    "a copy on one device drops the history": lambda patch: forgets_copies(patch, True),
    "a copy to another device drops the history": lambda patch: forgets_copies(patch, False),
    "writes by out= are not recorded": lambda patch: patch.setattr(core, "record_written", nothing),
    "a copy has no gradient": lambda patch: patch.setattr(
        recorded_writes, "_gradient_of_assignment", lambda *_: [None]
    ),
    "a write through a view forgets the base": forgets_base,
    "views have no history": forgets_views,
    "overwritten values keep their gradient": keeps_gradients_of_overwritten_values,
    "both values assigned to one place get a gradient": gives_all_duplicates_a_gradient,
    "no second derivative of relu": has_no_second_derivative_of_relu,
    "operators without a gradient are not recorded": records_no_operator_without_gradient,
    "gradient buffers are left unwritten": leaves_buffers_unwritten,
    "a history of a gradient buffer is kept": lambda patch: patch.setattr(backward, "_overwrite", nothing),
    "gradients are not added up": adds_nothing_to_buffers,
    "create_graph returns the first row": returns_the_first_row,
    "grad() writes into buffers": stores_what_it_returns,
    "grad() returns an array that others hold": lambda patch: patch.setattr(
        BackwardPass, "_is_shared", lambda *_: False
    ),
    "the tape is freed though retained": lambda patch: walks_with(patch, retain=False),
    "a freed tape is a constant": lambda patch: patch.setattr(BackwardPass, "_stop_at", nothing),
    "changed arrays are not refused": lambda patch: patch.setattr(recording.TapeNode, "refuse_changed", nothing),
    "arrays that a Function stored may change": lambda patch: patch.setattr(autograd, "_arrays_in", lambda _: ()),
    "inputs updated in place are not copied": lambda patch: patch.setattr(
        gradient_rules, "positions_read", lambda *_: ()
    ),
    "writes through another history are not detected": lambda patch: patch.setattr(
        views.History, "share_memory_of", lambda s, _: s
    ),
    "views created outside are recorded": views_from_outside_are_recorded,
    "detach() detaches nothing": detaches_nothing,
    "replays do not check for changes": lambda patch: replays(patch, lambda learned: learned._replace(checked=())),
    "replays add nothing to buffers": lambda patch: replays(patch, without_sums),
    "replays drop the last operation": lambda patch: replays(
        patch, lambda learned: learned._replace(programs=learned.programs[:-1])
    ),
    "replays of other tapes": ignores_connections_of_tapes,
    "variables are changed in place": lambda patch: patch.setattr(views, "refuse_write", nothing),
}  # fmt: skip


@pytest.fixture
def fresh_rules():
    """Clear all learned gradients, before and after the test."""

    def clear():
        views._part.cache_clear()
        recorded_writes._selection_assignment.cache_clear()
        recorded_writes._rules.cache_clear()
        backward._dependence_rules.clear()
        for cls in set(registered_operators().values()):
            for op in cls._interned.values():
                for spec in op._specs.values():
                    spec.rules.clear()

    clear()
    yield
    clear()


OFTEN = {
    "both values assigned to one place get a gradient": ["choose"],
    "arrays that a Function stored may change": ["custom", "update"],
    "writes through another history are not detected": ["detach", "assign", "view"],
    "a freed tape is a constant": ["backward"],
}
"""Statements that programs must contain to show rare faults, so that fewer programs are needed."""

FIRST = {"replays do not check for changes": 26_000}
"""The first seed for faults that about one program in ten thousand shows."""


@pytest.mark.parametrize("name", WRONG)
def test_faults_are_detected(name, monkeypatch, fresh_rules):
    WRONG[name](monkeypatch)
    first = FIRST.get(name, 0)
    with pytest.raises(Wrong, match="seed"):
        check(range(first, first + 4000), OFTEN.get(name, ()), shrinks=False)


def test_a_finding_is_a_small_program_that_can_be_run(monkeypatch, fresh_rules, capsys):
    WRONG["overwritten values keep their gradient"](monkeypatch)
    with pytest.raises(Wrong) as error:
        check(range(4000), ["assign", "view"])
    first, _, program = str(error.value).partition("\n\n")
    assert "expected" in first
    assert program.count("\n") < 30
    exec(compile(program, "<finding>", "exec"), {})


def test_a_seed_gives_the_same_program():
    assert make(7)[0] == make(7)[0] != make(8)[0]
