"""Topics, partitions and times chosen by users' functions, checked before a client or broker receives them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import ProcessingError
from riverrun.records import is_legal_topic
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.partitioning import StreamPartitioner


@dataclass(frozen=True, slots=True)
class ChosenTopic:
    """The topic that a sink's function chooses for a record.

    Args:
        sink: The sink's name.
        choose: The user's function.
        partitions: Returns the number of partitions of a topic, or raises if there is no such topic.
        met: Names that were checked already.
    """

    sink: str
    choose: Callable[[Any, Any, int], Any]
    partitions: Callable[[str], int]
    met: set[str] = field(default_factory=set)

    def __call__(self, key: Any, value: Any, timestamp: int) -> Any:
        """Choose a topic and return its name.

        Raises:
            ProcessingError: If the choice is not a name of a topic.
            TopicError: If there is no such topic.
        """
        name = self.choose(key, value, timestamp)
        if not isinstance(name, str) or name not in self.met:
            if not isinstance(name, str) or not is_legal_topic(name):
                message = f"The function of sink {self.sink} chose the topic {name!r}, which is not a legal topic name"
                raise ProcessingError(message)
            self.partitions(name)
            self.met.add(name)
        return name


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The partitions that a sink's partitioner chooses for a record.

    Args:
        sink: The sink's name.
        choose: The partitioner.
        partitions: Returns the number of partitions of a topic.
    """

    sink: str
    choose: StreamPartitioner
    partitions: Callable[[str], int]

    def __call__(self, topic: str, key: Any, value: Any) -> Collection[int | None]:
        """Choose partitions; a single None leaves the choice to Kafka's default.

        Raises:
            ProcessingError: If one is not a number from 0 on.
        """
        chosen: Any = self.choose(topic, key, value, self.partitions(topic))
        if chosen is None or (isinstance(chosen, int) and chosen >= 0):  # the usual choices
            return (chosen,)
        numbers = chosen if isinstance(chosen, Collection) and not isinstance(chosen, str) else (chosen,)
        for number in numbers:
            if not isinstance(number, int) or number < 0:
                message = f"The partitioner of sink {self.sink} chose {number!r} for {topic}: a partition is a number from 0 on"
                raise ProcessingError(message)
        return numbers


def is_time(chosen: object) -> bool:
    """Return whether something is a time in ms, or a negative number, which stands for no time."""
    return isinstance(chosen, int) and chosen <= MAX_TIME_MS
