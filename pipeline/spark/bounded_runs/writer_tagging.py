"""Who wrote a record of a repartition topic: what readers need to merge the writers of a level by event time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pipeline.spark.tasks.spilling import writer_tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.records import Headers, TaskId
    from pipeline.runtime.ports import Collector

    Send = Callable[[str, bytes | None, bytes | None, int, Headers, int | None], None]


class WriterTagging:
    """A collector that tells readers of repartition topics which task a record comes from, and counts records by topic.

    The tasks of a level run at different speeds, so their records lie in a repartition topic in an order that means nothing.
    With the writer known, a reader merges them by event time, as if each had a partition of its own: the order, and with
    it what is late, no longer depends on speeds.
    """

    def __init__(self, inner: Collector, task_id: TaskId, repartition_topics: frozenset[str]) -> None:
        """Topics are full names."""
        self.partitions = inner.partitions
        self.sent: defaultdict[str, int] = defaultdict(int)  # a Counter takes as long for this as the rest of a call
        self.send = _tagging(inner.send, writer_tag(task_id), repartition_topics, self.sent)
        """Sends, tagged if the topic is the application's own. Arguments as of `Collector.send`."""


def _tagging(send: Send, tag: Headers, topics: frozenset[str], sent: defaultdict[str, int]) -> Send:
    """What is called for every record: a function, as looking up a method's attributes takes as long as what it does."""

    def tagged(
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        sent[topic] += 1
        if topic in topics:
            headers = headers + tag if headers else tag
        send(topic, key, value, timestamp, headers, partition)

    return tagged
