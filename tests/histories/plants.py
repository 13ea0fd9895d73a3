"""Small faults to plant into the product's protocols, to see whether histories and tests find them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A replacement in one module below `riverrun`: its text occurs there exactly once."""

    module: str
    text: str
    planted: str


@dataclass(frozen=True)
class Plant:
    """One small fault.

    Args:
        name: A short name, for commands.
        says: What is wrong, as a sentence.
        tests: Folders or files of `tests/unit` that are likely to find it.
        remark: Why histories do not find it.
        histories: The module whose histories are to find it.
    """

    name: str
    says: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    remark: str = ""
    histories: str = "tests.histories"


def _plant(
    name: str,
    says: str,
    *edits: tuple[str, str, str],
    tests: str,
    remark: str = "",
    histories: str = "tests.histories",
) -> Plant:
    return Plant(name, says, tuple(Edit(*each) for each in edits), tuple(tests.split()), remark, histories)


_OWNERSHIP = "hosting/ownership.py"
_CLAIM = "hosting/claim.py"
_ACTIVE = "hosting/active_task.py"
_RESTORING = "hosting/restoring.py"
_STANDBYS = "hosting/standby_tasks.py"
_SNAPSHOTS = "hosting/snapshots.py"
_PRODUCER = "kafka/producer.py"
_CONSUMER = "kafka/consumer.py"
_RANGES = "kafka/ranges.py"
_MEMBER = "kafka/membership.py"
_EXECUTOR = "worker/tasks/task_executor.py"
_MANAGER = "worker/tasks/task_manager.py"
_UPDATER = "worker/tasks/state_updater.py"
_FETCHING = "worker/tasks/fetching.py"
_INPUTS = "runtime/inputs.py"
_RUN = "spark/bounded_runs/executor.py"
_LETTERS = "topics/letters.py"
_LEVELS = "spark/bounded_runs/attempts.py"

PLANTS = (
    # Owners
    _plant(
        "owner-is-not-fenced",
        "A takeover does not fence the owner that the committed offsets name.",
        (
            _OWNERSHIP,
            "        for owner in named:\n            fence(owner)\n",
            "        for owner in named:\n            pass\n",
        ),
        tests="hosting/tasks simulation/test_projects.py",
    ),
    _plant(
        "offsets-before-the-lock",
        "A takeover reads committed offsets before it initialises the lock of the task.",
        (
            _CLAIM,
            "            lock.init()\n            point = committed_point(connected, spec, self._fenced_commits())\n",
            "            point = committed_point(connected, spec, self._fenced_commits())\n            lock.init()\n",
        ),
        tests="hosting/tasks simulation/test_projects.py",
        remark="Two processes have to claim one task within moments.",
    ),
    _plant(
        "offsets-before-the-fence",
        "A takeover keeps the offsets that it has read before it fenced the owner.",
        (
            _OWNERSHIP,
            "        for owner in named:\n            fence(owner)\n        fenced |= named\n",
            (
                "        for owner in named:\n            fence(owner)\n        fenced |= named\n"
                "        if is_stable:\n            return commits\n"
            ),
        ),
        tests="hosting/tasks simulation/test_projects.py",
        remark="The owner has to commit between a read and the fence that follows it.",
    ),
    _plant(
        "owner-is-not-named",
        "A takeover does not commit the offsets again with the new owner.",
        (_CLAIM, "            lock.commit(self.newest_commit)\n        except", "            pass\n        except"),
        tests="hosting/tasks simulation/test_projects.py",
    ),
    _plant(
        "open-offsets-are-taken",
        "A takeover takes committed offsets as they are while a transaction that commits others is open.",
        (
            _OWNERSHIP,
            "            return commits if is_stable else offsets.committed(asked)\n",
            "            return commits\n",
        ),
        tests="hosting/tasks simulation/test_projects.py",
        remark="Markers have to be held exactly while an owner is replaced.",
    ),
    _plant(
        "fenced-owner-continues",
        "A process takes a task over again although another owner has committed meanwhile.",
        (
            _CLAIM,
            "        if self.connected.committed(self.spec.inputs) not in self._own_commits:\n            raise",
            "        if False:\n            raise",
        ),
        tests="hosting/tasks worker/tasks simulation/test_projects.py",
        remark="Owners fence each other more often, and each continues from what is committed.",
    ),
    _plant(
        "release-undoes-a-commit",
        "A process that lets go of a task commits the offsets that it knows, whatever its successor has committed.",
        (
            _CLAIM,
            "            if self.connected.committed(self.spec.inputs) == self.last_commit:\n",
            "            if True:\n",
        ),
        tests="hosting/tasks worker/tasks simulation/test_projects.py",
        remark="A task has to be revoked between its takeover and its start, after a successor has committed.",
    ),
    _plant(
        "release-before-the-lock",
        "A process that lets go of a task compares offsets before it takes the lock.",
        (
            _CLAIM,
            "            lock.init()\n            # Otherwise another owner has continued",
            "            # Otherwise another owner has continued",
        ),
        (
            _CLAIM,
            "                lock.commit(self.released())\n",
            "                lock.init()\n                lock.commit(self.released())\n",
        ),
        tests="hosting/tasks worker/tasks simulation/test_projects.py",
        remark="A successor has to commit between the comparison and the lock.",
    ),
    # Producers
    _plant(
        "unknown-outcome-is-success",
        "A commit whose outcome is unknown counts as done.",
        (
            _PRODUCER,
            "            if not isinstance(failure, TaskMigratedError):\n",
            (
                "            if isinstance(failure, UnknownOutcomeError):\n                return\n"
                "            if not isinstance(failure, TaskMigratedError):\n"
            ),
        ),
        tests="hosting/tasks test_kafka_errors.py simulation/test_projects.py",
    ),
    _plant(
        "fenced-producer-retries",
        "A fenced producer does not learn that it was fenced, and tries again.",
        (
            _PRODUCER,
            "            return self._expiry() or streams_error(error, doing)\n",
            '            return UnknownOutcomeError(f"{doing}: fenced")\n',
        ),
        tests="hosting/tasks test_kafka_errors.py simulation/test_projects.py",
        remark="Nothing is wrong: the claim finds the commit of the other owner before it takes the task over again.",
    ),
    _plant(
        "producer-outlives-a-failure",
        "A stream thread keeps its producer after a failed transaction.",
        (
            _OWNERSHIP,
            "        producer, self._producer = self._producer, None\n        if producer is not None:\n",
            "        producer = self._producer\n        if producer is not None and abort:\n",
        ),
        tests="hosting/tasks worker/tasks simulation/test_projects.py",
    ),
    _plant(
        "changelog-outside-of-the-transaction",
        "Changelog records are sent outside of the transaction.",
        (
            _ACTIVE,
            "        collector = decorate(KafkaRecordCollector(self._sender, self._connected.admin))\n",
            (
                "        from riverrun.kafka.producer import IdempotentProducer\n"
                "        inner = KafkaRecordCollector(self._sender, self._connected.admin)\n"
                "        plain, inside = IdempotentProducer(self._connected.application.kafka).send, inner.send\n"
                '        inner.send = lambda topic, *rest: (plain if topic.endswith("-changelog") else inside)(topic, *rest)\n'
                "        collector = decorate(inner)\n"
            ),
        ),
        tests="hosting/tasks simulation/test_projects.py",
    ),
    # Commits
    _plant(
        "state-before-the-commit",
        "Local state is written before its commit is durable.",
        (
            _ACTIVE,
            (
                "    offsets = {tp: found for active in tasks for tp, found in active.prepared.offsets.items()}\n"
                "    producer.commit(offsets, released)\n"
            ),
            (
                "    offsets = {tp: found for active in tasks for tp, found in active.prepared.offsets.items()}\n"
                "    for active in tasks:\n        active.task.post_commit(active._changelog_ends, active._whole)\n"
                "    producer.commit(offsets, released)\n"
            ),
        ),
        tests="hosting/tasks simulation/test_projects.py",
    ),
    _plant(
        "changelog-ends-after-the-commit",
        "The ends of changelogs are asked for after the commit, and may count records of a successor.",
        (
            _ACTIVE,
            (
                "    for active in tasks:\n        active.note_changelog_ends(ends)\n"
                "    offsets = {tp: found for active in tasks for tp, found in active.prepared.offsets.items()}\n"
                "    producer.commit(offsets, released)\n"
            ),
            (
                "    offsets = {tp: found for active in tasks for tp, found in active.prepared.offsets.items()}\n"
                "    producer.commit(offsets, released)\n"
                "    ends = tasks[0].claim.connected.admin.written_offsets(changelogs) if changelogs else {}\n"
                "    for active in tasks:\n        active.note_changelog_ends(ends)\n"
            ),
        ),
        tests="hosting/tasks simulation/test_projects.py",
    ),
    _plant(
        "committed-offset-minus-one",
        "A commit has the offset of the last record, which is processed again.",
        (
            _INPUTS,
            "        return max(self.next_offset, self._end)\n\n    def next_time",
            "        return max(self.next_offset, self._end - 1) - 1\n\n    def next_time",
        ),
        tests="runtime simulation/test_projects.py",
    ),
    _plant(
        "committed-offset-plus-one",
        "A commit has the offset after the next record, which is never processed after a takeover.",
        (
            _INPUTS,
            (
                "            return self._head[_OFFSET]\n"
                "        if self.waiting:\n            return self.waiting[0][RAW_OFFSET]\n"
            ),
            (
                "            return self._head[_OFFSET] + 1\n"
                "        if self.waiting:\n            return self.waiting[0][RAW_OFFSET] + 1\n"
            ),
        ),
        tests="runtime simulation/test_projects.py",
    ),
    _plant(
        "processing-during-a-commit",
        "Tasks process records while their commit is under way.",
        (_EXECUTOR, "        if self._under_way:\n            return 0\n", ""),
        tests="worker/tasks simulation/test_projects.py",
    ),
    _plant(
        "revoked-without-a-commit",
        "Revoked tasks are closed without a commit.",
        (_MANAGER, "            self.commits.commit(leaving)\n", "            pass\n"),
        tests="worker/tasks simulation/test_projects.py",
        remark="Nothing is wrong: the successor processes the records again.",
    ),
    _plant(
        "start-during-a-commit",
        "A task that is complete starts while a commit of the stream thread is under way.",
        (
            _MANAGER,
            "            self.commits.come_to_end()\n        for active",
            "            pass\n        for active",
        ),
        tests="worker/tasks simulation/test_projects.py",
        remark="The topology has no table whose rows are removed when a task starts.",
    ),
    _plant(
        "purge-up-to-the-open-commit",
        "A purge deletes records up to the commit that is under way.",
        (
            "hosting/purge.py",
            "            for tp, offset in active.committed_offsets.items()\n",
            "            for tp, (offset, _) in active.claim.newest_commit.items()\n",
        ),
        tests="hosting/tasks simulation/test_projects.py",
    ),
    # Restores, standbys and snapshots
    _plant(
        "restore-ends-early",
        "A restore leaves the last record of each changelog out.",
        (
            _RESTORING,
            "        kept, _ = batch.split(end)\n        self.task.restore",
            "        kept, _ = batch.split(end - 2)\n        self.task.restore",
        ),
        tests="hosting/restoring hosting/tasks simulation/test_projects.py",
    ),
    _plant(
        "restore-goes-on-too-far",
        "A restore applies what a changelog has after the committed point of the takeover.",
        (
            _RESTORING,
            "        kept, _ = batch.split(end)\n        self.task.restore(tp, kept, min(reached, end))\n",
            "        kept = batch\n        self.task.restore(tp, kept, max(reached, end))\n",
        ),
        tests="hosting/restoring hosting/tasks simulation/test_projects.py",
        remark="Nothing is wrong: a fenced owner writes nothing more.",
    ),
    _plant(
        "promoted-standby-is-behind",
        "A promoted standby counts as complete, however far it is behind.",
        (
            "hosting/task_start.py",
            "        backend = open_state(connected, spec.id)\n    try:\n",
            (
                "        backend, is_standby = open_state(connected, spec.id), False\n"
                "    else:\n        is_standby = True\n    try:\n"
            ),
        ),
        (
            "hosting/task_start.py",
            "        _compare_inputs(opened)\n    except",
            (
                "        if is_standby:\n            opened = replace(opened, missing=replace(opened.missing, ranges={}))\n"
                "        _compare_inputs(opened)\n    except"
            ),
        ),
        tests="hosting/restoring hosting/tasks worker/tasks simulation/test_projects.py",
        remark="Standbys are rarely drawn, and behind for moments only.",
    ),
    _plant(
        "standby-positions-run-ahead",
        "A standby notes a position one record further than it has applied.",
        (
            _STANDBYS,
            "            self.task.restore(tp, kept, self.positions[tp])\n",
            "            self.task.restore(tp, kept.split(kept.end - 1)[0], self.positions[tp])\n",
        ),
        tests="hosting/restoring hosting/tasks simulation/test_projects.py",
    ),
    _plant(
        "foreign-state-is-kept",
        "Local state ahead of its changelog counts as complete.",
        (
            _RESTORING,
            "    if start > last or 0 < start < first:\n",
            "    if 0 < start < first:\n",
        ),
        tests="hosting/restoring hosting/tasks state/test_snapshots.py simulation/test_projects.py",
        remark="No changelog is shortened or created again.",
    ),
    _plant(
        "snapshot-before-the-commit",
        "A snapshot is copied before a commit and labelled with what is after it.",
        (
            "worker/stream_thread/upkeep.py",
            "        if active is not None and commit_state(active):\n            self._publish(active)\n",
            (
                "        if active is not None:\n            import shutil\n"
                '            early = self._application.directory / f".early-{active.id}"\n'
                "            shutil.rmtree(early, ignore_errors=True)\n            active._opened.backend.checkpoint(early)\n"
                "            if commit_state(active):\n"
                "                from riverrun.state.rocksdb import RocksDbBackend\n"
                "                labelled = RocksDbBackend(early)\n"
                "                labelled.write({}, active.applied())\n                labelled.close()\n"
                "                self._early = early\n                self._publish(active)\n"
            ),
        ),
        (
            "worker/stream_thread/upkeep.py",
            "            checkpoint = active.checkpoint()\n",
            (
                "            from dataclasses import replace\n"
                "            checkpoint = replace(active.checkpoint(), directory=self._early)\n"
            ),
        ),
        tests="hosting/tasks worker/tasks state/test_snapshots.py simulation/test_projects.py",
    ),
    _plant(
        "snapshot-ahead-is-used",
        "A snapshot that is ahead of its changelog is used.",
        (_SNAPSHOTS, "        if offset > last[tp]:\n", "        if False:\n"),
        tests="hosting/restoring hosting/tasks state/test_snapshots.py simulation/test_projects.py",
        remark="No changelog is shortened or created again.",
    ),
    _plant(
        "range-ends-two-early",
        "A range counts as read at its end minus two.",
        (_RANGES, "                if last >= end - 1:\n", "                if last >= end - 2:\n"),
        tests="hosting/tasks spark test_kafka_reaching.py simulation/test_projects.py",
    ),
    _plant(
        "poll-skips-after-an-error",
        "A poll with an error discards the records that came with it.",
        (_CONSUMER, "                self._read_again(messages)\n                raise\n", "                raise\n"),
        tests="simulation/test_projects.py test_kafka_errors.py hosting/tasks",
    ),
    _plant(
        "missing-offsets-outlive-assignments",
        "An offset that an earlier assignment missed ends a later one.",
        (_CONSUMER, "missed is not None and missed < asked", "False"),
        tests="simulation/test_logs.py",
    ),
    _plant(
        "shortened-logs-are-read",
        "An offset that a shortened log lacked counts as there once the log has grown over it.",
        (
            _CONSUMER,
            "            if not low <= asked",
            "            if low <= asked <= high:\n                return\n            if not low <= asked",
        ),
        tests="simulation/test_logs.py",
        remark="No log is shortened.",
    ),
    _plant(
        "uncommitted-records-are-read",
        "Consumers read records of transactions that were aborted or are open.",
        (
            _CONSUMER,
            "            if not low <= asked",
            "            if low <= asked <= high:\n                return\n            if not low <= asked",
        ),
        tests="simulation/test_projects.py hosting/tasks",
    ),
    _plant(
        "resume-at-the-start",
        "A task fetches from one record after its committed offset.",
        (
            _FETCHING,
            "        self._consumer.assign(active.starts())\n",
            (
                "        starts = active.starts()\n"
                "        later = {tp: at + 1 for tp, at in starts.items() if at}\n"
                "        self._consumer.assign({**starts, **later})\n"
            ),
        ),
        tests="worker/tasks simulation/test_projects.py",
    ),
    # Membership
    _plant(
        "heartbeats-are-late",
        "A member sends a heartbeat once per two sessions.",
        (
            _MEMBER,
            "        return min(self.heartbeat_interval_ms, self.session_timeout_ms / 3) / 1000\n",
            "        return self.session_timeout_ms * 2 / 1000\n",
        ),
        tests="test_membership.py simulation/test_projects.py worker/group",
        remark="It costs rebalances only.",
    ),
    _plant(
        "forgotten-member-keeps-its-id",
        "A member that the group no longer knows joins again with its old id.",
        (
            _MEMBER,
            '            self._member_id = ""\n        if code in _FORGOTTEN',
            "            pass\n        if code in _FORGOTTEN",
        ),
        tests="test_membership.py simulation/test_projects.py worker/group",
        remark="Brokers refuse the id, and the member tries again.",
    ),
    _plant(
        "static-member-leaves",
        "A static member leaves the group when it stops.",
        (
            _MEMBER,
            "        if self._config.group_instance_id is not None or not self._member_id:\n",
            "        if not self._member_id:\n",
        ),
        tests="test_membership.py simulation/test_projects.py worker/group",
        remark="It costs a rebalance only.",
    ),
    _plant(
        "second-rebalance-is-missed",
        "A member that hears of a rebalance does not join again.",
        (_MEMBER, "            self._rejoins.set()\n            return False\n", "            return True\n"),
        tests="test_membership.py simulation/test_projects.py worker/group",
    ),
    # Bounded runs
    _plant(
        "run-repeats-its-work",
        "An attempt of a bounded run does not see that an earlier one has committed its work.",
        (
            _RUN,
            "    if all(starts[tp] >= wanted.end for tp, wanted in work.ranges.items()):\n        return True\n",
            "",
        ),
        tests="spark simulation/test_projects.py",
    ),
    _plant(
        "run-starts-anywhere",
        "A bounded run processes its range although the task is at another offset.",
        (_RUN, "    if elsewhere:\n        tp = elsewhere[0]\n", "    if False:\n        tp = elsewhere[0]\n"),
        tests="spark simulation/test_projects.py",
    ),
    _plant(
        "level-reads-unsettled-ends",
        "A bounded run reads repartition topics up to where committed records ended when it asked.",
        (
            _LEVELS,
            "        ends = self._admin.settled_end_offsets({tp for tps in written.values() for tp in tps})\n        for level",
            "        ends = self._admin.end_offsets({tp for tps in written.values() for tp in tps})\n        for level",
        ),
        tests="spark simulation/test_projects.py",
        remark="The next run processes what is left.",
    ),
    _plant(
        "run-next-to-workers",
        "A bounded run does not wait for the end of workers.",
        ("hosting/alone.py", "        await_no_members(connected)\n        yield", "        yield"),
        tests="hosting/tasks spark simulation/test_projects.py",
        remark="Nothing is wrong: each task has one owner anyway.",
    ),
    _plant(
        "pack-is-counted-from-its-end",
        "A commit within a pack notes one record more than was processed.",
        (
            "runtime/packs.py",
            "        return self._sizes[offset] - waiting\n",
            "        return self._sizes[offset] - waiting + 1\n",
        ),
        tests="runtime simulation/test_projects.py",
    ),
    # Releases
    _plant(
        "cut-after-the-last-fence",
        "The record of a cut is written after the last fence.",
        (
            "releases/switch.py",
            (
                "        cut = self._registry.write(release.to(during, cut=str(summary.range.end), switch=uuid.uuid4().hex))\n"
                "        # Again: an owner that took a task over before the cut was written does not know of it.\n"
                "        fence(old, new)\n"
            ),
            (
                "        fence(old, new)\n"
                "        cut = self._registry.write(release.to(during, cut=str(summary.range.end), switch=uuid.uuid4().hex))\n"
            ),
        ),
        tests="simulation/test_hanging_switches.py releases simulation/test_projects.py",
        remark="A run has to take a task over between the fence and the record, and hang for longer than its session.",
        histories="tests.histories.releases",
    ),
    _plant(
        "check-before-the-differ-fences",
        "A differ checks whether it may publish before its producer has fenced others.",
        (
            "releases/differ.py",
            "            producer.init()\n            check()\n",
            "            check()\n            producer.init()\n",
        ),
        tests="simulation/test_hanging_switches.py releases simulation/test_projects.py",
        remark="Two switches have to meet between the check and the fence.",
        histories="tests.histories.releases",
    ),
    _plant(
        "release-epoch-stays",
        "A switch does not raise the epoch of the release.",
        (
            "releases/switch.py",
            "        changed = replace(release, epoch=release.epoch + 1, pause_ms=pause_ms, corrections_ms=corrections_ms)\n",
            "        changed = replace(release, pause_ms=pause_ms, corrections_ms=corrections_ms)\n",
        ),
        tests="releases simulation/test_projects.py",
        histories="tests.histories.releases",
    ),
    _plant(
        "release-is-written-unchecked",
        "The record of a release is written without a look at what others have written meanwhile.",
        (
            "hosting/control_topic.py",
            "                self._notes.write(release.app, values, lambda: self.require(release))\n                break\n",
            "                self._notes.write(release.app, values, lambda: None)\n                break\n",
        ),
        tests="hosting/control releases hosting/tasks simulation/test_projects.py",
        histories="tests.histories.releases",
    ),
    _plant(
        "outputs-change-within-a-transaction",
        "A task follows a release to other topics before it commits.",
        (
            _ACTIVE,
            "        return self.publication.topics == publication.topics or not self.task.needs_commit\n",
            "        return True\n",
        ),
        tests="hosting/control releases worker/tasks hosting/tasks simulation/test_projects.py",
        histories="tests.histories.releases",
    ),
    # Letters and skips
    _plant(
        "set-aside-leaves-traces",
        "A record that is set aside is not undone, and its letter says that it left no trace.",
        (
            "runtime/failures.py",
            "                self._set_aside(where, response.dead_letter_queue_records, asked, error)\n",
            (
                "                self._send_letters(map(without_trace, response.dead_letter_queue_records))\n"
                "                return type(response).resume()\n"
            ),
        ),
        tests="runtime simulation/test_projects.py",
    ),
    _plant(
        "replay-without-a-note",
        "A replay does not note which letters it has replayed.",
        (
            _LETTERS,
            "                    producer.send(LETTERS_TOPIC, letter.name.encode(), text, note.at_ms, (), 0)\n",
            "",
        ),
        tests="simulation/test_projects.py",
    ),
    _plant(
        "letters-known-before-the-fence",
        "A replay reads what became of letters before it fences another replay.",
        (_LETTERS, "            producer.init()\n", "            known = self._known()\n            producer.init()\n"),
        (_LETTERS, "            known = self._known()\n            left =", "            left ="),
        tests="simulation/test_projects.py",
    ),
    _plant(
        "skip-as-it-was-planned",
        "A skip commits what was planned, without another look once its task has no other owner.",
        (
            "hosting/skipping.py",
            "        found = plan_skip(connected, planned.tp, planned.record.offset, planned.number)\n",
            "        found = planned\n",
        ),
        tests="simulation/test_hanging_switches.py",
        remark="A run has to process the record between the plan and the lock.",
    ),
    # Archives
    _plant(
        "archive-without-the-last-record",
        "An archiver leaves the last record of a range out.",
        (
            "archive/archiving.py",
            "            writer.write(batch)\n",
            "            writer.write(batch[:-1])\n",
        ),
        tests="simulation/test_projects.py archive",
        histories="tests.histories.releases",
    ),
    # Followers
    _plant(
        "follower-skips-a-record",
        "A follower that takes a partition over begins one record after its end.",
        (
            "transfers/sql_sink.py",
            "        return None if found.next_offset is None else int(found.next_offset)\n",
            "        return None if found.next_offset is None else int(found.next_offset) + 1\n",
        ),
        tests="test_followers.py",
        histories="tests.histories.releases",
    ),
)
