"""The process pool: what it tells and in which order, that a failure stops no other task, and how it ends."""

import os
import time

import pytest

from fedhold.lab import Done, Failed, News, in_processes
from workers import act, sleep, unsendable


def test_news_come_before_the_result_and_a_failure_stops_nobody():
    events = list(in_processes(act, ["a", "fail", "b"], 2))
    for number, task in ((0, "a"), (2, "b")):
        own = [event for event in events if event.task == number]
        assert own == [News(number, 1), News(number, 2), Done(number, (task, "1"))]
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.task == 1
    assert "no such luck" in failed.traceback
    assert list(in_processes(act, [], 2)) == []


def test_a_result_that_cannot_be_sent_is_a_failure():
    (event,) = in_processes(unsendable, [1], 1)
    assert isinstance(event, Failed)
    assert "pickle" in event.traceback


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(RuntimeError, match="died without a message"):
        list(in_processes(act, ["die"], 1))


def test_closing_ends_the_workers_at_once():
    events, begun = in_processes(sleep, [600.0, 600.0], 2), time.monotonic()
    workers = [next(events).told, next(events).told]
    events.close()
    assert time.monotonic() - begun < 60
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
