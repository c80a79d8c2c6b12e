"""Work for other processes: what it tells, that a failure stops no other task, what a death is, and how it ends."""

import os
import time

import pytest
from distributed import LocalCluster

from fedhold.lab import Done, News, run_tasks
from workers import act, hold, unsendable


def ends(events):
    """What became of each task, by its number."""
    return {event.task: event for event in events if isinstance(event, Done)}


def check(found):
    """What becomes of `act` on a, fail, b, wherever it runs."""
    assert sorted(found) == [0, 1, 2]
    assert (found[0].result[0], found[2].result[0]) == ("a", "b")
    assert found[0].failure is found[2].failure is None
    assert found[1] == Done(1, None, "no such luck")


def test_a_failure_stops_nobody_and_every_worker_has_one_thread():
    found = ends(run_tasks(act, ["a", "fail", "b"], jobs=2))
    check(found)
    assert found[0].result[1:] == ("1", {1})
    assert list(run_tasks(act, [])) == []


def test_a_cluster_is_another_executor():
    with LocalCluster(n_workers=1, processes=True, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        check(ends(run_tasks(act, ["a", "fail", "b"], cluster=cluster.scheduler_address)))


def test_an_error_that_nobody_expected_comes_with_its_traceback():
    found = ends(run_tasks(act, ["unexpected"]))
    assert "KeyError" in found[0].failure
    assert "in act" in found[0].failure


def test_a_result_that_cannot_be_sent_is_a_failure():
    (event,) = run_tasks(unsendable, [1])
    assert "pickle" in event.failure


def test_a_worker_that_dies_is_the_failure_of_what_ran_in_it():
    found = ends(run_tasks(act, ["a", "die", "b", "b"], jobs=1))
    assert found.pop(0).result[0] == "a"
    assert list(found) == [1]  # the others had not begun
    assert "died without a message" in found[1].failure


def test_workers_that_cannot_even_begin_are_an_error(monkeypatch):
    monkeypatch.setattr("fedhold.lab.runner._begin", os.abort)
    with pytest.raises(RuntimeError, match="died without a message"):
        list(run_tasks(act, ["a"]))


def test_closing_ends_the_workers_at_once(tmp_path):
    """What a task has done so far is told meanwhile."""
    events, begun = run_tasks(hold, [tmp_path / "0", tmp_path / "1"], jobs=2), time.monotonic()
    told = set()
    while len(told) < 2:
        news = next(events)
        assert isinstance(news, News)
        if news.fraction == 0.5:
            told.add(news.task)
    workers = [int((tmp_path / name).read_text()) for name in "01"]
    events.close()
    assert time.monotonic() - begun < 60
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
