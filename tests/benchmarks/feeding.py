"""Records that keep coming while something is measured."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from inputs import extend

from pipeline.kafka.producer import IdempotentProducer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inputs import Input

RECORDS_PER_SECOND = 2_000
_STEP_SECONDS = 0.05
_GROWTH = 200
"""So many records have some for every partition."""


class Feed:
    """Extends an input, a little at a time, while its block runs.

    Args:
        source: What is extended; its figures are right once the block has ended.
        kafka: Client properties.
    """

    def __init__(self, source: Input, kafka: Mapping[str, str]) -> None:
        self._source = source
        self._producer = IdempotentProducer(kafka)
        self._ends = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._check()

    def until_grown(self) -> None:
        """Wait until records have been written to every partition since."""
        moment = self._source.records + _GROWTH
        while self._source.records < moment:
            self._check()
            time.sleep(_STEP_SECONDS / 2)

    def _run(self) -> None:
        try:
            while not self._ends.wait(_STEP_SECONDS):
                extend(self._source, self._producer, int(RECORDS_PER_SECOND * _STEP_SECONDS))
        except Exception as error:  # noqa: BLE001 - told to whoever feeds
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
