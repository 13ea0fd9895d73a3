"""The inputs of an application: where reading starts, how far it lags, and whether topics keep, lose or refuse its records.

Also how to tell an application whose committed offsets brokers have deleted from a new one, and how to continue it.
`ConnectedApplication.committed` returns copies of its last commits. What is left are workers that ended without letting their
tasks go, and topics that were deleted and created again.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from riverrun.archive.one_log import archived_ranges
from riverrun.errors import ConfigError, ForgottenOffsetsError, MissingOffsetError, RangeError
from riverrun.hosting.alone import group_of, require_nobody
from riverrun.hosting.commits import KeptOffsets, commit_and_keep, committed_ids, found_ids, is_last, require_same
from riverrun.hosting.ownership import owning
from riverrun.kafka.sending import time_limits
from riverrun.records import AutoOffsetReset, OffsetVector, ResetStrategy, TopicPartition
from riverrun.runtime.layout import changelog_name, internal_name
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.config import AppConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin, CommittedOffset

log = logging.getLogger(__name__)


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


def input_lags(connected: ConnectedApplication) -> list[InputLag]:
    """Return committed offsets and ends of all existing inputs, including repartition topics; sorted by partition.

    Raises:
        TopicError: If a source topic does not exist.
        BrokerError: If the brokers do not answer.
    """
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
    """Return how many records an application's tasks have not processed, by reason, on all hosts since it began.

    Tasks commit these counts with their offsets, so that each record counts once, whatever failed and was repeated.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    committed, total = connected.committed(), Counter[str]()
    for inputs in connected.layout.tasks.values():
        found: Counter[str] = Counter()
        for tp in committed.keys() & set(inputs):
            found |= Counter(OffsetMetadata.decode(committed[tp].metadata).dropped)
        total += found
    return total


_RECREATED = (
    "The topic ends before that offset: it was probably recreated. A new version of the application reads it from its first"
    " record; the state of this one stays as it is."
)
_OWN_TOPIC = (
    "The topic is the application's own, and its records have been deleted. A new version of the application computes them"
    " again; the state of this one stays as it is."
)


def explained(
    error: MissingOffsetError, connected: ConnectedApplication, committed: Mapping[TopicPartition, int]
) -> MissingOffsetError:
    """Return the error with a hint that fits the topic; called once it is known that no other owner has processed the records.

    Args:
        error: The error that a reader has raised.
        connected: The application that reads the partition.
        committed: Committed offsets of the task that reads the partition.

    Raises:
        BrokerError: If the brokers do not answer.
    """
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
    """Log the output topics that refuse event times which brokers usually accept.

    Args:
        connected: The application; its topics are prepared.

    Raises:
        BrokerError: If the brokers do not answer.
    """
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
    """Yield every topic that the application writes to, as far as the topology names it."""
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

    Repartition topics are always read from their beginning: none of their records has been processed yet.

    Args:
        connected: The application; its patterns are resolved.
        tps: Partitions without committed offsets.
        now_ms: The time from which durations count back, ms since the epoch.

    Raises:
        TopicError: If a topic was deleted and created again since the application read it.
        ForgottenOffsetsError: If brokers have deleted committed offsets of a partition.
        ConfigError: If the policy of a partition requires a committed offset.
        BrokerError: If the brokers do not answer.
    """
    admin, policies = connected.admin, reset_policies(connected.application)
    uncommitted = list(tps)
    require_new(connected, uncommitted)
    chosen: dict[AutoOffsetReset, list[TopicPartition]] = {}
    for tp in uncommitted:
        chosen.setdefault(policies.get(tp.topic, AutoOffsetReset.earliest()), []).append(tp)
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
    """Refuse to begin behind records that are in the archive alone: workers read topics only.

    Raises:
        ConfigError: If there are such records.
        ArchiveError: If the archive cannot be read.
    """
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


def reset_policies(application: Application) -> dict[str, AutoOffsetReset]:
    """Return the policy for reading without a committed offset, per external topic; patterns are resolved."""
    configured = AutoOffsetReset.parse(application.config.streams.auto_offset_reset)
    topology = application.topology
    return {
        topic: source.reset or configured
        for sub in topology.sub_topologies()
        for source in sub.sources
        for topic in source.topics
        if topic not in sub.repartition_topics
    }


_RETENTION = "offsets.retention.minutes"


def require_new(connected: ConnectedApplication, tps: Iterable[TopicPartition]) -> None:
    """Make sure that inputs without committed offsets were never committed.

    Raises:
        TopicError: If a topic was deleted and created again since it was read.
        ForgottenOffsetsError: If brokers have deleted committed offsets.
        BrokerError: If the brokers do not answer.
    """
    wanted = set(tps)
    kept = KeptOffsets(connected.admin, connected.id).read() if wanted else {}
    if not kept.keys() & wanted:
        return
    known = {tp: commit for tp, commit in kept.items() if tp in connected.inputs}
    for tp in connected.noted(known):  # of others, or since the caller has looked
        del known[tp]
    noted = committed_ids({tp: commit for tp, commit in known.items() if tp in wanted}, connected.id)
    require_same(connected.application, noted.items(), found_ids(connected.admin, noted))
    if known.keys() & wanted:
        unknown = {tp: commit for tp, commit in known.items() if tp in wanted or not is_last(commit)}
        raise _forgotten(connected.admin, connected.application.config, connected.version, unknown)


def _forgotten(
    admin: Admin, config: AppConfig, version: str, known: Mapping[TopicPartition, CommittedOffset]
) -> ForgottenOffsetsError:
    first = admin.beginning_offsets(known)  # of repartition topics, records are deleted once they are processed
    places = OffsetVector({tp: max(commit.offset, first[tp]) for tp, commit in known.items()})
    message = (
        f"Brokers have deleted committed offsets of {config.application_id(version)}, which has run before. The worker that"
        " took its tasks over ended without letting them go, so how far it came is not known: at least to"
        f" {places}"
    )
    hint = (
        "Find out from its outputs which records it processed last. To continue with the state as it is, replace the offsets in"
        f" this command by those of the next records: riverrun resume {config.name} --version {version} --from {places}."
        " A new version (riverrun release) computes everything again."
    )
    return ForgottenOffsetsError(message, hint=hint)


def resume(connected: ConnectedApplication, offsets: Mapping[TopicPartition, int]) -> None:
    """Set where an application continues whose committed offsets brokers have deleted. Its state stays as it is.

    Args:
        connected: The application.
        offsets: By input, the offset of the first record that it has not processed.

    Raises:
        UnderWayError: If a worker or a bounded run processes the application.
        RangeError: If an offset of one of these inputs is known, or the application was further, or the log is shorter.
        TopicError: If a topic was deleted and created again.
        BrokerError: If the brokers do not answer.
    """
    require_nobody(connected)
    connected = connected.resolved()
    unread = sorted(offsets.keys() - connected.inputs)
    if unread:
        message = f"{connected.id} does not read {', '.join(map(str, unread))}"
        raise RangeError(message, hint="riverrun lag shows all partitions that it reads.")
    for task_id, inputs in connected.layout.tasks.items():
        chosen = {tp: offsets[tp] for tp in inputs if tp in offsets}
        if chosen:
            with owning(connected, task_id) as producer:
                commits = _resumed(connected, chosen)
                commit_and_keep(producer, connected.id, commits, commits)


def _resumed(
    connected: ConnectedApplication, chosen: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, str]]:
    """Return the commits of a task, with the times that were known when it was taken over."""
    committed, kept = connected.committed(chosen), KeptOffsets(connected.admin, connected.id).read()
    noted = committed_ids({tp: kept[tp] for tp in chosen if tp in kept}, connected.id)
    require_same(connected.application, noted.items(), found_ids(connected.admin, noted))
    ends, commits = connected.admin.end_offsets(chosen), {}
    for tp, offset in chosen.items():
        if tp in committed or tp not in kept:
            stands = f"stands at {committed[tp].offset} of {tp}" if tp in committed else f"has not begun to read {tp}"
            message = f"{connected.id} {stands}"
            raise RangeError(message, hint=f"Leave {tp} out: only what brokers have forgotten can be set.")
        first, end = kept[tp].offset, ends[tp]
        if not first <= offset <= end:
            message = f"{connected.id} cannot continue at {tp}@{offset}: it was at {first} before, and the topic ends at {end}"
            raise RangeError(message, hint=f"Choose an offset from {first} to {end}.")
        known = replace(OffsetMetadata.decode(kept[tp].metadata), owner="", barrier=None)
        commits[tp] = offset, known.encode()
    return commits


def keep_committed(connected: ConnectedApplication, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Copy commits of workers that have ended without letting their tasks go. No other host may process the application.

    Args:
        connected: The application; its patterns are resolved.
        committed: Its committed offsets.

    Raises:
        TaskMigratedError: If another process takes a task over meanwhile.
        BrokerError: If the brokers do not answer.
    """
    kept = KeptOffsets(connected.admin, connected.id).read() if committed else {}
    for task_id, inputs in connected.layout.tasks.items():
        if all(_is_kept(committed[tp], kept.get(tp)) for tp in inputs if tp in committed):
            continue
        with owning(connected, task_id) as producer:
            commits = {
                tp: (offset, replace(OffsetMetadata.decode(metadata), owner="").encode() if metadata else metadata)
                for tp, (offset, metadata) in connected.committed(inputs).items()
            }
            commit_and_keep(producer, connected.id, commits, commits)


def _is_kept(commit: CommittedOffset, kept: CommittedOffset | None) -> bool:
    return kept is not None and kept.offset == commit.offset and is_last(kept)


def expiry_warning(admin: Admin, config: AppConfig, version: str) -> str | None:
    """Return a warning if brokers may delete, or have deleted, committed offsets that are known nowhere else; None if not.

    Args:
        admin: Asks the brokers.
        config: The application.
        version: Its version.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    application_id = config.application_id(version)
    kept = KeptOffsets(admin, application_id).read()
    unknown = {tp: commit for tp, commit in kept.items() if not is_last(commit)}
    existing = admin.partitions({tp.topic for tp in unknown})
    unknown = {tp: commit for tp, commit in unknown.items() if tp.topic in existing}
    if not unknown or any(admin.group(group).members for group in (application_id, group_of(application_id))):
        return None
    committed = admin.committed(application_id, unknown, isolation="read_uncommitted")
    lost = {tp: commit for tp, commit in unknown.items() if tp not in committed}
    if lost:
        return str(_forgotten(admin, config, version, lost))
    wait = f"{_RETENTION} = {admin.broker_config(_RETENTION)}"
    return (
        f"No worker of {application_id} runs, and the last one ended without letting its tasks go. Brokers delete its committed"
        f" offsets when its group has had no members for {wait}; where it stood is then unknown. Start a worker, or a bounded"
        f" run (riverrun run {config.name}), before that."
    )
