"""Rows written by hand: confluent-kafka, msgspec, rocksdict, one loop. What Riverrun adds, it adds to this.

Nothing is restored after a crash, and no partition may be lost to another process: this is the floor of what Python can do.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from formats import View
from rocksdict import Options, Rdict, WriteBatch
from topologies import Slow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BATCH = 10_000
SECONDS = 30.0
MINUTE_MS = 60_000
PARTITIONS = 4
_NUMBER = struct.Struct(">q")


class Work(Protocol):
    """The work for each record, and the rest for the end of each commit interval."""

    def process(self, messages: Sequence[Message]) -> None: ...

    def flush(self) -> None:
        """Produce what was held back."""
        ...

    def committed(self) -> None:
        """All produced records are committed."""
        ...


class Sending:
    """`Producer.produce` that waits when its queue is full."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __call__(self, topic: str, value: bytes, key: bytes, timestamp: int, partition: int = -1) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=timestamp)
                break
            except BufferError:
                self._producer.poll(0.1)


class Stateless:
    """The stateless row."""

    def __init__(self, send: Sending, target: str) -> None:
        self._send, self._target = send, target

    def process(self, messages: Sequence[Message]) -> None:
        decode, encode = msgspec.json.Decoder(View).decode, msgspec.json.Encoder().encode
        send, target = self._send, self._target
        for message in messages:
            view = decode(message.value())
            if view.ok:
                value = encode(Slow(view.page, view.millis // 1000, view.user))
                send(target, value, message.key(), message.timestamp()[1])

    def flush(self) -> None:
        """Do nothing: no record is held back."""

    def committed(self) -> None:
        """Do nothing: no record is kept."""


class WindowedCount:
    """The windowed-count row: counts since the last commit in a dict, then changelog and output, then RocksDB."""

    def __init__(self, send: Sending, target: str, changelog: str, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._send, self._target, self._changelog = send, target, changelog
        self._db = Rdict(str(directory / "counts"), Options(raw_mode=True))
        self._changed: dict[bytes, tuple[int, int, int]] = {}

    def process(self, messages: Sequence[Message]) -> None:
        decode, pack, unpack, changed = msgspec.json.Decoder(View).decode, _NUMBER.pack, _NUMBER.unpack, self._changed
        find: Callable[[bytes], Any] = self._db.get
        for message in messages:
            decode(message.value())
            timestamp = message.timestamp()[1]
            key = message.key() + pack(timestamp // MINUTE_MS * MINUTE_MS)
            known = changed.get(key)
            if known is None:
                stored = find(key)
                changed[key] = (unpack(stored)[0] + 1 if stored else 1, timestamp, message.partition())
            else:
                changed[key] = (known[0] + 1, timestamp, message.partition())

    def flush(self) -> None:
        send, target, changelog, pack = self._send, self._target, self._changelog, _NUMBER.pack
        for key, (count, timestamp, partition) in self._changed.items():
            value = pack(count)
            send(changelog, value, key, timestamp, partition)
            send(target, value, key, timestamp)

    def committed(self) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, (count, _, _) in self._changed.items():
            batch.put(key, _NUMBER.pack(count))
        self._db.write(batch)
        self._changed.clear()


def run(consumer: Consumer, producer: Producer, work: Work, *, is_exactly_once: bool, interval_s: float) -> None:
    """Until SIGTERM."""
    if is_exactly_once:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    last_commit, has_progress = time.monotonic(), False
    while not stopping:
        messages = consumer.consume(1, 0.1)
        messages += consumer.consume(BATCH, 0)
        for message in messages:
            if message.error():
                raise RuntimeError(message.error())
        work.process(messages)
        producer.poll(0)
        has_progress |= bool(messages)
        if has_progress and time.monotonic() - last_commit >= interval_s:
            work.flush()
            if is_exactly_once:
                positions = [tp for tp in consumer.position(consumer.assignment()) if tp.offset >= 0]
                producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
                producer.commit_transaction(SECONDS)
                producer.begin_transaction()
            else:
                producer.flush()
                consumer.commit(asynchronous=False)
            work.committed()
            last_commit, has_progress = time.monotonic(), False
    consumer.close()


def main(topology: str, servers: str, group: str, guarantee: str, interval_ms: str, state: str) -> None:
    is_exactly_once, kafka = guarantee == "exactly_once_v2", {"bootstrap.servers": servers}
    consumer = Consumer(
        {
            **kafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,  # else it waits for a second whenever it has read far ahead
        }
    )
    settings = {**kafka, "partitioner": "murmur2_random", "compression.type": "lz4", "linger.ms": 20}
    settings |= {"enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings, **({"transactional.id": group} if is_exactly_once else {})})
    consumer.subscribe([os.environ["BENCH_INPUT"]])
    send, target = Sending(producer), os.environ["BENCH_OUTPUT"]
    work: Work = Stateless(send, target)
    if topology == "windowed-count":
        changelog = f"{group}-counts-changelog"
        admin = AdminClient(kafka)  # whoever drops it drops the request
        admin.create_topics([NewTopic(changelog, PARTITIONS, 1)])[changelog].result()
        work = WindowedCount(send, target, changelog, Path(state))
    run(consumer, producer, work, is_exactly_once=is_exactly_once, interval_s=int(interval_ms) / 1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
