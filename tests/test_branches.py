"""Stages of branches: every step once, after what it waits for, and nothing beside what it depends on."""

from hypothesis import given
from hypothesis import strategies as st

from flowmx.graph.branches import stages

GRAPHS = st.integers(0, 25).flatmap(
    lambda n: st.tuples(
        st.tuples(*(st.sets(st.integers(0, max(0, i - 1)), max_size=3 if i else 0) for i in range(n))),
        st.lists(st.integers(0, 3), min_size=n, max_size=n),
    )
)


def wrong(predecessors, found):
    """What is wrong with stages, or None."""
    done = set()
    for stage in found:
        begun = set(done)
        for chain in stage:
            own = set(done)
            for step in chain:
                if step in begun:
                    return f"{step} twice"
                if not set(predecessors[step]) <= own:
                    return f"{step} too early"
                own.add(step)
                begun.add(step)
        done = begun
    return None if done == set(range(len(predecessors))) else "steps are missing"


@given(GRAPHS)
def test_legal(graph):
    predecessors, costs = graph
    predecessors = [sorted(each) for each in predecessors]
    assert wrong(predecessors, stages(predecessors, costs, worth=2)) is None
    alone = stages(predecessors, costs, worth=100)
    assert all(len(stage) == 1 for stage in alone) and len(alone) <= 1


def test_the_checker_sees_wrong_stages():
    predecessors = [[], [0], [0], [1, 2]]
    assert wrong(predecessors, [[[0]], [[1], [2]], [[3]]]) is None
    assert wrong(predecessors, [[[0]], [[1], [2, 3]]]) == "3 too early"
    assert wrong(predecessors, [[[0], [1]], [[2]], [[3]]]) == "1 too early"
    assert wrong(predecessors, [[[0]], [[1], [2]], [[2]], [[3]]]) == "2 twice"
    assert wrong(predecessors, [[[0]], [[1], [2]]]) == "steps are missing"


def test_an_inception_block():
    # 0 -> (1), (2 3), (4 5), (6 7) -> 8 -> 9, where the first branch takes little
    predecessors = [[], [0], [0], [2], [0], [4], [0], [6], [1, 3, 5, 7], [8]]
    costs = [9, 1, 9, 9, 9, 9, 9, 9, 9, 9]
    assert stages(predecessors, costs, worth=5) == [[[0]], [[2, 3], [4, 5], [1, 6, 7]], [[8, 9]]]
    assert stages(predecessors, costs, worth=50) == [[list(range(10))]]
