"""The inputs of an application: where reading starts, how far it lags, and whether topics keep, lose or refuse its records."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from riverrun.errors import ConfigError, MissingOffsetError
from riverrun.hosting.added_partitions import added_partitions, reset_policies
from riverrun.hosting.continuing import require_new
from riverrun.hosting.earlier_records import archived_ranges
from riverrun.kafka.sending import time_limits
from riverrun.records import AutoOffsetReset, ResetStrategy, TopicPartition
from riverrun.runtime.layout import changelog_name, internal_name
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication

log = logging.getLogger(__name__)

# Hint about committed offsets that are beyond the ends of their partitions.
SHORTER = (
    "Try again in a minute: a broker that has just started may not know its last records yet. If the topic was recreated,"
    " release a new version, which begins at its first record."
)


class InputLag(NamedTuple):
    """The lag of one input of an application, in offsets.

    `committed` is None without a committed offset. `start` is the first offset that still exists, `end` the last stable one.
    """

    tp: TopicPartition
    is_internal: bool
    committed: int | None
    start: int
    end: int

    @property
    def lag(self) -> int:
        """Return the number of offsets still to be processed, an upper bound of the number of records."""
        return max(self.end - (self.committed if self.committed is not None else self.start), 0)

    @property
    def beyond(self) -> int:
        """Return by how many offsets the committed one is beyond the end, as after a topic was created again; usually 0."""
        return max((self.committed or 0) - self.end, 0)

    @property
    def text(self) -> str:
        """Return the lag as text; an offset beyond the end is not 0 behind."""
        return f"{self.beyond} beyond the end" if self.beyond else str(self.lag)


def total_text(lags: Collection[InputLag], what: str = "offsets behind") -> str:
    """Return the lag of several inputs as text.

    >>> lag = InputLag(TopicPartition("t", 0), False, 2, 0, 5)
    >>> total_text([lag, lag]), total_text([lag, lag._replace(committed=9)])
    ('6 offsets behind', '3 offsets behind, 4 beyond the end')
    """
    behind, beyond = sum(each.lag for each in lags), sum(each.beyond for each in lags)
    return f"{behind} {what}{f', {beyond} beyond the end' if beyond else ''}"


def beyond_warning(lags: Iterable[InputLag]) -> str | None:
    """Return a warning about committed offsets that are beyond the ends of their partitions; None if there are none."""
    found = ", ".join(f"{each.committed} of {each.tp}, which ends at {each.end}" for each in lags if each.beyond)
    if not found:
        return None
    return f"committed offsets are beyond the end: {found}. The topic lost records, or was deleted and created again"


def input_lags(connected: ConnectedApplication) -> list[InputLag]:
    """Return committed offsets and ends of all existing inputs, including repartition topics; sorted by partition."""
    connected, admin = connected.resolved(), connected.admin
    internal = {topic.name for topic in connected.layout.repartition_topics}
    existing = admin.partitions({tp.topic for tp in connected.inputs})
    tps = sorted(tp for tp in connected.inputs if tp.topic in existing)
    committed = connected.committed(tps)
    starts = admin.log_starts(tps) | admin.beginning_offsets(tp for tp in tps if tp not in committed)
    ends = admin.end_offsets(tps)
    return [
        InputLag(tp, tp.topic in internal, committed[tp].offset if tp in committed else None, starts[tp], ends[tp])
        for tp in tps
    ]


def dropped_so_far(connected: ConnectedApplication) -> Counter[str]:
    """Return how many records an application's tasks have not processed, by reason, on all hosts since it began."""
    # Tasks commit these counts with their offsets, so each record counts once, whatever failed and was repeated.
    committed, total = connected.committed(), Counter[str]()
    for inputs in connected.layout.tasks.values():
        found: Counter[str] = Counter()
        # Each input has the counts of the whole task, as of the last commit of that input: the highest ones are the newest.
        for tp in committed.keys() & set(inputs):
            found |= Counter(OffsetMetadata.decode(committed[tp].metadata).dropped)
        total += found
    return total


_RECREATED = (
    "The topic ends before that offset, or did: brokers have lost its records, or it was recreated. A new version of the"
    " application reads it from its first record; the state of this one stays as it is."
)
_OWN_TOPIC = (
    "The topic is the application's own, and its records have been deleted. A new version of the application computes them"
    " again; the state of this one stays as it is."
)


def explained(
    error: MissingOffsetError, connected: ConnectedApplication, committed: Mapping[TopicPartition, int]
) -> MissingOffsetError:
    """Return the error with a hint that fits the topic, once it is known that no other owner has processed the records."""
    tp = TopicPartition(error.topic, error.partition)
    if tp.topic not in connected.topology.source_topics:
        return MissingOffsetError(error.message, hint=_OWN_TOPIC)
    first = connected.admin.beginning_offsets([tp])[tp]
    if first <= committed.get(tp, 0):
        return MissingOffsetError(error.message, hint=_RECREATED)
    app = connected.application.config.name
    hint = (
        f"To continue after the gap, with the state as it is: riverrun run {app} --from {tp}@{first}."
        " Raise retention.ms of the topic if the records were needed."
    )
    return MissingOffsetError(error.message, hint=hint)


def warn_of_narrow_times(connected: ConnectedApplication) -> None:
    """Log the output topics that refuse event times which brokers usually accept."""
    for topic, limits in sorted(time_limits(connected.admin, _written(connected.application)).items()):
        for setting, limit_ms in limits.narrow.items():
            log.warning(
                "topic %s refuses records whose event time is more than %d ms from the brokers' clock (%s): such a record stops"
                " the application, unless the production exception handler decides otherwise. Raise the setting of the topic"
                " before processing older or future records",
                topic,
                limit_ms,
                setting,
            )


def _written(application: Application) -> Iterator[str]:
    """Yield every topic that the application writes to, except those that are chosen by record."""
    topology, published = application.topology, application.published or {}
    yield from (published.get(topic, topic) for topic in topology.sink_topics)
    yield from (internal_name(application.id, name) for name in topology.repartition_topics)
    for sub in topology.sub_topologies():
        yield from (changelog_name(application.id, store.name) for store in sub.stores if store.logging)
    letters = application.dead_letters or application.config.streams.errors_dead_letter_queue_topic_name
    if letters is not None:
        yield letters


def reset_offsets(
    connected: ConnectedApplication, tps: Iterable[TopicPartition], now_ms: int
) -> dict[TopicPartition, int]:
    """Return the offset at which reading of each new partition begins, by the policy of its source or `auto.offset.reset`.

    Partitions that the application did not begin with are read from their first record, if the policy would skip records.
    """
    admin, policies = connected.admin, reset_policies(connected.application)
    uncommitted = list(tps)
    require_new(connected, uncommitted)
    chosen: dict[AutoOffsetReset, list[TopicPartition]] = {}
    # Repartition topics have no policy: none of their records has been processed yet.
    everything, added = AutoOffsetReset.earliest(), added_partitions(connected, uncommitted)
    for tp in uncommitted:
        policy = everything if tp in added else policies.get(tp.topic, everything)
        chosen.setdefault(policy, []).append(tp)
    starts: dict[TopicPartition, int] = {}
    for policy, partitions in chosen.items():
        match policy:
            case AutoOffsetReset(strategy=ResetStrategy.NONE):
                topics = ",".join(sorted({tp.topic for tp in partitions}))
                message = (
                    f"No valid committed offset found for input [{topics}] and no valid reset policy configured: "
                    f"{connected.id} has no committed offsets of some partitions"
                )
                hint = "Set auto.offset.reset or the source's offset_reset_policy, or set the offsets: riverrun reset --from."
                raise ConfigError(message, hint=hint)
            case AutoOffsetReset(strategy=ResetStrategy.LATEST):
                starts |= admin.end_offsets(partitions)
            case AutoOffsetReset(strategy=ResetStrategy.EARLIEST):
                starts |= admin.beginning_offsets(partitions)
                _require_no_earlier(connected, starts, partitions)
            case AutoOffsetReset(strategy=ResetStrategy.BY_DURATION, duration=timedelta() as duration):
                back_ms = int(duration.total_seconds() * 1000)
                starts |= admin.offsets_for_time(partitions, max(0, now_ms - back_ms))
    return starts


def _require_no_earlier(
    connected: ConnectedApplication, starts: Mapping[TopicPartition, int], tps: Iterable[TopicPartition]
) -> None:
    """Refuse to begin behind records that are in the archive alone: workers read topics only."""
    url = connected.application.config.streams.archive_url
    if not url or connected.admin.earlier is not None:
        return
    archived = archived_ranges(url, connected.admin, tps)
    earlier = {tp: found.start for tp, found in archived.items() if found.start < starts[tp]}
    if earlier:
        places = ", ".join(f"{tp}@{start}..{starts[tp]}" for tp, start in sorted(earlier.items()))
        message = f"{connected.id} has processed nothing yet, and records of {places} are in the archive alone"
        app = connected.application.config.name
        hint = f"Process them in a bounded run first, which reads the archive: riverrun run {app}. Workers read topics only."
        raise ConfigError(message, hint=hint)
