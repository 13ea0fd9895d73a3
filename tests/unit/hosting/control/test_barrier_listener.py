"""Records of the control topic that are deleted, or cannot be read, while an instance follows it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.errors import StreamsError
from riverrun.hosting.barrier_listener import _TP, BarrierListener
from riverrun.hosting.release import Release, ReleaseChange, ReleaseStep, encoded
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.runtime.barrier import Barrier

PAUSING = Release(
    "app", "v1", ReleaseStep.GATED, "v2", revision=4, barrier=Barrier("b", 1, {"v1": {}}, timeout_ms=3_600_000)
)


class Topic:
    """A control topic of which each poll reads one record."""

    def __init__(self, *values: bytes | None) -> None:
        self._values = list(values)

    def poll(self, *_: Any) -> Any:
        return SimpleNamespace(records={_TP: [(b"app", self._values.pop(0))]} if self._values else {}, ends={_TP})


def listening(*values: bytes | None) -> tuple[BarrierListener, list[Release]]:
    changes: list[Release] = []
    listener = BarrierListener(Admin(Kafka({})), "app", "v1", changes.append)
    listener._consumer = Topic(*values)  # type: ignore[assignment]
    return listener, changes


def written(release: Release) -> bytes:
    value = encoded(release, ReleaseChange.between(None, release))["app"]
    assert value is not None
    return value


def test_the_tasks_of_an_application_whose_record_is_deleted_no_longer_pause() -> None:
    listener, changes = listening(written(PAUSING), None)
    listener._turn()
    assert (listener.latest, listener.pauses.barrier) == (PAUSING, "b")
    listener._turn()
    assert (listener.latest, listener.pauses.barrier) == (None, None)
    assert changes == [PAUSING, replace(PAUSING, barrier=None, revision=5)], "they publish as before"
    listener._turn()
    assert len(changes) == 2


def test_a_record_that_cannot_be_read_is_read_again_and_no_older_one_is_acted_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener, changes = listening(written(PAUSING), b"of a later version")
    monkeypatch.setattr(listener, "_give_up_if_due", lambda *_: acted.append(True))
    acted: list[bool] = []
    listener._turn()
    for _ in range(3):
        with pytest.raises(StreamsError, match="app"):
            listener._turn()
    assert (changes, acted) == ([PAUSING], [True])
