"""The stateless row written by hand: confluent-kafka, msgspec, one loop. What Millrace adds, it adds to this."""

from __future__ import annotations

import signal
import sys
import time

import msgspec
from confluent_kafka import Consumer, Producer
from topologies import Slow, View

BATCH = 10_000
SECONDS = 30.0


def main(servers: str, group: str, source: str, target: str, guarantee: str, commit_interval_ms: int) -> None:
    is_exactly_once = guarantee == "exactly_once"
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,  # else it waits for a second whenever it has read far ahead
        }
    )
    settings = {
        "bootstrap.servers": servers,
        "partitioner": "murmur2_random",
        "compression.type": "lz4",
        "linger.ms": 20,
    }
    settings |= {"enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings, **({"transactional.id": group} if is_exactly_once else {})})
    consumer.subscribe([source])
    if is_exactly_once:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    last_commit, has_progress = time.monotonic(), False
    while not stopping:
        messages = consumer.consume(1, 0.1)
        messages += consumer.consume(BATCH, 0)
        process(messages, producer, target)
        has_progress |= bool(messages)
        if has_progress and time.monotonic() - last_commit >= commit_interval_ms / 1000:
            if is_exactly_once:
                positions = [tp for tp in consumer.position(consumer.assignment()) if tp.offset >= 0]
                producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
                producer.commit_transaction(SECONDS)
                producer.begin_transaction()
            else:
                producer.flush()
                consumer.commit(asynchronous=False)
            last_commit, has_progress = time.monotonic(), False
    consumer.close()


def process(messages: list, producer: Producer, target: str) -> None:  # type: ignore[type-arg]
    decode, encode = msgspec.json.Decoder(View).decode, msgspec.json.Encoder().encode
    produce = producer.produce
    for message in messages:
        if message.error():
            raise RuntimeError(message.error())
        view = decode(message.value())
        if view.ok:
            value = encode(Slow(view.page, view.millis // 1000, view.user))
            while True:
                try:
                    produce(target, value, message.key(), timestamp=message.timestamp()[1])
                    break
                except BufferError:
                    producer.poll(0.1)
    producer.poll(0)


if __name__ == "__main__":
    main(*sys.argv[1:6], commit_interval_ms=int(sys.argv[6]))
