"""Tasks of agents are the same for everybody."""

from itertools import pairwise

from bench.loads import agent_tasks


def test_tasks_are_the_same_for_everybody() -> None:
    made = agent_tasks.tasks(2, 3, 2, seed=5)
    assert made == agent_tasks.tasks(2, 3, 2, seed=5)
    for mine in made:
        for task in mine:
            heads = {tuple(turns[0][: task.shared_tokens // 16]) for turns in task.children}
            assert len(heads) == 1
            assert 0.78 < task.shared_tokens / agent_tasks.CHILD_TOKENS < 0.91
            for turns in task.children:
                assert all(longer[: len(one)] == one for one, longer in pairwise(turns))
