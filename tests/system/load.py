"""Records that keep coming, and what an application must make of them: computed in a single pass, to compare with."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riverrun import LONG
from tests.presence import present
from tests.repeating import Repeating

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.brokers import Broker
    from tests.system.groups import Group

KEYS = 17


class Load:
    """Writes numbers under a few keys, in steps."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.written: list[tuple[bytes, int]] = []
        self._broker = broker
        self._topic = topic

    def until_grown(self, group: Group, records: int) -> None:
        """Wait until so many records have been written since."""
        moment = len(self.written) + records
        group.until(lambda: len(self.written) >= moment, "had more to do")

    def write(self) -> None:
        numbers = range(len(self.written), len(self.written) + 200)
        step = [(b"k%d" % (n * n % KEYS), n) for n in numbers]
        self._broker.write(self._topic, [(key, b"%d" % n, n + 1) for key, n in step])
        self.written += step


@contextmanager
def loading(broker: Broker, topic: str) -> Iterator[Load]:
    """Write while the block runs."""
    load = Load(broker, topic)
    with Repeating(load.write, 0.1):
        yield load


def sequentially(written: list[tuple[bytes, int]]) -> tuple[dict[bytes, list[int]], dict[bytes, list[int]]]:
    """Every value of both tables, per key in order, as a single pass over the input computes them."""
    folded: defaultdict[bytes, list[int]] = defaultdict(list)
    counts: defaultdict[bytes, list[int]] = defaultdict(list)
    for key, number in written:
        folded[key].append(((folded[key][-1] if folded[key] else 0) * 31 + number) % 1_000_000_007)
        digit = b"w%d" % (number % 10)
        counts[digit].append(len(counts[digit]) + 1)
    return dict(folded), dict(counts)


def by_key(broker: Broker, topic: str) -> dict[bytes, list[int]]:
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for record in broker.read(topic):
        found[present(record.key)].append(LONG.deserialize(present(record.value)))
    return dict(found)


def check(group: Group, load: Load) -> None:
    """Compare the output of an application of `build_fold`, record by record."""
    folded, counts = sequentially(load.written)
    assert by_key(group.broker, f"{group.name}.folded") == folded
    assert by_key(group.broker, f"{group.name}.out") == counts
