"""Copies the live version's state at a mark to a candidate, which resumes there instead of at the first offset.

1. The mark is noted while no task of the live version processes: its offsets with their metadata, and the ends of its internal
   topics. Repartition topics hold nothing then. Workers pause at a barrier until the mark is noted.
2. The changelogs of carried stores are copied up to the mark, into those of the candidate.
3. Staging tables of outputs that stay get the public rows.
4. What cannot be carried is computed by a part of the topology, in a bounded run up to the mark.
5. The candidate's tasks get the offsets of the mark, each under its lock.

Each step can be repeated, and resumes where it ended. Until the last one is noted, no host of the candidate may process.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from riverrun.arguments import function
from riverrun.config import load_attribute
from riverrun.errors import ConfigError, ReleaseError, UnderWayError
from riverrun.hosting.alone import require_nobody
from riverrun.hosting.carry import Carry
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.kept_offsets import commit_and_keep
from riverrun.hosting.ownership import fence_owners, owning
from riverrun.hosting.progress import report_progress
from riverrun.hosting.state_schemas import copy_records
from riverrun.hosting.topic_ids import found_ids, ids_to_commit
from riverrun.processor.handlers import error_handlers
from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.carried_part import CarriedPart
from riverrun.releases.carry_plan import CarryPlan, Fate, carry_plan
from riverrun.releases.corrections import copy_partitions
from riverrun.releases.migrating import Migration
from riverrun.releases.rewinding import Mark, compact_again, keep_whole, lost_settings, mark_of
from riverrun.releases.topology import tables
from riverrun.runtime.layout import changelog_name, internal_name
from riverrun.runtime.times import OffsetMetadata, short_name
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import COMMITTED, EARLIEST, resolve
from riverrun.topology.fingerprint import code_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from riverrun.config.code import PickledFunction
    from riverrun.hosting.barrier_coordinator import BarrierCoordinator
    from riverrun.hosting.control_topic import ReleaseRegistry
    from riverrun.hosting.release import Release
    from riverrun.records import TaskId
    from riverrun.releases.corrections import Corrections
    from riverrun.releases.versions import Versions
    from riverrun.state.api import StoreBuilder

# Local state of the part, below the state directory of all applications.
_DIRECTORY = "carrying"
_LOOKS = 5

_MIGRATING = function("key, value")


@dataclass(frozen=True, slots=True)
class Carrying:
    """Carries the state of an application's live version over to a candidate."""

    versions: Versions
    registry: ReleaseRegistry
    barriers: BarrierCoordinator
    corrections: Corrections

    def plan(self, live: ConnectedApplication, new: ConnectedApplication) -> CarryPlan:
        """Decide what the candidate takes over. Changes nothing."""
        declared = new.application.config.carry.get(new.version, {})
        plan = carry_plan(live.application, new.application, declared)
        # A function that cannot be imported, or called, has to fail here, before anything changes.
        for store, migrating in plan.functions.items():
            complaint = _MIGRATING.complaint(load_attribute(migrating))
            if complaint is not None:
                message = f"{migrating} cannot migrate store {store}: it {complaint}"
                raise ConfigError(message, hint="Write a function of (key, value) that returns the new value.")
        _check_partitions(live.resolved(), new.resolved(), plan)
        return plan

    def start(self, release: Release, live: ConnectedApplication, new: ConnectedApplication) -> Release:
        """Note that state is to be carried. Hosts of the candidate that start from now on are refused."""
        # A run that is held back may still be discarded, which rewinds the changelogs that would be copied.
        release.require_nothing_held()
        plan = self.plan(live, new)
        carry = Carry(uuid.uuid4().hex[:8], fates=plan.lines, functions=_digests(plan))
        return self.registry.write(replace(release, carry=carry))

    def is_begun(self, release: Release, live: ConnectedApplication, new: ConnectedApplication) -> bool:
        """Return whether a release has noted the carrying that would begin now, with the same fates and functions."""
        plan, carry = self.plan(live, new), release.carry
        return carry is not None and carry.fates == plan.lines and carry.functions == _digests(plan)

    def complete(self, release: Release, live: ConnectedApplication, new: ConnectedApplication) -> Release:
        """Carry the state. If it is interrupted, another call completes it."""
        carry = release.carry
        if carry is None or carry.is_done:
            return release
        plan, live = self.plan(live, new), live.resolved()
        # Only hosts that start after the note are refused by it: one that began before would still write.
        require_nobody(new)
        # Before the mark, nothing of this carrying exists: what the candidate has was computed or carried earlier.
        if not carry.is_marked:
            self.versions.discard(new, partial(self.registry.require, release))
            shutil.rmtree(_directory(new), ignore_errors=True)
        new = self.versions.staged(new.version).resolved()
        if not carry.is_marked:
            release = self._marked(release, carry, live, new, plan)
        carry, mark = _present(release)
        _require_same_topics(live, mark)
        new.prepare()
        self._copy(live, new, plan, mark, carry)
        compact_again(live.admin, carry.settings, partial(self.registry.require, release))
        # The public rows may be later than the mark. That is harmless: what has changed since, the candidate writes as well,
        # when it processes the same records.
        stay = [topic for topic in tables(new.application) if plan.outputs[topic].fate is Fate.CARRIED]
        self.corrections.fill(new, release, stay)
        # Before the part runs: once it has committed, brokers no longer show where it began.
        begun = self.versions.begun(release, new, plan.read_by(new.topology))
        release = release if begun == release else self.registry.write(begun)
        part = self._compute(new, plan, mark, carry)
        _Tasks(live, new, plan, mark, carry).stand(part)
        shutil.rmtree(_directory(new), ignore_errors=True)
        done = replace(carry, is_done=True, committed={}, ends={}, topics={}, settings={}, until={})
        return self.registry.write(replace(release, carry=done))

    def give_up(self, release: Release, live: ConnectedApplication) -> None:
        """Let brokers compact the live version's changelogs again, if a carrying that was interrupted has prevented that."""
        carry = release.carry
        if carry is None or carry.is_done:
            return
        # A carrying that died between changing the settings and noting them has lost them.
        lost = {} if carry.is_marked else lost_settings(live.admin, live.resolved().layout.changelog_topics)
        compact_again(live.admin, {**lost, **carry.settings}, partial(self.registry.require, release))

    def _marked(
        self,
        release: Release,
        carry: Carry,
        live: ConnectedApplication,
        new: ConnectedApplication,
        plan: CarryPlan,
    ) -> Release:
        # Before the mark: a record that brokers compact after it would be missing in the copies.
        copied = {changelog_name(live.id, store) for store in plan.taken}
        changelogs = [each for each in live.layout.changelog_topics if each.name in copied]
        settings = keep_whole(live.admin, changelogs, partial(self.registry.require, release))
        # A repeated call finds settings that an earlier one has changed already, so what that one noted wins.
        carry = replace(carry, settings={**settings, **carry.settings})
        release = self.registry.write(replace(release, carry=carry))
        if self.barriers.is_running(live):
            completed = self.barriers.pause(release, [live])
            try:
                mark = mark_of(live, {})
            except BaseException:
                # Also on Ctrl-C: otherwise workers pause until the barrier's time limit.
                self.barriers.give_up(completed.release)
                raise
            release = self.barriers.resume(completed.release)
        else:
            mark = _mark_at_rest(live)
        _require_drained(live, mark)
        sources = self.versions.target(live, new)
        shared = {tp: mark.committed[tp][0] for tp in sources if tp in mark.committed}
        marked = replace(
            carry,
            is_marked=True,
            at=str(OffsetVector(shared)),
            committed={str(tp): noted for tp, noted in mark.committed.items()},
            ends={str(tp): end for tp, end in mark.ends.items()},
            topics=dict(mark.ids),
            until={str(tp): end for tp, end in sources.items() if tp not in shared},
        )
        return self.registry.write(replace(release, carry=marked))

    def _copy(
        self, live: ConnectedApplication, new: ConnectedApplication, plan: CarryPlan, mark: Mark, carry: Carry
    ) -> None:
        """Copy the changelogs of carried stores up to the mark."""
        before, after = live.topology.parts().stores, new.topology.parts().stores
        for done, store in enumerate(plan.taken):
            report_progress(f"carry state to {new.id}", done, len(plan.taken))
            source, target = changelog_name(live.id, store), changelog_name(new.id, store)
            ends = {tp: end for tp, end in mark.ends.items() if tp.topic == source}
            function = plan.functions.get(store)
            changed = None if function is None else _migration(new, before[store], after[store], function)
            # A table that is read from its topic has no changelog.
            if ends:
                # Another carrying starts with an empty topic, so it must not continue this one's copy.
                copy_partitions(live.admin, new.id, target, ends, target, changed, attempt=carry.id)
            if changed is not None:
                changed.tell()
        # Notes of serdes are true of rows that are copied as they are, not of those that a function has made.
        equal = (store for store in plan.taken if store not in plan.functions)
        copy_records(live.admin, {changelog_name(live.id, store): changelog_name(new.id, store) for store in equal})
        report_progress(f"carry state to {new.id}", len(plan.taken), len(plan.taken))

    def _compute(
        self, new: ConnectedApplication, plan: CarryPlan, mark: Mark, carry: Carry
    ) -> ConnectedApplication | None:
        """Process the part that cannot be carried, up to the mark; None if there is none."""
        if not plan.part:
            return None
        build = CarriedPart(plan.part, plan.fed)
        application = replace(
            new.application,
            topology=build.of(new.topology, new.id),
            # The part has other tasks than the candidate, so its state must not lie where the candidate looks for its own.
            state_directory=new.application.state_directory / _DIRECTORY,
        )
        part = ConnectedApplication(application, new.admin).resolved()
        read = part.topology.source_topics
        until = {TopicPartition.parse(name): end for name, end in carry.until.items()}
        noted = {tp: offset for tp, (offset, _) in mark.committed.items()}
        known = {tp: end for tp, end in {**noted, **until}.items() if tp.topic in read}
        changelogs = [changelog_name(new.id, store) for store in plan.fed.values()]
        rows = [
            TopicPartition(topic, n) for topic, count in new.admin.partitions(changelogs).items() for n in range(count)
        ]
        vector = OffsetVector({**known, **new.admin.settled_end_offsets(rows)})
        # Commits are those of an earlier call that was interrupted: the run continues there.
        start = COMMITTED if part.committed(vector.offsets) else EARLIEST
        run(part, resolve(part, start, str(vector)), self.versions.spark, build)
        return part


def _directory(new: ConnectedApplication) -> Path:
    return new.application.state_directory / _DIRECTORY / new.id


def _check_partitions(live: ConnectedApplication, new: ConnectedApplication, plan: CarryPlan) -> None:
    """Make sure that the rows of carried stores are in the partitions where the candidate looks for them."""
    before = {topic.name: topic.partitions for topic in live.layout.changelog_topics}
    after = {topic.name: topic.partitions for topic in new.layout.changelog_topics}
    for store in plan.taken:
        was, now = before.get(changelog_name(live.id, store)), after.get(changelog_name(new.id, store))
        if was != now:
            message = f"Store {store} has {was} partitions in {live.version}, and would have {now} in {new.version}"
            raise ReleaseError(message, hint="Its rows would lie elsewhere: release it without --carry.")


def _migration(
    new: ConnectedApplication, before: StoreBuilder, after: StoreBuilder, function: str | PickledFunction
) -> Migration:
    subs = new.topology.sub_topologies()
    number = next(sub.id for sub in subs if any(store.name == after.name for store in sub.stores))
    handler = error_handlers(new.application.config.streams).processing
    return Migration(before, after, function, number, handler, new.application.dead_letters)


def _mark_at_rest(live: ConnectedApplication) -> Mark:
    """Return the mark of a version without workers."""
    require_nobody(live)
    fence_owners(live, live.layout.tasks)
    # A mark takes several requests. Only if two of them agree, nothing was committed in between.
    mark = mark_of(live, {})
    for _ in range(_LOOKS):
        again = mark_of(live, {})
        if again == mark:
            # A run that began since the first check may not have committed yet.
            require_nobody(live)
            return mark
        mark = again
    raise UnderWayError(f"{live.id} keeps processing", hint="Try again once its run has ended.")


def _require_drained(live: ConnectedApplication, mark: Mark) -> None:
    internal = {topic.name for topic in live.layout.repartition_topics}
    left = [tp for tp, end in mark.ends.items() if tp.topic in internal and mark.committed.get(tp, (0, ""))[0] < end]
    if left:
        message = f"{live.id} has records left in {left[0]}, between its sub-topologies"
        app = live.application.config.name
        raise UnderWayError(message, hint=f"A run was interrupted. Finish it first: riverrun run {app}")


def _require_same_topics(live: ConnectedApplication, mark: Mark) -> None:
    present = {name: topic.id for name, topic in live.admin.topics(mark.ids).items()}
    gone = sorted(name for name, topic_id in mark.ids.items() if present.get(name) != topic_id)
    if gone:
        message = f"{', '.join(gone)} of {live.id} was deleted while its state was carried"
        hint = f"Give the release up: riverrun release abort {live.application.config.name}"
        raise ReleaseError(message, hint=hint)


def _digests(plan: CarryPlan) -> dict[str, str]:
    return {store: code_of(load_attribute(function)) for store, function in plan.functions.items()}


def _present(release: Release) -> tuple[Carry, Mark]:
    carry = release.carry
    if carry is None:  # it was written just before
        raise ReleaseError(f"{release.app} carries no state")
    committed = {TopicPartition.parse(name): (offset, text) for name, (offset, text) in carry.committed.items()}
    return carry, Mark(committed, {TopicPartition.parse(name): end for name, end in carry.ends.items()}, carry.topics)


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Moves the tasks of a candidate to a mark."""

    live: ConnectedApplication
    new: ConnectedApplication
    plan: CarryPlan
    mark: Mark
    carry: Carry

    def stand(self, part: ConnectedApplication | None) -> None:
        """Commit the offsets of the mark for all tasks, with the times of what was carried and of what was computed."""
        tasks = self.new.layout.tasks
        computed = {} if part is None else {tp: found.metadata for tp, found in part.committed().items()}
        for task_id in sorted(tasks):
            self._commit(task_id, tasks[task_id], computed)

    def _commit(
        self, task_id: TaskId, inputs: tuple[TopicPartition, ...], computed: Mapping[TopicPartition, str]
    ) -> None:
        application, admin = self.new.application, self.new.admin
        ids = found_ids(admin, application.task_spec(task_id, inputs).topics)
        internal = {topic.name for topic in self.new.layout.repartition_topics}
        with owning(self.new, task_id) as producer:
            # Repartition topics of the candidate hold only what its part has written, and processed.
            drained = admin.settled_end_offsets([tp for tp in inputs if tp.topic in internal])
            offsets = {}
            for tp in inputs:
                offset, text = self._noted(tp, is_internal=tp.topic in internal)
                known = self._metadata(OffsetMetadata.decode(text), OffsetMetadata.decode(computed.get(tp, "")))
                metadata = replace(known, topics=ids_to_commit(tp, ids, self.new.id)).encode()
                offsets[tp] = drained.get(tp, offset), metadata
            commit_and_keep(producer, self.new.id, offsets, offsets)

    def _noted(self, tp: TopicPartition, *, is_internal: bool) -> tuple[int, str]:
        """Return where the live version stood in an input of the candidate, and its metadata."""
        if is_internal:
            name = tp.topic.removeprefix(f"{self.new.id}-")
            return self.mark.committed.get(TopicPartition(internal_name(self.live.id, name), tp.partition), (0, ""))
        if tp in self.mark.committed:
            return self.mark.committed[tp]
        until = self.carry.until.get(str(tp))
        if until is None:
            message = f"{tp} was added while state was carried"
            hint = f"Give the release up, and start it again: riverrun release abort {self.new.application.config.name}"
            raise ReleaseError(message, hint=hint)
        return until, ""

    def _metadata(self, noted: OffsetMetadata, computed: OffsetMetadata) -> OffsetMetadata:
        """Return the times of what was carried; for what was computed, those of the part."""
        # A time's name is the short name of a node or store, followed by a number.
        other = {short_name(name) for name in self._computed_names()}
        times = {name: time_ms for name, time_ms in noted.times.items() if name[: len(short_name(""))] not in other}
        return replace(
            noted,
            partition_time=max(noted.partition_time, computed.partition_time),
            times={**times, **computed.times},
            processor_metadata={**noted.processor_metadata, **computed.processor_metadata},
            # Of the live version alone: its place in a pack, the barrier at which it paused, and the producer to fence.
            taken=0,
            barrier=None,
            owner="",
        )

    def _computed_names(self) -> list[str]:
        part = self.plan.part - self.plan.fed.keys()
        stores = (store.name for store in self.plan.stores.values() if store.fate is Fate.COMPUTED)
        nodes = (f"{kind} {name}" for name in part for kind in ("node", "punctuations"))
        return [*nodes, *(f"store {name}" for name in stores)]
