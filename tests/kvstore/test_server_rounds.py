"""The usual case of joined requests: all parts take each step together, with one effect and one message."""

import pytest

from flowmx.kvstore.server import modes
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.state_machine import Core

PARTS = [p.Part(f"k{i}", 0, 0) for i in range(5)]
TOGETHER = p.Merges | p.Updates | p.Replies
SINGLE = p.Merge | p.Update | p.Reply
WORKERS = ("w0", "w1")


class Servers:
    """Servers that carry out effects at once, and record every effect and message.

    Args:
        names: the names of the servers; the second one backs up the first.
    """

    def __init__(self, names):
        self.cores = {name: Core(name, modes.create("sync", None)) for name in names}
        self.effects, self.answers = [], {}
        self.computes = True
        for name, core in self.cores.items():
            self.carry_out(name, core.view(p.View(1, names, frozenset(WORKERS))))
        for rank, worker in enumerate(WORKERS):
            for part in PARTS:
                value = () if rank == 0 else None
                self.ask("enrol", ("enrol", worker, part), worker, 1, part, p.Member(rank, 1), value)
        self.effects.clear()
        self.answers.clear()

    def ask(self, method, *arguments):
        self.carry_out("a", getattr(self.cores["a"], method)(*arguments))

    def push(self, worker, number, parts=PARTS, pulls=False, acknowledged=None):
        """Push the gradient ``(worker, number)`` of parts; by default the previous push is acknowledged."""
        acknowledged = number - 1 if acknowledged is None else acknowledged
        requests = [("push", worker, number, part) for part in parts]
        count = len(parts)
        pushed = [(worker, number)] * count
        self.ask("push_all", requests, worker, parts, [number] * count, pushed, [acknowledged] * count, pulls)

    def pull(self, worker, number, parts=PARTS, acknowledged=None):
        acknowledged = number if acknowledged is None else acknowledged
        count = len(parts)
        requests = [("pull", worker, number, part) for part in parts]
        self.ask("pull_all", requests, worker, parts, [number] * count, [acknowledged] * count)

    def carry_out(self, name, effects):
        for effect in effects:
            self.effects.append(effect.message if isinstance(effect, p.Send) else effect)
            getattr(self, type(effect).__name__.lower())(name, effect)

    def send(self, name, effect):
        self.carry_out(effect.to, self.cores[effect.to].deliver(name, effect.message))

    def merge(self, name, effect):
        self.carry_out(name, self.cores[name].merged(effect.part, effect.ticket, tuple(effect.gradients)))

    def update(self, name, effect):
        value = (*effect.value, effect.merged)
        self.carry_out(name, self.cores[name].updated(effect.part, effect.ticket, value))

    def merges(self, name, effect):
        if not self.computes:
            return
        sums = [tuple(gradients) for gradients in effect.gradients]
        self.carry_out(name, self.cores[name].merged_all(effect.parts, effect.tickets, sums))

    def updates(self, name, effect):
        values = [(*value, merged) for value, merged in zip(effect.values, effect.merged, strict=True)]
        self.carry_out(name, self.cores[name].updated_all(effect.parts, effect.tickets, values))

    def reply(self, name, effect):
        self.answers[effect.request] = effect.response

    def replies(self, name, effect):
        self.answers.update(effect.responses)

    def taken(self):
        """Return the kinds of effects and messages since the last call, with their numbers of parts."""
        result = [(type(effect).__name__, self.size(effect)) for effect in self.effects]
        self.effects.clear()
        return result

    def size(self, effect):
        if isinstance(effect, p.Replies):
            return len(effect.responses)
        return len(effect.parts) if isinstance(effect, TOGETHER | p.StepsSent | p.Haves) else 1


def value_after(number):
    return p.Content(tuple(tuple((worker, item) for worker in WORKERS) for item in range(1, number + 1)), number)


@pytest.fixture(params=[("a",), ("a", "b")], ids=["alone", "with a backup"])
def servers(request):
    return Servers(request.param)


def test_a_round_of_many_parts_is_one_effect_a_step(servers):
    copies = [("StepsSent", 5), ("Updates", 5), ("Haves", 5)] if "b" in servers.cores else []
    for number in (1, 2, 3):
        servers.push("w0", number)
        assert servers.taken() == []
        servers.push("w1", number)
        result = servers.taken()
        assert sorted(result) == sorted([("Merges", 5), ("Updates", 5), ("Replies", 10), *copies])
        assert set(servers.answers.values()) == {p.Acknowledged(item) for item in range(1, number + 1)}
        assert servers.cores["a"].state.largest_lag == 1


def test_pulls_are_answered_together(servers):
    for number in (1, 2):
        for worker in WORKERS:
            servers.push(worker, number)
        servers.taken()
        servers.pull("w0", number)
        assert servers.taken() == [("Replies", 5)]
        assert {servers.answers["pull", "w0", number, part] for part in PARTS} == {value_after(number)}


def test_pulls_that_wait_are_answered_with_the_round(servers):
    servers.push("w0", 1)
    servers.pull("w0", 1, acknowledged=0)
    assert servers.taken() == []
    servers.push("w1", 1)
    assert dict(servers.taken())["Replies"] == 15  # of two pushes and a pull
    assert {servers.answers["pull", "w0", 1, part] for part in PARTS} == {value_after(1)}


def test_pushes_that_pull_are_answered_once_with_the_value(servers):
    for number in (1, 2):
        for worker in WORKERS:
            servers.push(worker, number, pulls=True)
        assert [item for item in servers.taken() if item[0].startswith("Repl")] == [("Replies", 10)]
        assert value_after(number) in servers.answers.values()


def test_an_unusual_part_is_handled_alone_and_the_others_together(servers):
    servers.push("w0", 2, PARTS[:1], acknowledged=0)  # it arrived before the first one
    servers.push("w0", 1)
    assert servers.taken() == []
    servers.push("w1", 1)
    result = servers.taken()
    assert ("Merges", 4) in result
    assert [item for item in result if item[0] == "Merge"] == [("Merge", 1)]
    servers.push("w0", 2, PARTS[1:])
    servers.push("w1", 2)
    servers.pull("w1", 2)
    assert {servers.answers["pull", "w1", 2, part] for part in PARTS} == {value_after(2)}


def test_single_requests_are_handled_part_by_part(servers):
    servers.ask("push", "x", "w0", PARTS[0], 1, ("w0", 1))
    servers.ask("push", "y", "w1", PARTS[0], 1, ("w1", 1))
    assert ("Merge", 1) in servers.taken()
    assert servers.answers == {"x": p.Acknowledged(1), "y": p.Acknowledged(1)}


def test_results_of_an_earlier_round_change_nothing(servers):
    for worker in WORKERS:
        servers.push(worker, 1)
    [first] = [effect for effect in servers.effects if isinstance(effect, p.Merges)]
    servers.computes = False
    for worker in WORKERS:
        servers.push(worker, 2)
    core, late = servers.cores["a"], [("late",)] * len(PARTS)
    assert core.merged_all(PARTS, first.tickets, late) == []
    assert core.updated_all(PARTS, first.tickets, late) == []
    second = servers.effects[-1]
    servers.computes = True
    servers.carry_out("a", [second])
    servers.pull("w0", 2)
    assert {servers.answers["pull", "w0", 2, part] for part in PARTS} == {value_after(2)}
