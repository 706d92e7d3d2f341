"""The servers' state machine, single cases: what chance finds too rarely, and what a run of the model does not show."""

import dataclasses

import pytest

from flowmx.kvstore.server import modes
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.core import Core

PART = p.Part("k", 0, 0)
MEMBER = p.Member(0, 1)
BOTH = ("a", "b")


def core(name="a", mode="sync", bound=None, epoch=1, servers=("a",), workers=("w0", "w1")):
    made = Core(name, modes.create(mode, bound))
    made.view(p.View(epoch, servers, frozenset(workers)))
    return made


def created(made, value="v", workers=("w0",)):
    for worker in workers:
        made.enrol(worker, worker, 1, PART, MEMBER, value)
    return made


def answers(effects):
    return {effect.request: effect.answer for effect in effects if isinstance(effect, p.Reply)}


def compute(made, effects):
    """Carry merging and updating out, where the sum is a tuple and an update appends it."""
    found = list(effects)
    for effect in found:
        if isinstance(effect, p.Merge):
            found += made.merged(effect.part, effect.ticket, tuple(effect.gradients))
        elif isinstance(effect, p.Update):
            found += made.updated(effect.part, effect.ticket, (effect.value, effect.merged))
    return found


def sent(effects, to):
    return [effect.message for effect in effects if isinstance(effect, p.Send) and effect.to == to]


def test_who_enrols_before_there_is_a_value_waits_for_it():
    made = core()
    assert answers(made.enrol("r1", "w1", 1, PART, MEMBER)) == {}
    assert answers(made.enrol("r0", "w0", 1, PART, MEMBER, "v")) == {
        "r1": p.Acknowledged(0),
        "r0": p.Acknowledged(0),
    }


def test_the_first_value_counts():
    made = created(core(), "first")
    made.enrol("r1", "w1", 1, PART, MEMBER, "second")
    assert answers(made.pull("p", "w1", PART, 0)) == {"p": p.Content("first", 0)}


def test_a_late_worker_is_told_the_round():
    made = created(core())
    for number in (1, 2, 3):
        compute(made, made.push(number, "w0", PART, number, "g"))
    assert answers(made.enrol("late", "w1", 1, PART, p.Member(1, 1))) == {"late": p.Acknowledged(3)}
    assert answers(compute(made, made.push("x", "w0", PART, 4, "g"))) == {}  # now the round waits for both
    assert answers(compute(made, made.push("y", "w1", PART, 4, "h"))) == {
        "x": p.Acknowledged(4),
        "y": p.Acknowledged(4),
    }


def test_a_server_that_waited_for_a_value_takes_its_successor_s_copy():
    made = core("b", epoch=5, servers=(None, "b"))
    made.enrol("r", "w1", 1, PART, MEMBER)  # without a value: the part is known, and empty
    made.view(p.View(7, ("a", "b"), frozenset({"w0", "w1"})))
    record = p.Record(PART, 7, 1, 0, {}, {}, {}, "v")
    assert sent(made.deliver("a", p.Copy(7, record)), "a") == [p.Have(7, PART, 1)]


def test_a_part_that_was_created_again_is_newer_than_the_one_that_nobody_was_told_of():
    first, second = core(epoch=3), core("b", epoch=4, servers=(None, "b"))
    old = created(first, workers=("w0", "w1")).record(PART)
    new = created(second).record(PART)
    assert old.number > new.number and (new.term, new.number) > (old.term, old.number)


def test_nothing_is_acknowledged_before_the_backup_has_it():
    made = core(servers=BOTH)
    made.deliver("b", p.Tell(1, 0, {}, (0, None)))
    effects = made.enrol("r", "w0", 1, PART, MEMBER, "v")
    assert answers(effects) == {}
    effects = made.deliver("b", p.Have(1, PART, 1))
    assert answers(effects) == {} and sent(effects, "b")[0].step.kind == "enrol"
    assert answers(made.deliver("b", p.Have(1, PART, 2))) == {"r": p.Acknowledged(0)}


def test_without_a_backup_there_is_nothing_to_wait_for():
    made = core(servers=BOTH)
    made.deliver("b", p.Tell(1, 0, {}, (0, None)))
    made.enrol("r", "w0", 1, PART, MEMBER, "v")
    assert answers(made.view(p.View(2, ("a", None), frozenset({"w0"})))) == {"r": p.Acknowledged(0)}


def test_the_old_primary_s_word_counts_no_more():
    made = core("b", epoch=2, servers=(None, "b"))
    created(made)
    stale = p.StepSent(1, PART, 0, p.PartStep("create", 1, value="other"))
    assert made.deliver("a", stale) == []
    assert answers(made.pull("p", "w0", PART, 0)) == {"p": p.Content("v", 0)}


def test_what_was_lost_is_said():
    made = created(core())
    (answer,) = answers(made.push("r", "w0", PART, 6, "g", acknowledged=5)).values()
    assert answer.kind == "lost" and "start again from a checkpoint" in answer.text
    (answer,) = answers(made.pull("r", "w0", PART, 5, acknowledged=5)).values()
    assert answer.kind == "lost"


def test_a_rest_that_comes_a_second_time_does_not_undo_what_came_after():
    made = created(core(workers=("w0",)))
    made.rest("r", "w0", 2, PART)
    made.enrol("e", "w0", 3, PART, MEMBER)
    assert answers(made.rest("again", "w0", 2, PART)) == {"again": p.Acknowledged(0)}
    assert answers(compute(made, made.push("x", "w0", PART, 1, "g"))) == {"x": p.Acknowledged(1)}


def test_a_configuration_reaches_a_new_server():
    made = Core("a", modes.create("sync"), lambda config: modes.create(config))
    made.view(p.View(1, BOTH, frozenset()))
    effects = made.deliver("b", p.Tell(1, 0, {}, (3, "async")))
    assert p.Configure("async") in effects and made.state.mode.name == "async"


def test_a_failed_update_refuses_everything_after_it():
    made = created(core())
    (merge,) = made.push("r", "w0", PART, 1, "g")
    (answer,) = answers(made.failed(PART, merge.ticket, "why")).values()
    assert answer == p.Refused("update_failed", "why")
    assert answers(made.pull("p", "w0", PART, 0)) == {"p": p.Refused("update_failed", "why")}


def test_who_asks_no_more_gets_no_answer():
    made = created(core())
    made.pull("p", "w0", PART, 1)
    made.cancel("p", PART)
    assert set(answers(compute(made, made.push("r", "w0", PART, 1, "g")))) == {"r"}


def test_a_snapshot_comes_before_the_first_view():
    record = created(core()).record(PART)
    made = Core("a", modes.create("sync"))
    made.restore([record])
    made.view(p.View(1, ("a",), frozenset({"w0"})))
    assert answers(made.pull("p", "w0", PART, 0)) == {"p": p.Content("v", 0)}
    with pytest.raises(ValueError, match="before its first view"):
        made.restore([record])


@pytest.mark.parametrize(
    ("name", "bound", "message"),
    [("eventual", None, "no mode 'eventual'"), ("stale", 0, "expected at least 1"), ("stale", None, "takes one"),
     ("sync", 2, "no other does")],
)  # fmt: skip
def test_refuses_modes(name, bound, message):
    with pytest.raises(ValueError, match=message):
        modes.create(name, bound)


def test_a_job_may_do_without_copies():
    made = core(servers=BOTH)
    made.view(p.View(2, BOTH, frozenset({"w0"}), replicas=0))
    made.deliver("b", p.Tell(2, 0, {}, (0, None)))
    effects = made.enrol("r", "w0", 1, PART, MEMBER, "v")
    assert answers(effects) == {"r": p.Acknowledged(0)} and sent(effects, "b") == []


def test_what_died_with_its_only_server_is_lost_and_not_unknown():
    made = core("b", epoch=2, servers=(None, "b"))
    (answer,) = answers(made.pushpull("r", "w0", PART, 6, "g", acknowledged=5)).values()
    assert answer.kind == "lost" and "start again from a checkpoint" in answer.text
    (answer,) = answers(made.push("r", "w0", PART, 1, "g")).values()
    assert answer.kind == "not_initialized"


def test_a_push_and_pull_in_one_is_answered_once_with_the_value():
    made = created(core(), workers=("w0", "w1"))
    assert made.pushpull("x", "w0", PART, 1, "g") == []
    replies = [each for each in compute(made, made.push("y", "w1", PART, 1, "h")) if isinstance(each, p.Reply)]
    assert replies == [
        p.Reply("y", p.Acknowledged(1)),
        p.Reply("x", p.Content(("v", ("g", "h")), 1)),
    ]


def test_who_is_gone_gets_no_value_for_a_push_that_can_not_be_applied():
    made = created(core(), workers=("w0", "w1"))
    made.pushpull("x", "w1", PART, 2, "h")  # number 1 never came
    effects = made.view(p.View(2, ("a",), frozenset({"w0"})))
    assert [answer.kind for answer in answers(effects).values()] == ["not_counted"]
    assert answers(compute(made, made.push("y", "w0", PART, 1, "g"))) == {"y": p.Acknowledged(1)}


@pytest.mark.parametrize("kind", [kind for kind in vars(p).values() if dataclasses.is_dataclass(kind)])
def test_what_goes_between_servers_cannot_be_changed(kind):
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, None)
