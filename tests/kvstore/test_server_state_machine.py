"""Single cases of the servers' state machine that random runs of the model find too rarely, or do not show."""

import dataclasses

import pytest

from flowmx.kvstore.server import modes
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.state_machine import Core

PART = p.Part("k", 0, 0)
MEMBER = p.Member(0, 1)
BOTH = ("a", "b")


def core(name="a", mode="sync", bound=None, epoch=1, servers=("a",), workers=("w0", "w1")):
    machine = Core(name, modes.create(mode, bound))
    machine.view(p.View(epoch, servers, frozenset(workers)))
    return machine


def created(machine, value="v", workers=("w0",)):
    for worker in workers:
        machine.enrol(worker, worker, 1, PART, MEMBER, value)
    return machine


def answers(effects):
    return {effect.request: effect.response for effect in effects if isinstance(effect, p.Reply)}


def compute(instance, effects):
    """Carry out merges and updates: a sum is a tuple, and an update appends it."""
    result = list(effects)
    for effect in result:
        if isinstance(effect, p.Merge):
            result += instance.merged(effect.part, effect.ticket, tuple(effect.gradients))
        elif isinstance(effect, p.Update):
            result += instance.updated(effect.part, effect.ticket, (effect.value, effect.merged))
    return result


def sent(effects, to):
    return [effect.message for effect in effects if isinstance(effect, p.Send) and effect.to == to]


def test_an_enrolment_without_a_value_waits_for_it():
    machine = core()
    assert answers(machine.enrol("r1", "w1", 1, PART, MEMBER)) == {}
    assert answers(machine.enrol("r0", "w0", 1, PART, MEMBER, "v")) == {
        "r1": p.Acknowledged(0),
        "r0": p.Acknowledged(0),
    }


def test_the_first_value_is_used():
    machine = created(core(), "first")
    machine.enrol("r1", "w1", 1, PART, MEMBER, "second")
    assert answers(machine.pull("p", "w1", PART, 0)) == {"p": p.Content("first", 0)}


def test_a_late_worker_gets_the_round():
    machine = created(core())
    for number in (1, 2, 3):
        compute(machine, machine.push(number, "w0", PART, number, "g"))
    assert answers(machine.enrol("late", "w1", 1, PART, p.Member(1, 1))) == {"late": p.Acknowledged(3)}
    assert answers(compute(machine, machine.push("x", "w0", PART, 4, "g"))) == {}  # now the round waits for both
    assert answers(compute(machine, machine.push("y", "w1", PART, 4, "h"))) == {
        "x": p.Acknowledged(4),
        "y": p.Acknowledged(4),
    }


def test_a_server_waiting_for_a_value_accepts_its_successors_copy():
    machine = core("b", epoch=5, servers=(None, "b"))
    machine.enrol("r", "w1", 1, PART, MEMBER)  # without a value: the part exists and is empty
    machine.view(p.View(7, ("a", "b"), frozenset({"w0", "w1"})))
    record = p.Record(PART, 7, 1, 0, {}, {}, {}, "v")
    assert sent(machine.deliver("a", p.Copy(7, record)), "a") == [p.Have(7, PART, 1)]


def test_a_recreated_part_is_newer_than_an_unacknowledged_one():
    first, second = core(epoch=3), core("b", epoch=4, servers=(None, "b"))
    old = created(first, workers=("w0", "w1")).record(PART)
    new = created(second).record(PART)
    assert old.number > new.number and (new.term, new.number) > (old.term, old.number)


def test_nothing_is_acknowledged_before_the_backup_has_it():
    machine = core(servers=BOTH)
    machine.deliver("b", p.Tell(1, 0, {}, (0, None)))
    effects = machine.enrol("r", "w0", 1, PART, MEMBER, "v")
    assert answers(effects) == {}
    effects = machine.deliver("b", p.Have(1, PART, 1))
    assert answers(effects) == {} and sent(effects, "b")[0].step.kind == "enrol"
    assert answers(machine.deliver("b", p.Have(1, PART, 2))) == {"r": p.Acknowledged(0)}


def test_without_a_backup_there_is_nothing_to_wait_for():
    machine = core(servers=BOTH)
    machine.deliver("b", p.Tell(1, 0, {}, (0, None)))
    machine.enrol("r", "w0", 1, PART, MEMBER, "v")
    assert answers(machine.view(p.View(2, ("a", None), frozenset({"w0"})))) == {"r": p.Acknowledged(0)}


def test_messages_of_a_former_primary_are_ignored():
    machine = core("b", epoch=2, servers=(None, "b"))
    created(machine)
    stale = p.StepSent(1, PART, 0, p.PartStep("create", 1, value="other"))
    assert machine.deliver("a", stale) == []
    assert answers(machine.pull("p", "w0", PART, 0)) == {"p": p.Content("v", 0)}


def test_lost_pushes_are_reported():
    machine = created(core())
    (answer,) = answers(machine.push("r", "w0", PART, 6, "g", acknowledged=5)).values()
    assert answer.kind == "lost" and "restart from a checkpoint" in answer.text
    (answer,) = answers(machine.pull("r", "w0", PART, 5, acknowledged=5)).values()
    assert answer.kind == "lost"


def test_a_repeated_rest_does_not_undo_later_steps():
    machine = created(core(workers=("w0",)))
    machine.rest("r", "w0", 2, PART)
    machine.enrol("e", "w0", 3, PART, MEMBER)
    assert answers(machine.rest("again", "w0", 2, PART)) == {"again": p.Acknowledged(0)}
    assert answers(compute(machine, machine.push("x", "w0", PART, 1, "g"))) == {"x": p.Acknowledged(1)}


def test_a_configuration_reaches_a_new_server():
    machine = Core("a", modes.create("sync"), lambda config: modes.create(config))
    machine.view(p.View(1, BOTH, frozenset()))
    effects = machine.deliver("b", p.Tell(1, 0, {}, (3, "async")))
    assert p.Configure("async") in effects and machine.state.mode.name == "async"


def test_a_failed_update_refuses_later_requests():
    machine = created(core())
    (merge,) = machine.push("r", "w0", PART, 1, "g")
    (answer,) = answers(machine.failed(PART, merge.ticket, "why")).values()
    assert answer == p.Refused("update_failed", "why")
    assert answers(machine.pull("p", "w0", PART, 0)) == {"p": p.Refused("update_failed", "why")}


def test_a_cancelled_request_gets_no_answer():
    machine = created(core())
    machine.pull("p", "w0", PART, 1)
    machine.cancel("p", PART)
    assert set(answers(compute(machine, machine.push("r", "w0", PART, 1, "g")))) == {"r"}


def test_a_snapshot_is_restored_only_before_the_first_view():
    record = created(core()).record(PART)
    machine = Core("a", modes.create("sync"))
    machine.restore([record])
    machine.view(p.View(1, ("a",), frozenset({"w0"})))
    assert answers(machine.pull("p", "w0", PART, 0)) == {"p": p.Content("v", 0)}
    with pytest.raises(ValueError, match="before the first view"):
        machine.restore([record])


@pytest.mark.parametrize(
    ("name", "bound", "message"),
    [("eventual", None, "unknown mode 'eventual'"), ("stale", 0, "expected at least 1"), ("stale", None, "needs it"),
     ("sync", 2, "only the mode 'stale' takes it")],
)  # fmt: skip
def test_refuses_modes(name, bound, message):
    with pytest.raises(ValueError, match=message):
        modes.create(name, bound)


def test_a_job_may_have_no_backups():
    machine = core(servers=BOTH)
    machine.view(p.View(2, BOTH, frozenset({"w0"}), replicas=0))
    machine.deliver("b", p.Tell(2, 0, {}, (0, None)))
    effects = machine.enrol("r", "w0", 1, PART, MEMBER, "v")
    assert answers(effects) == {"r": p.Acknowledged(0)} and sent(effects, "b") == []


def test_a_value_lost_with_its_only_server_is_reported_as_lost():
    machine = core("b", epoch=2, servers=(None, "b"))
    (answer,) = answers(machine.pushpull("r", "w0", PART, 6, "g", acknowledged=5)).values()
    assert answer.kind == "lost" and "restart from a checkpoint" in answer.text
    (answer,) = answers(machine.push("r", "w0", PART, 1, "g")).values()
    assert answer.kind == "not_initialized"


def test_a_push_and_pull_in_one_is_answered_once_with_the_value():
    machine = created(core(), workers=("w0", "w1"))
    assert machine.pushpull("x", "w0", PART, 1, "g") == []
    replies = [item for item in compute(machine, machine.push("y", "w1", PART, 1, "h")) if isinstance(item, p.Reply)]
    assert replies == [
        p.Reply("y", p.Acknowledged(1)),
        p.Reply("x", p.Content(("v", ("g", "h")), 1)),
    ]


def test_a_lost_worker_gets_no_value_for_an_inapplicable_push():
    machine = created(core(), workers=("w0", "w1"))
    machine.pushpull("x", "w1", PART, 2, "h")  # number 1 never arrived
    effects = machine.view(p.View(2, ("a",), frozenset({"w0"})))
    assert [answer.kind for answer in answers(effects).values()] == ["not_counted"]
    assert answers(compute(machine, machine.push("y", "w0", PART, 1, "g"))) == {"y": p.Acknowledged(1)}


@pytest.mark.parametrize("kind", [kind for kind in vars(p).values() if dataclasses.is_dataclass(kind)])
def test_messages_between_servers_are_immutable(kind):
    instance = object.__new__(kind)
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(instance, field.name, None)
