"""One client that asks brokers, used by many threads at a time, as those of a project are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from riverrun.kafka.admin import TopicSpec
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.kafka.admin import Admin
    from tests.brokers import Broker

THREADS, ROUNDS, RECORDS = 8, 10, 20


def test_threads_that_share_a_client_get_their_own_answers(broker: Broker, unique: str) -> None:
    admin: Admin = broker.admin()
    topics = [f"{unique}.{number}" for number in range(THREADS)]
    for number, topic in enumerate(topics):
        broker.create(number + 1, topic)
        broker.write(topic, [(b"k", b"v", at) for at in range(RECORDS + number)], 0)
        admin.alter_offsets(topic, {TopicPartition(topic, 0): number + 1})

    def questions(number: int) -> dict[str, tuple[Callable[[], Any], Any]]:
        topic, tp = topics[number], TopicPartition(topics[number], 0)
        return {
            "partitions": (lambda: admin.partitions([topic]), {topic: number + 1}),
            "beginnings": (lambda: admin.beginning_offsets([tp]), {tp: 0}),
            "ends": (lambda: admin.end_offsets([tp]), {tp: RECORDS + number}),
            "written": (lambda: admin.written_offsets([tp]), {tp: RECORDS + number}),
            "times": (lambda: admin.offsets_for_time([tp], number + 5), {tp: number + 5}),
            "commits": (lambda: admin.committed(topic, [tp])[tp].offset, number + 1),
            "members": (lambda: admin.group(topic).members, ()),
            "settings": (lambda: admin.topic_config(topic)["cleanup.policy"], "delete"),
            "names": (lambda: admin.list_topics(topic), [topic]),
        }

    def ask(number: int) -> list[str]:
        wrong = []
        for round_number in range(ROUNDS):
            made = f"{unique}-made-{number}-{round_number}"
            admin.create_topics([TopicSpec(made, 2)])
            wrong += [name for name, (question, answer) in questions(number).items() if question() != answer]
            admin.delete_topics([made])
        admin.delete_records({TopicPartition(topics[number], 0): 1})
        return wrong

    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(ask, range(THREADS))) == [[]] * THREADS
    firsts = admin.beginning_offsets(TopicPartition(topic, 0) for topic in topics)
    assert set(firsts.values()) == {1}
    assert admin.list_topics(f"{unique}-made") == []
