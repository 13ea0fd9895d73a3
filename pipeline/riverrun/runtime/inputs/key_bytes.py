"""Compares the first keys of an input with the bytes that its serde writes for them.

Kafka places records by the bytes of their keys, and stores find rows by them. Sources hand on values, so from then on a key is
what its serde writes. This may differ from what was read: JSON with spaces, or with fields in another order, or the id of the
producer's schema where that is not the serde's. Then the rows of a
table are not in the partition in which joins and queries look for them. No single record is wrong.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from riverrun.records import RAW_KEY, RAW_OFFSET
from riverrun.serde.api import comparing, is_placed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from riverrun.records import RawFields, TopicPartition
    from riverrun.runtime.ports import Watch
    from riverrun.serde.api import Serde
    from riverrun.topology.nodes import SourceNode

log = logging.getLogger(__name__)

_FIRST = 100
"""Number of keys of each input that are compared; later ones cost nothing."""


class KeyBytes:
    """Compares the first keys of a task's inputs, and tells of each topic once whose keys are others.

    Args:
        tell: Takes the message.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.compared: dict[TopicPartition, int] = {}
        """Number of keys that are still to be compared, by input."""
        self._told: set[str] = set()
        self._serdes: dict[str, Serde[Any]] = {}

    def watch(self, tp: TopicPartition) -> None:
        """Compare the first keys of an input."""
        self.compared[tp] = _FIRST

    def look_at(self, tp: TopicPartition, source: SourceNode, records: Sequence[RawFields]) -> None:
        """Compare the keys of the next records of an input in `compared`."""
        serde = self._serdes.get(tp.topic)
        if serde is None:
            serde = self._serdes[tp.topic] = comparing(source.key_serde)
        first = records[: self.compared[tp]]
        for record in first:
            raw = record[RAW_KEY]
            if raw is None:
                continue
            written = raw
            with suppress(Exception):  # the source decides about keys that cannot be read
                written = serde.serialize(serde.deserialize(raw))
            if written != raw and tp.topic not in self._told:
                self._told.add(tp.topic)
                for known in [known for known in self.compared if known.topic == tp.topic]:
                    del self.compared[known]
                self._tell(_message(tp, record[RAW_OFFSET], source.key_serde))
                return
        self.compared[tp] -= len(first)
        if not self.compared[tp]:
            del self.compared[tp]

    def looked_at(
        self, tp: TopicPartition, source: SourceNode, batches: Iterator[Iterable[RawFields]]
    ) -> Iterator[Iterable[RawFields]]:
        """Compare the keys of batches of an input while they are taken."""
        for batch in batches:
            if tp not in self.compared:
                yield batch
                continue
            records = list(batch)
            self.look_at(tp, source, records)
            yield records


def teller(watch: Watch | None) -> Callable[[str], None]:
    """Return the function that tells of keys: a warning of the test's, or the log."""
    return _log if watch is None else watch.tell_of_keys


def _log(message: str) -> None:
    log.warning("%s", message)


def _message(tp: TopicPartition, offset: int, serde: Serde[Any]) -> str:
    """Describe a key without showing it: keys are the user's data."""
    how = "as the serde does, with its schema" if is_placed(serde) else "as the serde does"
    return (
        f"Serde {serde.name} does not reproduce the bytes of keys of topic {tp.topic}, as of that at partition {tp.partition}, "
        f"offset {offset}. With several partitions, foreign-key joins, joins of repartitioned records, and queries by key "
        "miss its rows.\n"
        f"Hint: Let producers write keys {how}, or repartition the topic first: "
        "builder.stream(...).repartition().to_table()."
    )
