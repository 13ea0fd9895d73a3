"""Rules for sources that have a topic or a name in common: shared topics, and CREATE OR REPLACE."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.serde.api import Serde, needs_place, placed
from riverrun.sql.statements import CreateSource, InsertInto, SqlError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from riverrun.serde.api import SerdePlace
    from riverrun.sql.catalog import RecordLayout, Source
    from riverrun.sql.statements import Statement

_HINT = "A file has one statement for each result: edit that, and release the file as a version."


def check_replacement(statement: CreateSource, known: Source | None) -> None:
    """Make sure that a statement can create or replace a source."""
    kind = "table" if statement.is_table else "stream"
    if statement.replaces and (statement.is_read_only or (known is not None and known.is_read_only)):
        message = f"Cannot add {kind} '{statement.name}': CREATE OR REPLACE is not supported on source {kind}s."
        raise SqlError(message, statement.start)
    if known is not None and not statement.replaces:
        raise SqlError(f"Cannot add {kind} '{statement.name}': it already exists.", statement.start)
    if known is not None and statement.query is not None:
        message = f"Cannot replace {kind} '{statement.name}': it is the result of a query."
        raise SqlError(message, statement.start, hint=_HINT)


def check_columns(known: Source, source: Source, start: int) -> None:
    """Make sure that a source only adds columns to the one that it replaces."""
    before, after = known.layout, source.layout
    problem = None
    if known.stored is not None or known.is_table != source.is_table:
        problem = "it is the result of a query" if known.stored is not None else "one is a stream, the other a table"
    elif known.topic != source.topic:
        problem = f"its topic is {known.topic}, not {source.topic}"
    elif after.value[: len(before.value)] != before.value:
        problem = "columns can only be added after the existing ones, not changed"
    elif known.ttl != source.ttl or replace(after, value=before.value) != before:
        problem = "its key, formats and properties must stay the same"
    if problem:
        raise SqlError(f"Cannot replace {source.name}: {problem}", start)


@dataclass(slots=True)
class SharedTopics:
    """The layouts of topics that several sources are declared over, and the sources that have been read.

    `mixed` holds the topics that are read as a table and under another name as well (`mixed_topics`).
    """

    mixed: frozenset[str] = frozenset()
    _layouts: dict[str, list[RecordLayout]] = field(default_factory=dict)
    _read: dict[str, Source] = field(default_factory=dict)

    def add(self, source: Source) -> None:
        layouts = self._layouts.setdefault(source.topic, [])
        if source.layout not in layouts:
            layouts.append(source.layout)

    def layouts_of(self, source: Source) -> Sequence[RecordLayout]:
        """Return the layouts in which the records of a source's topic are read, its own among them."""
        layouts = self._layouts.get(source.topic, [])
        # A topology reads a topic once, with the serdes of its first reader. Layouts share that read if keys and times are
        # alike; a layout that was not noted in advance can only be the one already read.
        first = self._read.setdefault(source.topic, source)
        if first.layout in layouts and source.layout in layouts and all(_alike(each, layouts[0]) for each in layouts):
            return layouts
        if first.layout == source.layout:
            return [source.layout]
        message = f"{first.name} and {source.name} read topic {source.topic} in different ways"
        hint = (
            "Sources over one topic need equal keys, an equal TIMESTAMP, and columns in a CREATE of their own. "
            "Statements with SET cannot share topics."
        )
        raise SqlError(message, hint=hint)


def mixed_topics(statements: Sequence[Statement]) -> frozenset[str]:
    """Return the topics that statements read under several names, of which one is a table's."""
    # The last declaration of a name counts: CREATE OR REPLACE only adds columns. Source tables are always read, because
    # workers keep them for queries.
    made = {each.name: each for each in statements if isinstance(each, CreateSource)}
    names = {name for name, each in made.items() if each.is_table and each.is_read_only}
    for statement in statements:
        query = statement.query if isinstance(statement, CreateSource | InsertInto) else None
        if query is not None:
            names |= {each.name for select in query.selects for each in select.sources}
    sources = [made[name] for name in names if name in made]
    readers = Counter(each.topic for each in sources)
    return frozenset(each.topic for each in sources if each.is_table and readers[each.topic] > 1)


def path_between(flows: Mapping[str, Collection[str]], first: str, last: str) -> tuple[str, ...]:
    """Return a shortest path between topics, both included; empty if there is none.

    >>> path_between({"a": ["b", "c"], "c": ["d"]}, "a", "d")
    ('a', 'c', 'd')
    """
    paths: dict[str, tuple[str, ...]] = {first: (first,)}
    ends = [first]
    for topic in ends:
        if topic == last:
            return paths[topic]
        later = sorted(set(flows.get(topic, ())) - paths.keys())
        paths |= {each: (*paths[topic], each) for each in later}
        ends += later
    return ()


def rows_serde(*serdes: Serde[Any]) -> Serde[tuple[Any, ...]]:
    """Return the serde of a topic's records as a tuple of rows, one of each layout. It only reads."""
    reads = [each.deserialize for each in serdes]

    def read(data: bytes) -> tuple[Any, ...]:
        return tuple(read(data) for read in reads)

    def plain(rows: tuple[Any, ...]) -> dict[str, Any]:
        shown = (each.plain(row) for each, row in zip(serdes, rows, strict=True) if each.plain is not None)
        return {name: value for row in shown if row is not None for name, value in row.items()}

    def place(place: SerdePlace) -> Serde[tuple[Any, ...]]:
        return rows_serde(*(placed(each, place) for each in serdes))

    return Serde(
        f"rows({'; '.join(each.name for each in serdes)})",
        _unwritten,
        read,
        remake=(rows_serde, serdes),
        value_type=Any,
        plain=plain,
        place=place if any(map(needs_place, serdes)) else None,
    )


def row_of(number: int) -> Callable[[Any], Any]:
    """Return the function that takes a layout's row out of a record's rows; None stays None."""
    return lambda rows: None if rows is None else rows[number]


def _unwritten(_rows: Any) -> bytes:
    raise TypeError("Rows of several layouts are only read")


def _alike(one: RecordLayout, other: RecordLayout) -> bool:
    # Serdes hold functions and cannot be compared; their names have formats and columns, and nothing else that keys depend on.
    options = [(each.delimiter, each.nullable, each.schema) for each in (one.key_form, other.key_form)]
    names = (one.serdes()[0].name, other.serdes()[0].name)
    windows = (one.window, one.window_size) == (other.window, other.window_size)
    times = (one.timestamp, one.timestamp_format) == (other.timestamp, other.timestamp_format)
    return names[0] == names[1] and options[0] == options[1] and windows and times
