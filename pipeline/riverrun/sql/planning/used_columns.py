"""Columns of streams that statements use: others are not read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sqlglot import exp

from riverrun.sql.grammar.statements import CreateSource, InsertInto

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.sql.grammar.statements import Query, Statement


def names_of(query: Query) -> set[str]:
    """Return the names of all columns in a query's expressions, without those that stars stand for."""
    roots = [item.expression for item in query.items]
    roots += [query.where, query.having, *query.partition_by, *query.group_by, *(join.on for join in query.joins)]
    return {column.name for root in roots if root is not None for column in root.find_all(exp.Column)}


def used_columns(statements: Sequence[Statement]) -> Mapping[str, frozenset[str]]:
    """Return the names of the columns that statements use, by source; names of other sources' columns may be among them.

    Sources without an entry are read whole: those of `SELECT *`, and those whose name or topic several statements have, as a
    topic is read once for all.
    """
    used: dict[str, set[str]] = {}
    whole = _shared(statements)
    for statement in statements:
        query = statement.query if isinstance(statement, CreateSource | InsertInto) else None
        if query is None:
            continue
        names, has_star = names_of(query), any(item.expression is None for item in query.items)
        for source in (query.source, *(join.source for join in query.joins)):
            used.setdefault(source.name, set()).update(names)
            if has_star:
                whole.add(source.name)
    return {name: frozenset(names) for name, names in used.items() if name not in whole}


def _shared(statements: Sequence[Statement]) -> set[str]:
    """Return the sources whose name or topic is that of several statements."""
    made = [each for each in statements if isinstance(each, CreateSource)]
    names = Counter(each.name for each in made)
    topics = Counter(each.topic for each in made)
    return {each.name for each in made if names[each.name] > 1 or topics[each.topic] > 1}
