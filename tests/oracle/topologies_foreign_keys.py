"""The twins of `java/Tables.java` with foreign keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun import STRING, Materialized, StreamsBuilder, TableJoined
from tests.oracle.topologies import BY_TEXT, TEXTS, TO_TEXTS, both, first, size

if TYPE_CHECKING:
    from riverrun import KTable
    from tests.oracle.topologies import Say


def tables(builder: StreamsBuilder) -> tuple[KTable[str, str], KTable[str, str]]:
    return builder.table("in", TEXTS), builder.table("other", TEXTS)


def foreign_key(value: str) -> str | None:
    return None if len(value) > 3 else first(value)


def foreign_key_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = tables(builder)
    options: Materialized[str, str] = Materialized(STRING, STRING)
    left.join(right, both, options, foreign_key_extractor=foreign_key).to_stream().to("out", TO_TEXTS)


def foreign_key_left_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = tables(builder)
    options: Materialized[str, str] = Materialized(STRING, STRING)
    left.left_join(right, both, options, foreign_key_extractor=foreign_key).to_stream().to("out", TO_TEXTS)


def foreign_key_join_named(builder: StreamsBuilder, _say: Say) -> None:
    left, right = tables(builder)
    options: Materialized[str, str] = Materialized(STRING, STRING, name="links")
    joined = left.join(right, both, options, foreign_key_extractor=foreign_key, table_joined=TableJoined(name="linked"))
    joined.to_stream().to("out")


def foreign_key_left_join_then_count(builder: StreamsBuilder, _say: Say) -> None:
    left, right = tables(builder)
    options: Materialized[str, str] = Materialized(STRING, STRING, name="links")
    joined = left.left_join(right, both, options, foreign_key_extractor=first)
    joined.group_by(lambda _k, v: (size(v), v), BY_TEXT).count().to_stream().to("out")
