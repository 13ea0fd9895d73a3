"""Applications whose committed offsets brokers have deleted: how to distinguish them from new ones, and how to resume them.

`ConnectedApplication.committed` returns the copies of commits that nobody has continued from (`kept_offsets`). What is left
are workers that ended without letting their tasks go, and topics that were deleted and created again. There is also state
whose copies are lost as well.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, ForgottenOffsetsError, RangeError
from riverrun.hosting.alone import group_of, require_nobody
from riverrun.hosting.kept_offsets import KeptOffsets, commit_and_keep, is_last
from riverrun.hosting.ownership import fence_owners, owning
from riverrun.hosting.topic_ids import committed_ids, found_ids, require_same, unread
from riverrun.kafka.admin import CommittedOffset
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange, OffsetVector, TopicPartition
from riverrun.runtime.layout import is_internal_topic, kept_offsets_name
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.config import AppConfig
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin

_AGAIN = "A new version (riverrun release) computes everything again."
_RETENTION = "offsets.retention.minutes"


def require_new(connected: ConnectedApplication, tps: Iterable[TopicPartition]) -> None:
    """Make sure that inputs without committed offsets were never committed."""
    wanted = set(tps)
    kept = KeptOffsets(connected.admin, connected.id).read() if wanted else {}
    if wanted and not kept:
        _require_no_state(connected)
    if not kept.keys() & wanted:
        return
    known = {tp: commit for tp, commit in kept.items() if tp in connected.inputs}
    # Other inputs have committed offsets, and these may have got some since the caller has asked.
    for tp in connected.noted(known):
        del known[tp]
    noted = committed_ids({tp: commit for tp, commit in known.items() if tp in wanted}, connected.id)
    require_same(connected.application, noted.items(), found_ids(connected.admin, noted))
    if known.keys() & wanted:
        unknown = {tp: commit for tp, commit in known.items() if tp in wanted or not is_last(commit)}
        raise _forgotten(connected.admin, connected.application.config, connected.version, unknown)


def _require_no_state(connected: ConnectedApplication) -> None:
    """Make sure that an application without any progress has no state either, such as one that lost more than its offsets."""
    topics = _changelogs_with_rows(connected)
    # The commits are read last: a host that began meanwhile has committed before it wrote any row.
    if not topics or not _knows_nothing(connected):
        return
    why = (
        f"{connected.id} has state in {', '.join(topics)}, but neither committed offsets nor their copies"
        f" ({kept_offsets_name(connected.id)})"
    )
    raise _forgotten(connected.admin, connected.application.config, connected.version, _first_offsets(connected), why)


def _knows_nothing(connected: ConnectedApplication) -> bool:
    is_unknown = KeptOffsets(connected.admin, connected.id).knows_nothing()
    return is_unknown and not connected.noted(connected.inputs)


def _changelogs_with_rows(connected: ConnectedApplication) -> list[str]:
    admin = connected.admin
    counts = admin.partitions(topic.name for topic in connected.layout.changelog_topics)
    tps = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    ends = {tp: end for tp, end in admin.end_offsets(tps).items() if end}
    # An attempt that failed leaves offsets without records.
    starts = admin.beginning_offsets(ends)
    return sorted({tp.topic for tp, end in ends.items() if _has_records(admin, tp, OffsetRange(starts[tp], end))})


def _has_records(admin: Admin, tp: TopicPartition, wanted: OffsetRange) -> bool:
    return any(records for _, records in read_range(admin, {tp: wanted}))


def _first_offsets(connected: ConnectedApplication) -> dict[TopicPartition, CommittedOffset]:
    """Return the least that an application has processed of which nothing is known."""
    ids = found_ids(connected.admin, {tp.topic for tp in connected.inputs})
    first = connected.admin.beginning_offsets(connected.inputs)
    return {tp: CommittedOffset(offset, unread(tp, ids, connected.id)) for tp, offset in first.items()}


def _forgotten(
    admin: Admin,
    config: AppConfig,
    version: str,
    known: Mapping[TopicPartition, CommittedOffset],
    why: str | None = None,
) -> ForgottenOffsetsError:
    application_id = config.application_id(version)
    first, ends = admin.beginning_offsets(known), admin.end_offsets(known)
    # Records of repartition topics are deleted once they are processed, so their logs may begin after the copy. Those of
    # other topics are deleted because of their age, processed or not.
    least = {
        tp: max(commit.offset, first[tp]) if is_internal_topic(application_id, tp.topic) else commit.offset
        for tp, commit in known.items()
    }
    unknown = sorted(tp for tp, offset in least.items() if offset < ends[tp])
    message = why or (
        f"Brokers have deleted committed offsets of {application_id}, which has run before. The worker that took its tasks over"
        " ended without releasing them"
    )
    if shorter := sorted(tp for tp, offset in least.items() if offset > ends[tp]):
        places = ", ".join(f"{tp} ends at {ends[tp]}, before {least[tp]}" for tp in shorter)
        message += f". {places}: records were lost, or the topic was created again"
        return ForgottenOffsetsError(message, hint=_AGAIN)
    command = f"riverrun resume {config.name} --version {version} --from"
    if not unknown:
        nothing = "but nothing was written since" if why is None else "and its inputs have no records"
        message += f", {nothing}, so it is at {OffsetVector(least)}"
        return ForgottenOffsetsError(
            message, hint=f"Continue there, with the state as it is: {command} {OffsetVector(least)}"
        )
    message += ", so its progress is unknown: at least to"
    message += f" {OffsetVector(least)}, and at most to {OffsetVector({tp: ends[tp] for tp in unknown})}"
    if lost := {tp: first[tp] for tp in unknown if least[tp] < first[tp]}:
        message += f". Records before {OffsetVector(lost)} have been deleted, whether it had processed them or not"
    # Not the lowest offsets: records that it has processed would count twice.
    places = ",".join(f"{tp}@{'OFFSET' if tp in unknown else least[tp]}" for tp in sorted(least))
    hint = (
        "Find out from its outputs which records it processed last. To continue with the state as it is, write the offsets of"
        f" the next records in place of OFFSET: {command} {places}. {_AGAIN}"
    )
    if why is not None:
        hint += (
            " If its rows were imported, or come from topics that it no longer reads, these are the first offsets:"
            f" {OffsetVector(least)}."
        )
    return ForgottenOffsetsError(message, hint=hint)


def resume(connected: ConnectedApplication, offsets: Mapping[TopicPartition, int]) -> None:
    """Set where an application continues whose committed offsets brokers have deleted. Its state stays as it is."""
    require_nobody(connected)
    connected = connected.resolved()
    unread = sorted(offsets.keys() - connected.inputs)
    if unread:
        message = f"{connected.id} does not read {', '.join(map(str, unread))}"
        raise RangeError(message, hint="riverrun lag shows all partitions that it reads.")
    if not offsets:
        message = f"No offset is named from which {connected.id} continues"
        raise RangeError(message, hint="Name offsets as PARTITION@OFFSET: the next start says which are forgotten.")
    # Before copies are read: a host that died amid a commit hides them.
    fence_owners(connected, sorted(connected.layout.tasks))
    starts: Mapping[TopicPartition, CommittedOffset] = {}
    if _changelogs_with_rows(connected) and _knows_nothing(connected):
        starts = _first_offsets(connected)
        if left_out := sorted(starts.keys() - offsets.keys()):
            message = (
                f"Nothing is known of the progress of {connected.id}: {', '.join(map(str, left_out))} would begin anew"
            )
            raise RangeError(message, hint="Name the offsets of all inputs: the next start says which there are.")
    # One transaction: after some of the commits, nothing would tell that the others are missing.
    with owning(connected, min(connected.layout.tasks)) as producer:
        commits = _resumed(connected, offsets, starts)
        commit_and_keep(producer, connected.id, commits, commits)


def _resumed(
    connected: ConnectedApplication,
    chosen: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, CommittedOffset] = MappingProxyType({}),
) -> dict[TopicPartition, tuple[int, str]]:
    """Return commits of chosen offsets, with the times that were known when the tasks were taken over.

    `starts` are the first offsets of an application without copies.
    """
    committed = connected.committed(chosen)
    kept = {**starts, **KeptOffsets(connected.admin, connected.id).read()}
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
            raise RangeError(message, hint=f"Choose an offset from {first} to {end}." if first <= end else _AGAIN)
        known = replace(OffsetMetadata.decode(kept[tp].metadata), owner="", barrier=None)
        # These two are about the record at the offset that was copied.
        if offset != first:
            known = replace(known, taken=0, next_time=-1)
        commits[tp] = offset, known.encode()
    return commits


def keep_committed(connected: ConnectedApplication, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Copy commits of workers that have ended without letting their tasks go. No other host may process the application."""
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
    """Return a warning if brokers may delete, or have deleted, committed offsets that are known nowhere else; None if not."""
    application_id = config.application_id(version)
    try:
        kept = KeptOffsets(admin, application_id).read()
    # Such as a missing right, which only hosts that process need.
    except BrokerError as error:
        if error.retriable:
            raise
        return f"Cannot determine whether brokers may delete committed offsets of {application_id}: {error.message}"
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
        f"No worker of {application_id} runs, and the last one ended without releasing its tasks. Brokers delete its committed"
        f" offsets when its group has had no members for {wait}; its position is then unknown. Start a worker, or a bounded"
        f" run (riverrun run {config.name}), before that."
    )
