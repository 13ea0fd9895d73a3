"""A topology with user functions of every form, whose fingerprint all versions of Python must agree on; imports little."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.dsl.builder import StreamsBuilder
from riverrun.dsl.options import Consumed, Grouped, Materialized, Produced
from riverrun.processor.api import Processor
from riverrun.serde.serdes import LONG, STRING
from riverrun.windows import TimeWindows

if TYPE_CHECKING:
    from riverrun import ProcessorContext

LIMIT = 3


class Size(Enum):
    SMALL = 1
    LARGE = 2


class Pair(NamedTuple):
    left: str
    right: str


@dataclass(frozen=True)
class Threshold:
    least: int = 2

    def __call__(self, _key: str, value: str) -> bool:
        return len(value) >= self.least


class Numbered(Processor[str, str]):
    """Counts."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.number = context, 0

    def process(self, record: Any) -> None:
        self.number += 1
        if self.number % 2 == 0 and not (record.value is None or record.value == ""):
            self.context.forward(record.with_value(f"{self.number:>4} {record.value!r} {self.number=}"))


def shout(text: str, *, mark: str = "!") -> str:
    """Upper case.

    >>> shout("a")
    'A!'
    """
    return text.upper() + mark


def pieces(text: str) -> list[str]:
    found = [shout(piece) for piece in text.split() if piece not in {"a", "the"}]
    try:
        head, *tail = found
    except ValueError:
        return []
    return [head, *(x for x in tail if Size.LARGE is not None), Pair("l", "r").left]


def cut(most: int) -> Any:
    def first(text: str) -> str:
        return text[:most]

    return first


def topology() -> Any:
    builder = StreamsBuilder()
    lines = builder.stream("lines", Consumed(STRING, STRING))
    lines = lines.filter(lambda _k, v: len(v) > LIMIT).filter_not(lambda _k, v: v[-1] == "?" or v < "b")
    lines = lines.filter(Threshold()).flat_map_values(pieces).map_values(functools.partial(shout, mark="?"))
    lines = lines.map_values(cut(5)).map_values(operator.methodcaller("strip")).process(Numbered)
    counts = (
        lines.group_by(lambda k, v: f"{k}-{v[0]}", Grouped(STRING, STRING))
        .windowed_by(TimeWindows.of(timedelta(minutes=5)))
        .aggregate(lambda: 0, lambda _k, v, a: a + len(v), Materialized(STRING, LONG, name="sizes"))
    )
    counts.to_stream().map(lambda w, n: (w.key, n)).to("out", Produced(STRING, LONG))
    return builder.build()
