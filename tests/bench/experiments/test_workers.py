"""Where workers run, and what drives them."""

import os

import pytest

from bench.experiments import workers
from bench.tools import processes


@pytest.mark.parametrize("count", [2, 3, 4, 7, 9])
def test_workers_share_no_core_with_what_drives_them(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))
    monkeypatch.setattr(processes, "first_thread", lambda core: core)
    own, driving = workers.places()
    assert not set(own) & set(driving)
    assert len(own) == len(driving) >= 2
    assert (len(set(own)) == 1) == (count < 4)


def test_a_second_thread_of_a_core_is_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(processes, "first_thread", lambda core: core - core % 2)
    assert workers.places() == ([0, 4, 8, 12], [2, 6, 10, 14])
    assert processes.two_cores() == (0, 2)


def test_the_threads_of_an_only_core_are_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5})
    monkeypatch.setattr(processes, "first_thread", lambda _: 4)
    assert processes.two_cores() == (4, 5)
