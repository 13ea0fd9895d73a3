"""Takes the records of a task through its operators, one by one or in loops, from one input or several."""

from __future__ import annotations

import sys
from traceback import walk_tb
from typing import TYPE_CHECKING, NoReturn

from riverrun.errors import USER_ERRORS
from riverrun.records import RAW_TIMESTAMP
from riverrun.runtime.node_frames import causes, fail_at
from riverrun.runtime.record_frames import held_back
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.records import TopicPartition
    from riverrun.runtime.context import TaskContext
    from riverrun.runtime.inputs import Loop, PartitionGroup, RecordQueue
    from riverrun.runtime.layout import TaskSpec
    from riverrun.runtime.record_frames import HeldBack


class Processing:
    """Takes a task's records through its operators, lowest event time first. Failures name the record that they concern."""

    def __init__(
        self,
        spec: TaskSpec,
        context: TaskContext,
        queues: PartitionGroup,
        *,
        node_of: Callable[[object], str],
        is_committed: Callable[[TopicPartition, int], bool],
    ) -> None:
        self._spec = spec
        self._context = context
        self._queues = queues
        self._node_of = node_of
        self._is_committed = is_committed
        # Hosts that align tasks lower it: records of later event times wait, with all after them in their input.
        self.latest_ms = MAX_TIME_MS

    def is_ready(self) -> bool:
        """Return whether the next record may be chosen now."""
        return self._queues.is_ready(self._spec.max_task_idle_ms, self._context.clock.now_ms)

    def process(self, limit: int) -> int:
        """Process up to `limit` records that may be chosen now; return their number."""
        only = self._queues.only()
        if only is None:
            return self._process_chosen(limit)
        return self._process_run(only, limit) if self.latest_ms == MAX_TIME_MS else self._process_early(only, limit)

    def process_all(self) -> int:
        """Process all records that were added or can be fetched; return their number."""
        only = self._queues.only()
        if only is not None:
            return self._process_run(only, sys.maxsize)
        return sum(self._process_run(queue, sys.maxsize, last_time) for queue, last_time in self._queues.in_order())

    def take(self, queue: RecordQueue) -> None:
        """Process the next record of an input that has one."""
        self._process_records(queue, 1)

    def _process_chosen(self, limit: int) -> int:
        done = 0
        may_choose = self.is_ready()
        while may_choose and done < limit:
            found = self._queues.next_queue(self.latest_ms)
            if found is None:
                break
            queue, last_time = found
            done += self._process_run(queue, limit - done, last_time)
            # Only this input can have run empty: the others are asked again only then.
            may_choose = queue.head() is not None or self.is_ready()
        return done

    def _process_early(self, queue: RecordQueue, limit: int) -> int:
        done = 0
        while done < limit and (head := queue.head()) is not None and head[RAW_TIMESTAMP] <= self.latest_ms:
            done += self._process_run(queue, limit - done, self.latest_ms)
        return done

    def _process_run(self, queue: RecordQueue, limit: int, last_time: int | None = None) -> int:
        """Process up to `limit` records of one input, none later than `last_time`; None if no other input has records."""
        # An extractor finds a time only after the loop has taken the record, so the loop could not stop in time.
        if queue.loop is None or (last_time is not None and queue.extractor is not None):
            return self._process_records(queue, limit if last_time is None else min(limit, 1))
        # The loop takes records that are still to be decoded; a decoded head comes before these.
        done = self._process_records(queue, 1) if queue.has_head and limit else 0
        until = MAX_TIME_MS if last_time is None else last_time
        # Again and again, as the loop counts no records that cannot be decoded, and further batches may be fetched.
        while done < limit and queue.has_waiting() and queue.waiting[0][RAW_TIMESTAMP] <= until:
            done += self._process_loop(queue, queue.loop, limit - done, until)
        return done

    def _process_loop(self, queue: RecordQueue, loop: Loop, limit: int, until: int) -> int:
        try:
            return loop(queue, limit, until)
        except USER_ERRORS as error:
            # The loop has moved `next_offset` past the record that failed.
            self.fail_at(error, queue.tp, queue.next_offset - 1)

    def _process_records(self, queue: RecordQueue, limit: int) -> int:
        # Attributes that do not change are looked up once: this loop runs for every record.
        context, punctuations = self._context, self._context.stream_punctuations
        pop, enter, (topic, partition) = queue.pop, queue.enter, queue.tp
        for done in range(limit):
            record = pop()
            if record is None:
                return done
            key, value, timestamp, offset, headers = record
            context.topic, context.partition, context.offset = topic, partition, offset
            context.timestamp, context.headers = timestamp, headers
            if timestamp > context.stream_time:
                context.stream_time = timestamp
            elif timestamp < context.stream_time:
                context.came_late((context.stream_time - timestamp,))
            try:
                enter(key, value, timestamp, headers)
                if context.stream_time >= punctuations.next_due_ms:
                    punctuations.fire(context.stream_time)
            except USER_ERRORS as error:
                self.fail_at(error, queue.tp, offset)
        return limit

    def fail_at(self, error: BaseException, tp: TopicPartition | None = None, offset: int = -1) -> NoReturn:
        """Raise a failure with the record that it concerns: one that was held back, or the last one taken, which is given."""
        # The innermost error first: a handler's guard may be around what holds the record back.
        passed = (reversed([*walk_tb(each.__traceback__)]) for each in causes(error)[::-1])
        held = held_back(frame for frames in passed for frame, _line in frames)
        if held is not None and held.place is not None:
            tp, offset = held.place
        place: dict[str, str | int] = {"task": str(self._spec.id)}
        if tp is not None:
            place |= {"topic": tp.topic, "partition": tp.partition, "offset": offset}
        instead = "" if held is None or tp is None else self._instead_of_skipping(held, tp, offset)
        fail_at(error, place, node_of=self._node_of, lines=self._spec.sub_topology.lines, instead=instead)

    def _instead_of_skipping(self, held: HeldBack, tp: TopicPartition, offset: int) -> str:
        key = f" (key {held.key_text})" if held.keys else ""
        if held.place is None:
            return f"Time has brought this out{key}, and would do so without this record: skipping it does not help."
        if self._is_committed(tp, offset):
            return f"This record has waited since before the last commit{key}: it cannot be skipped any more."
        return ""
