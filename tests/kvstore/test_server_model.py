"""The servers' state machine under random interleavings: nothing is lost or applied twice, and there is no deadlock."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowmx.kvstore.server import modes, part_steps, recovery, rounds, slot
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.state_machine import Core
from tests.kvserver_world import Scenario, World, Wrong

CALM = {"duplicates": 0.0}
SCENARIOS = {
    "one server": Scenario(servers=1, workers=3, steps=(2, 3)),
    "sync": Scenario(workers=3, steps=(2, 3, 1)),
    "sync, crashes": Scenario(servers=3, workers=2, parts=4, steps=(4, 3), crashes=3),
    "sync, workers come and go": Scenario(servers=2, workers=3, steps=(4,), late=2, deaths=1),
    "sync, everything": Scenario(servers=3, workers=3, parts=3, steps=(4, 3), late=1, deaths=1, crashes=3),
    "async": Scenario(mode="async", workers=3, steps=(3, 2)),
    "async, everything": Scenario(mode="async", servers=3, workers=3, parts=3, late=1, deaths=1, crashes=3),
    "stale": Scenario(mode="stale", bound=1, servers=2, workers=3, steps=(4, 6), crashes=1),
    "stale, everything": Scenario(
        mode="stale", bound=2, servers=3, workers=3, parts=3, steps=(5, 3), late=1, deaths=1, crashes=2
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_interleaving_ends_correctly(name, seed):
    World(SCENARIOS[name], seed).run()


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_more_interleavings(name):
    for seed in range(5000):
        World(SCENARIOS[name], seed).run()


def test_joined_requests_cover_every_path_of_the_machine():
    """Check that effects and messages for many parts, and those for single parts, all occur."""
    log = set()

    class Watched(World):
        def carry_out(self, name, effects):
            log.update(type(effect.message if isinstance(effect, p.Send) else effect) for effect in effects)
            super().carry_out(name, effects)

    for seed in range(20):
        Watched(SCENARIOS["sync, everything"], seed).run()
    assert log >= {
        p.Merges,
        p.Updates,
        p.Replies,
        p.StepsSent,
        p.Haves,
        p.Merge,
        p.Update,
        p.Reply,
        p.StepSent,
        p.Have,
    }


# -- the checker finds wrong machines ----------------------------------------------------------------------


def acknowledges_at_once(monkeypatch):
    replicate = part_steps.Steps.replicate

    def early(self, slot):
        replicate(self, slot)
        slot.confirmed |= slot.mirrored

    monkeypatch.setattr(part_steps.Steps, "replicate", early)


def knows_no_duplicates(monkeypatch):
    monkeypatch.setattr(Slot, "has_push", lambda self, worker, sequence: (worker, sequence) in self.gradients)


def forgets_what_is_in_progress(monkeypatch):
    def knows(self, worker, sequence):
        return sequence <= self.marks.get(worker, 0) or (worker, sequence) in self.gradients

    monkeypatch.setattr(Slot, "has_push", knows)


def waits_for_those_who_left(monkeypatch):
    monkeypatch.setattr(Slot, "evict", lambda self, view: [])


def sums_in_order_of_arrival(monkeypatch):
    def choose(self, slot):
        ready = slot.pushers(slot.round + 1)
        return [] if slot.counted.keys() - ready.keys() else [(worker, slot.round + 1) for worker in ready]

    monkeypatch.setattr(modes.Sync, "choose", choose)


def knows_no_bound(monkeypatch):
    monkeypatch.setattr(modes.Stale, "_is_next", modes.Async._is_next)
    monkeypatch.setattr(modes.Stale, "may_pull", modes.Mode.may_pull)


def takes_over_without_asking(monkeypatch):
    def collect(self, home, view):
        self._activate(home)

    monkeypatch.setattr(recovery.Recovery, "_collect", collect)


def takes_any_copy(monkeypatch):
    def take_copy(self, sender, message):
        slot = self.state.slot(message.record.part)
        self.primaries.pop(slot.part, None)
        slot.load(message.record)
        self.state.send(sender, part_steps.Have(message.epoch, slot.part, slot.number))

    monkeypatch.setattr(part_steps.Steps, "take_copy", take_copy)


def listens_to_the_past(monkeypatch):
    def deliver(self, sender, message):
        self._deliver(sender, message)
        self.recovery.resume()
        self._retry_parked()
        return self._effects()

    monkeypatch.setattr(Core, "deliver", deliver)


def shows_values_that_are_worked_on(monkeypatch):
    pull = Core._pull

    def now(self, request, part, worker, wanted, acknowledged):
        pull(self, request, part, worker, wanted, acknowledged)
        slot = self.state.slots[part]
        if slot.pulls:
            slot.pulls.clear()
            self.state.reply(request, part_steps.Content(slot.value, slot.round))

    monkeypatch.setattr(Core, "_pull", now)


def acknowledges_many_at_once(monkeypatch):
    merged = rounds.Rounds.merged

    def early(self, parts, tickets, sums):
        merged(self, parts, tickets, sums)
        for part in parts:
            self.state.slots[part].confirmed |= self.state.slots[part].mirrored

    monkeypatch.setattr(rounds.Rounds, "merged", early)


def knows_no_duplicates_among_many(monkeypatch):
    def is_next(slot, push, record):
        return slot.step is None and push[0] in slot.counted and push not in slot.gradients and slot.number > 0

    monkeypatch.setattr(rounds, "_is_next", is_next)


def begins_rounds_of_many_too_soon(monkeypatch):
    push = rounds.Rounds.push

    def soon(self, requests, worker, parts, *arguments):
        slots = [self.state.slots[part] for part in parts if part in self.state.slots]
        counted = [item.counted for item in slots]
        for entry in slots:
            entry.counted = {who: entry.counted[who] for who in entry.counted if who == worker}
        left = push(self, requests, worker, parts, *arguments)
        for each, everybody in zip(slots, counted, strict=True):
            each.counted = everybody
        return left

    monkeypatch.setattr(rounds.Rounds, "push", soon)


def sums_many_in_order_of_enrolment(monkeypatch):
    monkeypatch.setattr(slot, "_sort_by_rank", dict)


def backs_up_in_any_order(monkeypatch):
    monkeypatch.setattr(rounds.Rounds, "_may_follow", lambda self, slot, step: not slot.computing)


def shows_many_values_that_are_worked_on(monkeypatch):
    pull = rounds.Rounds.pull

    def now(self, requests, worker, parts, wanted, acknowledged):
        left = pull(self, requests, worker, parts, wanted, acknowledged)
        for request, part in zip(requests, parts, strict=True):
            result = self.state.slots.get(part)
            if result is not None and result.pulls.pop(request, None):
                self._reply([(request, p.Content(result.value, result.round))])
        return left

    monkeypatch.setattr(rounds.Rounds, "pull", now)


def believes_any_backup(monkeypatch):
    def have(self, sender, message):
        answers = []
        for part in message.parts:
            result = self.state.slots[part]
            if result.step is not None and not result.computing:
                self._complete(result, answers)
        self._reply(answers)

    monkeypatch.setattr(rounds.Rounds, "have", have)


WRONG = {
    acknowledges_at_once: ["sync, crashes", "async, everything"],
    knows_no_duplicates: ["async", "sync, everything"],
    forgets_what_is_in_progress: ["async"],
    waits_for_those_who_left: ["sync"],
    sums_in_order_of_arrival: ["sync"],
    knows_no_bound: ["stale"],
    takes_over_without_asking: ["sync, crashes"],
    takes_any_copy: ["sync, crashes", "async, everything"],
    listens_to_the_past: ["async, everything", "sync, crashes"],
    shows_values_that_are_worked_on: ["async"],
    acknowledges_many_at_once: ["sync, crashes"],
    knows_no_duplicates_among_many: ["sync", "sync, everything"],
    begins_rounds_of_many_too_soon: ["sync"],
    sums_many_in_order_of_enrolment: ["sync"],
    backs_up_in_any_order: ["sync, crashes", "sync, everything"],
    shows_many_values_that_are_worked_on: ["sync"],
    believes_any_backup: ["sync, crashes", "sync, everything"],
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_the_checker_finds_a_machine_that(wrong, monkeypatch):
    wrong(monkeypatch)
    monkeypatch.setattr("tests.kvserver_world.LIMIT", 3000)
    seeds = random.Random(0)
    for _ in range(400):
        for name in WRONG[wrong]:
            try:
                World(SCENARIOS[name], seeds.getrandbits(32)).run()
            except Wrong:
                return
    pytest.fail("no run found it")
