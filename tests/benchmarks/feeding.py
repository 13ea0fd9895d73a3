"""Records that keep coming while something is measured."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from inputs import extend

from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from tests.repeating import Repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from inputs import Input

RECORDS_PER_SECOND = 2_000
RELEASED_PER_SECOND = 10_000
"""In rows of releases."""
_STEP_SECONDS = 0.05
_GROWTH = 200
"""So many records have some for every partition."""


@contextmanager
def feeding(
    source: Input, kafka: Mapping[str, str], per_second: int = RECORDS_PER_SECOND
) -> Iterator[Callable[[], None]]:
    """Extend an input, a little at a time, while the block runs; its figures are right once the block has ended.

    Args:
        source: What is extended.
        kafka: Client properties.
        per_second: How many records come.

    Yields:
        Waits until records have been written to every partition since it was called.
    """
    producer = IdempotentProducer(Kafka(kafka))
    with Repeating(lambda: extend(source, producer, int(per_second * _STEP_SECONDS)), _STEP_SECONDS) as feed:

        def until_grown() -> None:
            moment = source.records + _GROWTH
            while source.records < moment:
                feed.check()
                time.sleep(_STEP_SECONDS / 2)

        yield until_grown
