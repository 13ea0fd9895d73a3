"""Whoever is followed does not wait for those who follow."""

from __future__ import annotations

import threading

import pytest

from pipeline.spark.bounded_runs.progress import watched

_SECONDS = 30.0


def test_an_interrupted_run_does_not_wait_for_a_look_that_takes_long() -> None:
    looking, may_answer, answered = threading.Event(), threading.Event(), threading.Event()

    def look() -> int:
        looking.set()
        may_answer.wait(_SECONDS)
        answered.set()
        return 0

    def run() -> None:
        with watched(look, 1, lambda *_: None, every_s=0.01):
            assert looking.wait(_SECONDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert not answered.is_set()
    may_answer.set()
    assert answered.wait(_SECONDS)
