"""Membership: the views of nodes when others join, fall silent, leave and rejoin in any order."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowmx.comm.barriers import MAX_NAMES, Barriers
from flowmx.comm.members import MAX_NUMBER, Denied, Job, JoinRequest, Members, rounds_from_wire
from flowmx.comm.view import Member, View
from tests.membership import Violation, run

STEP = st.tuples(st.integers(0, 17), st.integers(0, 9999), st.integers(0, 9999))
POLICY = st.sampled_from(["stop", "elastic"])


def formed(workers=2, servers=1, policy="elastic", timeout=10.0, **more):
    members = Members(Job(workers, servers, timeout, policy, **more), 0.0)
    for rank in range(workers):
        members.join(0.0, JoinRequest(f"w{rank}", "worker", 1, host="here"))
    for rank in range(servers):
        members.join(0.0, JoinRequest(f"s{rank}", "server", 1))
    return members


def beat(members, now, *nodes, count=None):
    """Send heartbeats of nodes."""
    for node in nodes:
        members.heartbeat(now, node, 1, count or int(now * 100), members.term, "push key 7")


def pass_time(members, start, end, *nodes):
    """Advance the time, with heartbeats only of `nodes`."""
    now = start
    while now < end:
        now += 1.0
        beat(members, now, *nodes)
        members.tick(now)


def denied(code, function, *arguments, **named):
    with pytest.raises(Denied) as caught:
        function(*arguments, **named)
    assert caught.value.code == code
    return str(caught.value)


# The life of a job


def test_a_job_runs_once_every_place_is_taken():
    members = Members(Job(2, 1), 0.0)
    ranks = [members.join(0.0, JoinRequest(name, "worker", 1)).rank for name in ("a", "b")]
    assert ranks == [0, 1]
    assert members.view.phase == "forming"
    members.join(0.0, JoinRequest("c", "server", 1, address="http://127.0.0.1:9"))
    assert members.view.phase == "running"
    assert [member.name for member in members.view.members] == ["worker 0", "worker 1", "server 0"]
    assert members.view.servers[0].address == "http://127.0.0.1:9"


def test_a_node_gets_the_rank_that_it_asks_for_where_it_is_free():
    members = Members(Job(3), 0.0)
    assert members.join(0.0, JoinRequest("a", "worker", 1, rank=2)).rank == 2
    assert members.join(0.0, JoinRequest("b", "worker", 1, rank=2)).rank == 0


def test_a_join_that_is_sent_twice_is_one_join():
    members = Members(Job(2), 0.0)
    assert members.join(0.0, JoinRequest("a", "worker", 1)) == members.join(1.0, JoinRequest("a", "worker", 1))
    assert len(members.view.members) == 1


def test_a_silent_worker_stops_the_job_and_is_named_with_its_last_activity():
    members = formed(policy="stop")
    beat(members, 1.0, "w1")
    pass_time(members, 1.0, 12.0, "w0", "s0")
    view = members.view
    assert view.phase == "failed"
    for part in ("worker 1", "on here", "silent for 1", "push key 7"):
        assert part in view.failure
    assert view.lost == (view.at("worker", 1),)
    assert "worker 1" in denied("over", members.join, 13.0, JoinRequest("new", "worker", 1))


def test_an_elastic_job_continues_and_gives_the_rank_to_the_next_worker():
    members = formed()
    assert "all 2 places" in denied("full", members.join, 0.5, JoinRequest("new", "worker", 1))
    pass_time(members, 0.0, 12.0, "w0", "s0")
    assert members.view.phase == "running"
    assert [member.id for member in members.view.workers] == ["w0"]
    assert members.view.at("worker", 1).state == "gone"
    before = members.epoch
    assert members.join(12.0, JoinRequest("new", "worker", 1)).rank == 1
    assert members.epoch > before
    assert [member.id for member in members.view.lost] == ["w1"]


def test_a_lost_node_that_returns_is_refused_with_the_reason():
    members = formed()
    pass_time(members, 0.0, 12.0, "w0", "s0")
    assert "silent for" in denied("stale", beat, members, 13.0, "w1")
    members.join(13.0, JoinRequest("new", "worker", 1))
    denied("stale", beat, members, 14.0, "w1")
    denied("stale", members.join, 14.0, JoinRequest("w1", "worker", 1))


def test_a_newer_incarnation_takes_the_place_of_the_older_one_at_once():
    members = formed(policy="stop")
    assert members.join(1.0, JoinRequest("s0", "server", 2, address="new")).rank == 0
    assert members.view.servers[0].address == "new"
    assert "incarnation 1" in denied("stale", beat, members, 2.0, "s0")
    denied("stale", members.join, 2.0, JoinRequest("s0", "server", 1))


def test_leaving_is_no_failure_and_ends_the_job_when_the_last_worker_has_left():
    members = formed(policy="stop")
    members.leave(1.0, "w0", 1)
    members.leave(1.0, "w0", 1)
    assert members.view.phase == "running"
    members.leave(2.0, "w1", 1)
    assert members.view.phase == "finished"
    assert "finished" in denied("over", members.join, 3.0, JoinRequest("new", "worker", 1))


def test_a_failure_that_is_reported_needs_no_timeout():
    members = formed(policy="stop")
    members.fail(1.0, "w0", None, "exit status 3")
    assert "worker 0" in members.view.failure and "exit status 3" in members.view.failure


def test_nodes_that_fail_because_the_job_did_are_not_named_as_culprits():
    members = formed(policy="stop")
    members.fail(1.0, "w0", 1, "exit status 3")
    members.fail(1.1, "w1", 1, "could not go on")
    assert "worker 1" not in members.view.failure


def test_a_job_that_all_workers_have_left_ends():
    members = formed(no_workers_timeout=30.0)
    pass_time(members, 0.0, 39.0, "s0")
    assert members.view.phase == "running"
    pass_time(members, 39.0, 42.0, "s0")
    assert "every worker is gone" in members.view.failure


def test_silence_before_the_job_runs_frees_the_place():
    members = Members(Job(2, policy="stop"), 0.0)
    members.join(0.0, JoinRequest("a", "worker", 1))
    pass_time(members, 0.0, 12.0)
    assert members.view.phase == "forming"
    assert members.join(12.0, JoinRequest("b", "worker", 1)).rank == 0


def test_a_scheduler_that_slept_does_not_blame_the_nodes():
    members = formed(policy="stop")
    members.tick(1.0)
    members.tick(60.0)
    assert members.view.phase == "running"


def test_old_heartbeats_are_ignored():
    members = formed(policy="stop")
    beat(members, 1.0, "w0", "w1", "s0", count=5)
    for now in range(2, 13):
        beat(members, float(now), "w0", "s0")
        beat(members, float(now), "w1", count=5)
        members.tick(float(now))
    assert "worker 1" in members.view.failure


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "at least 1 worker"), ((1, -1), "0 servers"), ((1, 1, 0.0), "timeout"), ((1, 1, 1.0, "go on"), "elastic")],
)
def test_an_invalid_job_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Job(*arguments)


# Barriers


def test_a_barrier_opens_when_all_workers_wait():
    members = formed()
    assert members.barrier(1.0, "w0", 1, 1, "init") is None
    assert [member.name for member in members.missing("init")] == ["worker 1"]
    assert members.barrier(1.0, "w1", 1, 1, "init") == 1
    assert members.barrier(1.0, "w0", 1, 1, "init") == 1
    assert members.barrier(1.0, "w0", 1, 1, "init", after=1) is None


def test_a_lost_worker_does_not_block_an_elastic_barrier_and_fails_one_under_stop():
    members = formed()
    members.barrier(0.0, "w0", 1, 1, "init")
    pass_time(members, 0.0, 12.0, "w0", "s0")
    assert members.barrier(12.0, "w0", 1, 1, "init") == 1
    members = formed(policy="stop")
    members.barrier(0.0, "w0", 1, 1, "init")
    members.fail(1.0, "w1", 1, "killed")
    assert "worker 1" in denied("over", members.barrier, 1.0, "w0", 1, 1, "init")


def test_a_worker_that_left_is_not_waited_for():
    members = formed()
    members.barrier(0.0, "w0", 1, 1, "epoch")
    members.leave(1.0, "w1", 1)
    assert members.barrier(1.0, "w0", 1, 1, "epoch") == 1


def test_a_late_worker_passes_the_barriers_of_the_start_and_waits_at_the_others():
    members = formed()
    for node in ("w0", "w1"):
        members.barrier(0.0, node, 1, 1, "init")
    members.fail(1.0, "w1", 1)
    members.join(2.0, JoinRequest("new", "worker", 1))
    assert members.barrier(2.0, "new", 1, 1, "init", after=1, first=True) == 1
    assert members.barrier(2.0, "new", 1, 1, "init", after=1, first=False) is None
    assert members.barrier(2.0, "w0", 1, 1, "init", after=1) == 2


def joined_after_a_meeting(**kwargs):
    """A job of "w0", and of "new", which has the place of one that was lost after the first meeting "epoch"."""
    members = formed(**kwargs)
    for node in ("w0", "w1"):
        members.barrier(0.0, node, 1, 1, "epoch", meet=True)
    members.fail(1.0, "w1", 1)
    members.join(2.0, JoinRequest("new", "worker", 1))
    return members


def test_a_late_worker_is_not_waited_for_at_a_meeting_until_it_comes_and_then_meets_the_others():
    members = joined_after_a_meeting()
    assert members.barrier(2.0, "w0", 1, 1, "epoch", after=1, meet=True) == 2  # the new worker is still training
    assert members.barrier(3.0, "new", 1, 1, "epoch", after=1, first=True, meet=True) is None
    assert members.barrier(3.5, "new", 1, 1, "epoch", after=1, first=True, meet=True) is None  # it repeats the request
    assert members.barrier(4.0, "w0", 1, 1, "epoch", after=2, meet=True) == 3
    assert members.barrier(4.0, "new", 1, 1, "epoch", after=1, first=True, meet=True) == 3
    assert members.barrier(5.0, "w0", 1, 1, "epoch", after=3, meet=True) is None  # the others wait for it now


def test_a_late_worker_joins_meetings_from_the_next_round():
    members = formed()
    members.fail(1.0, "w1", 1)
    members.join(2.0, JoinRequest("new", "worker", 1))
    assert members.barrier(3.0, "w0", 1, 1, "epoch", meet=True) == 1
    assert members.barrier(3.5, "new", 1, 1, "epoch", first=True, meet=True) is None  # for round 2
    assert members.barrier(4.0, "w0", 1, 1, "epoch 1", meet=True) == 1
    assert members.barrier(5.0, "w0", 1, 1, "epoch", after=1, meet=True) == 2
    assert members.barrier(5.0, "w0", 1, 1, "epoch 2", meet=True) is None  # it is of this round
    assert members.barrier(5.0, "new", 1, 1, "epoch 2", first=True, meet=True) == 1


def test_a_late_worker_passes_a_meeting_that_the_others_are_past_where_they_wait_for_it_elsewhere():
    members = joined_after_a_meeting(policy="elastic")
    assert members.barrier(3.0, "new", 1, 1, "epoch", first=True, meet=True) is None
    before = members.version
    # It has ended its training, and waits for the newcomer.
    assert members.barrier(4.0, "w0", 1, 1, "optimizer") is None
    assert members.version > before  # waiting workers repeat their requests
    assert members.barrier(4.0, "new", 1, 1, "epoch", first=True, meet=True) == 1
    assert members.barrier(5.0, "new", 1, 1, "optimizer", first=True) == 1
    assert members.barrier(5.0, "w0", 1, 1, "optimizer") == 1
    assert members.barrier(6.0, "w0", 1, 1, "epoch", after=1, meet=True) is None  # from now on, all meet
    assert members.barrier(6.0, "new", 1, 1, "epoch", after=1, meet=True) == 2


def test_a_late_worker_that_attends_a_meeting_is_waited_for_before_it_comes():
    members = joined_after_a_meeting(policy="elastic")
    assert members.attend(3.0, "new", 1, 1, "epoch") == 1
    assert members.attend(3.0, "new", 1, 1, "epoch") == 1, "the answer may have been lost"
    assert members.attend(3.0, "w0", 1, 1, "epoch") == 0
    assert members.barrier(4.0, "w0", 1, 1, "epoch", after=1, meet=True) is None
    assert members.barrier(5.0, "new", 1, 1, "epoch", first=True, meet=True) == 2
    assert members.barrier(5.0, "w0", 1, 1, "epoch", after=1, meet=True) == 2


def test_a_late_worker_that_attends_is_waited_for_at_what_follows_later_rounds_only():
    members = joined_after_a_meeting(policy="elastic")
    members.attend(3.0, "new", 1, 1, "epoch")
    assert members.barrier(3.0, "new", 1, 1, "epoch 1", first=True, meet=True) is None  # until "w0" has passed it
    assert members.barrier(4.0, "w0", 1, 1, "epoch 1", first=True, meet=True) == 1
    assert members.barrier(4.0, "new", 1, 1, "epoch 1", first=True, meet=True) == 1
    for node in ("w0", "new"):
        members.barrier(5.0, node, 1, 1, "epoch", after=1, meet=True)
    assert members.barrier(6.0, "w0", 1, 1, "epoch 2", first=True, meet=True) is None


def test_only_workers_attend():
    members = formed()
    with pytest.raises(Denied, match="barriers are for workers"):
        members.attend(0.0, "s0", 1, 1, "epoch")


def test_only_late_workers_pass_meetings():
    members = formed(policy="elastic")
    for node in ("w0", "w1"):
        members.barrier(0.0, node, 1, 1, "epoch", meet=True)
    for _ in range(2):
        assert members.barrier(1.0, "w0", 1, 1, "optimizer") is None
        assert members.barrier(1.0, "w1", 1, 1, "epoch", after=1, meet=True) is None


def test_late_workers_alone_meet_among_themselves():
    members = formed()
    for rank in (0, 1):
        members.fail(1.0, f"w{rank}", 1)
        members.join(2.0, JoinRequest(f"new{rank}", "worker", 1))
    assert members.barrier(3.0, "new0", 1, 1, "epoch", meet=True) == 1


def test_a_worker_that_stops_waiting_is_not_counted():
    members = formed()
    members.barrier(0.0, "w0", 1, 1, "init")
    members.withdraw("w0", 1, "init")
    assert members.barrier(0.0, "w1", 1, 1, "init") is None


def test_servers_have_no_barriers():
    assert "server 0" in denied("wrong", formed().barrier, 0.0, "s0", 1, 1, "init")


def test_the_number_of_remembered_names_is_bounded(monkeypatch):
    monkeypatch.setattr("flowmx.comm.barriers.MAX_NAMES", 3)
    barriers = Barriers()
    for number in range(5):
        barriers.enter("a", f"step {number}", 0, False)
        barriers.complete_rounds(["a"])
    assert list(barriers.rounds) == ["step 2", "step 3", "step 4"]


# The scheduler restarts


def again(members, restored=True, **options):
    fresh = Members(members.job, 100.0, members.term + 1, "another")
    if restored:
        fresh.restore(100.0, members.snapshot())
    return fresh


@pytest.mark.parametrize("restored", [True, False], ids=["with its file", "without"])
def test_nodes_keep_their_places_when_the_scheduler_restarts(restored):
    members = formed(policy="stop")
    members.barrier(0.0, "w0", 1, 1, "init")
    members.barrier(0.0, "w1", 1, 1, "init")
    view, fresh = members.view, again(members, restored)
    assert "register" in denied("unregistered", fresh.heartbeat, 100.0, "w1", 1, 9, view.term)
    assert fresh.join(100.0, JoinRequest("w1", "worker", 1, view=view, rounds={"init": 1})).rank == 1
    assert fresh.view.job == view.job
    assert fresh.view.order > view.order and fresh.view.epoch > view.epoch
    assert fresh.view.phase == "running"
    # Worker 0 did not receive the answer, and passes now.
    fresh.join(100.0, JoinRequest("w0", "worker", 1, view=view))
    assert fresh.barrier(100.0, "w0", 1, fresh.term, "init") == 1


def test_a_node_that_does_not_return_is_lost():
    members = formed(policy="stop")
    view, fresh = members.view, again(members, restored=False)
    for node, role in (("w0", "worker"), ("s0", "server")):
        fresh.join(100.0, JoinRequest(node, role, 1, view=view))
    for now in range(101, 113):
        for node in ("w0", "s0"):
            fresh.heartbeat(float(now), node, 1, now, fresh.term)
        fresh.tick(float(now))
    assert "worker 1" in fresh.view.failure


def test_a_newcomer_does_not_take_a_place_of_the_running_job():
    members = formed()
    view, fresh = members.view, again(members, restored=False)
    assert fresh.join(100.0, JoinRequest("new", "worker", 1)).rank == 0
    assert fresh.join(100.0, JoinRequest("w0", "worker", 1, view=view)).rank == 0
    denied("unregistered", fresh.heartbeat, 100.0, "new", 1, 1, fresh.term)
    denied("full", fresh.join, 100.0, JoinRequest("new", "worker", 1))


def test_the_newest_of_several_views_is_believed():
    members = formed()
    old = members.view
    members.fail(1.0, "w1", 1)
    members.join(1.0, JoinRequest("new", "worker", 1))
    fresh = again(members, restored=False)
    fresh.join(100.0, JoinRequest("w0", "worker", 1, view=old))
    assert fresh.view.at("worker", 1).id == "w1"
    assert fresh.join(100.0, JoinRequest("new", "worker", 1, view=members.view)).rank == 1
    denied("stale", fresh.join, 100.0, JoinRequest("w1", "worker", 1, view=old))


def test_nodes_name_their_job_and_its_size():
    members = Members(Job(2, 1, name="mine"), 0.0)
    other = JoinRequest("x", "worker", 1, host="there", view=replace(members.view, term=9, phase="running"))
    for request in (replace(other, job="theirs"), other):
        text = denied("other", members.join, 0.0, request)
        assert "this is the scheduler of the job 'mine', and worker on there (node x) belongs to " in text
    assert "a job without a name (FLOWMX_JOB is not set)" in text
    text = denied("other", members.join, 0.0, replace(other, job="mine", size=(4, 1)))
    assert "a job of 2 workers and 1 servers, and worker on there (node x) belongs to one of 4 workers" in text
    assert members.term == 1  # the view of another job was not adopted
    assert members.join(0.0, JoinRequest("a", "worker", 1, job="mine", size=(2, 1))).rank == 0
    nameless = Members(Job(2, 1), 0.0)
    assert "of a job without a name" in denied("other", nameless.join, 0.0, JoinRequest("a", "worker", 1, job="mine"))


def test_a_scheduler_resumes_only_from_the_file_of_its_job():
    members = Members(Job(1, name="mine"), 0.0)
    members.join(0.0, JoinRequest("a", "worker", 1, job="mine"))
    Members(members.job, 1.0, 2).restore(1.0, members.snapshot())
    for name in ("theirs", ""):
        denied("other", Members(Job(1, name=name), 1.0, 2).restore, 1.0, members.snapshot())


def test_nodes_of_another_job_are_refused():
    ours, other = formed(), replace(formed().view, job="theirs")
    assert "theirs" in denied("other", ours.join, 1.0, JoinRequest("x", "worker", 1, view=other))


def test_a_view_round_trips():
    members = formed()
    members.fail(1.0, "w1", 1, "killed")
    assert View.from_wire(members.view.to_wire()) == members.view


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "late"}, "'phase' must be one of forming"),
        ({"epoch": -1}, "'epoch' must be an int"),
        ({"epoch": True}, "'epoch'"),
        ({"members": "all"}, "'members' must be a list"),
        ({"members": [7]}, "a member must be a map"),
        ({"job": ""}, "'job' must be text of 1 to 64"),
        ({"failure": "x" * 5000}, "'failure'"),
    ],
)
def test_an_invalid_view_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        View.from_wire(formed().view.to_wire() | change)


def test_rounds_of_barriers_round_trip():
    rounds = {"init": 3, "step 2": 1, 200 * "x": MAX_NUMBER}
    assert rounds_from_wire({"rounds": rounds}) == rounds
    assert rounds_from_wire({}) == {}


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ([], "the rounds must be a map"),
        ({201 * "x": 1}, "'name' must be text of 0 to 200"),
        ({7: 1}, "a map with text keys"),
        ({"init": -1}, "'init' must be an int"),
        ({"init": True}, "'init' must be an int"),
        ({"init": MAX_NUMBER + 1}, "'init' must be an int"),
        ({f"step {number}": 1 for number in range(MAX_NAMES + 1)}, "rounds of 4097 barriers; at most"),
    ],
)
def test_invalid_rounds_are_refused(rounds, message):
    with pytest.raises(ValueError, match=message):
        rounds_from_wire({"rounds": rounds})


def test_identities_have_at_most_64_characters():
    wire = formed().view.members[0].to_wire()
    assert Member.from_wire(wire | {"id": 64 * "x"}).id == 64 * "x"
    with pytest.raises(ValueError, match="'id' must be text of 1 to 64"):
        Member.from_wire(wire | {"id": 65 * "x"})


def test_a_snapshot_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version 2"):
        formed().restore(1.0, {"version": 2})


# Any order of events


@settings(max_examples=400)
@given(st.lists(STEP, max_size=80), POLICY)
def test_the_laws_hold_in_random_runs(steps, policy):
    run(steps, policy=policy)


def steps_of(seed):
    chance = random.Random(seed)
    return [(chance.randrange(18), chance.randrange(9999), chance.randrange(9999)) for _ in range(80)]


def worlds(machine, seeds):
    for seed in seeds:
        run(steps_of(seed), machine, "stop" if seed % 2 else "elastic", 1 + seed % 3, seed // 2 % 2)


@pytest.mark.soak
def test_the_laws_hold_in_many_long_runs():
    worlds(Members, range(100_000))


class SameRank(Members):
    def _assign(self, request):
        return request.role, super()._assign(request)[1] ^ (len(self.places) > 1)


class NeverSilent(Members):
    def tick(self, now):
        self.ticked = now


class TakesZombies(Members):
    def _refuse_stale(self, request):
        pass

    def _refuse_past(self, node, incarnation):
        pass


class KeepsTheEpoch(Members):
    def _on_change(self, now):
        super()._on_change(now)
        self.epoch -= 1


class ForgetsTheLost(Members):
    """A wrong implementation whose barriers wait for lost nodes."""

    def _apply_rules(self, now):
        living = self._live_places
        self._live_places = lambda role=None: self.places.values() if role == "worker" else living(role)
        super()._apply_rules(now)
        del self._live_places


class OpensEarly(Members):
    def barrier(self, now, node, incarnation, term, name, after=0, first=False, meet=False):
        passed_round = super().barrier(now, node, incarnation, term, name, after, first, meet)
        return after + 1 if passed_round is None else passed_round


class GoesOn(Members):
    """A wrong implementation that does not stop under the policy "stop"."""

    def _end(self, phase, failure=""):
        if phase != "failed":
            super()._end(phase, failure)


class ForgetsPlaces(Members):
    """A wrong implementation that ignores the knowledge of nodes and files."""

    def _adopt_member(self, now, member, view):
        pass


class KeepsQuiet(Members):
    def _mark_lost(self, place, why, fatal):
        super()._mark_lost(place, why, fatal)
        self.failure = self.failure and "something went wrong"


class Resurrects(Members):
    def heartbeat(self, now, node, incarnation, beat, term, doing=""):
        place = self._place(node)
        if place:
            place.member = replace(place.member, state="alive")
        super().heartbeat(now, node, incarnation, beat, term, doing)


WRONG = [
    SameRank, NeverSilent, TakesZombies, KeepsTheEpoch, ForgetsTheLost, OpensEarly, GoesOn, ForgetsPlaces, KeepsQuiet,
    Resurrects,
]  # fmt: skip


@pytest.mark.parametrize("machine", WRONG)
def test_the_laws_detect_a_wrong_state_machine(machine):
    with pytest.raises(Violation):
        worlds(machine, range(400))


def test_a_loss_message_has_all_details():
    member = Member("abcdef0123456789", "worker", 3, host="node-7", doing="pull key 'fc'", why="silent for 10.2 s")
    assert member.loss_message == (
        "worker 3 on node-7 (node abcdef012345) is gone: silent for 10.2 s; last known activity: pull key 'fc'"
    )


def test_a_view_with_too_large_numbers_is_refused():
    members = Members(Job(workers=1), 0.0)
    last = View("job", 2**63 - 1, 1, "running")
    with pytest.raises(Denied, match="both are at most"):
        members.join(0.0, JoinRequest("a", "worker", 1, view=last))
    assert members.join(0.0, JoinRequest("a", "worker", 1)).rank == 0
