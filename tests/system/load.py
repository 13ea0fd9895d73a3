"""Records that keep coming, and what an application must make of them: computed in a single pass, to compare with."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pipeline import LONG

if TYPE_CHECKING:
    from typing import Self

    from tests.system.groups import Group

KEYS = 17


class Load:
    """Writes numbers under a few keys, in steps, until it is told to end."""

    def __init__(self, broker: Any, topic: str) -> None:
        self.written: list[tuple[bytes, int]] = []
        self._broker = broker
        self._topic = topic
        self._ends = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        assert self._failure is None, self._failure

    def until_grown(self, group: Group, records: int) -> None:
        """Wait until so many records have been written since."""
        moment = len(self.written) + records
        group.until(lambda: len(self.written) >= moment, "had more to do")

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - told to the test
            self._failure = error

    def _write(self) -> None:
        while not self._ends.wait(0.1):
            numbers = range(len(self.written), len(self.written) + 200)
            step = [(b"k%d" % (n * n % KEYS), n) for n in numbers]
            self._broker.write(self._topic, [(key, b"%d" % n, n + 1) for key, n in step])
            self.written += step


def sequentially(written: list[tuple[bytes, int]]) -> tuple[dict[bytes, list[int]], dict[bytes, list[int]]]:
    """Every value of both tables, per key in order, as a single pass over the input gives them."""
    folded: defaultdict[bytes, list[int]] = defaultdict(list)
    counts: defaultdict[bytes, list[int]] = defaultdict(list)
    for key, number in written:
        folded[key].append(((folded[key][-1] if folded[key] else 0) * 31 + number) % 1_000_000_007)
        digit = b"w%d" % (number % 10)
        counts[digit].append(len(counts[digit]) + 1)
    return dict(folded), dict(counts)


def by_key(broker: Any, topic: str) -> dict[bytes, list[int]]:
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for record in broker.read(topic):
        found[record.key].append(LONG.deserialize(record.value))
    return dict(found)


def check(group: Group, load: Load) -> None:
    """What an application of `build_fold` has written is that, record by record."""
    folded, counts = sequentially(load.written)
    assert by_key(group.broker, f"{group.name}.folded") == folded
    assert by_key(group.broker, f"{group.name}.out") == counts
