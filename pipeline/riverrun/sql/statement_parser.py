"""Parses ksqlDB's statements and queries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from riverrun.sql.durations import CALENDAR_UNITS, UNITS, checked_duration, of_calendar
from riverrun.sql.expression_parser import ExpressionParser
from riverrun.sql.statements import (
    RESERVED,
    Column,
    CreateSource,
    CustomType,
    DistinctOn,
    DropSource,
    From,
    InsertInto,
    Item,
    Join,
    Ksql,
    LateInto,
    MatchRecognize,
    PatternPart,
    Query,
    SetProperty,
    SqlError,
    Statement,
    WindowClause,
)
from riverrun.sql.variables import statement_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.sql.durations import WindowSize

_DISTINCT_HINT = "SELECT DISTINCT ON (id) ... FROM payments WITHIN 1 DAY"


class KsqlParser(ExpressionParser):
    """Parses statements in order."""

    def statements(self, text: str, tokens: list[Token]) -> list[Statement]:
        self.begin(text, tokens)
        found = []
        try:
            while self._curr:
                found.append(self.statement())
        except (ParseError, RecursionError) as error:
            raise self.fail(str(error), self._prev) from None
        return found

    def statement(self) -> Statement:
        """Take one statement, including the semicolon at its end."""
        token = self._curr
        if self.word("CREATE"):
            found: Statement = self._create(token)
        elif self.word("INSERT", "INTO"):
            name, start = self.name()
            properties = self._properties()
            if properties:
                raise SqlError("INSERT INTO ... WITH is not supported", start)
            found = InsertInto(name, self.query(), start)
        elif self.word("DROP"):
            found = self._drop()
        elif self.is_next("SET", "UNSET"):
            found = self.property_set()
        else:
            message = f"Statement begins with {token.text!r}, which is not supported"
            raise self.fail(
                message, hint="Statements begin with CREATE, INSERT INTO, DROP, SET, UNSET, DEFINE or UNDEFINE."
            )
        if self.is_next("ORDER", "LIMIT"):
            clause = "ORDER BY" if self.is_next("ORDER") else "LIMIT"
            message = f"{clause} needs rows that end, and those of a statement do not"
            raise self.fail(message, hint="Queries of current rows have it: riverrun sql, and POST /query.")
        if self._curr and not self.word(";"):
            raise self.fail(f"Unexpected {self._curr.text!r}")
        return found

    def property_set(self) -> SetProperty:
        start, is_set = self._curr.start, self.word("SET")
        if not is_set:
            self.expect("UNSET")
        name = self.setting()
        if not is_set:
            return SetProperty(name, None, start)
        self.expect("=")
        return SetProperty(name, self.setting(), start)

    def setting(self) -> str:
        """Take a quoted text."""
        token = self._curr
        if not token or token.token_type != TokenType.STRING:
            raise self.fail("Expected a text in quotes")
        self._advance()
        return str(token.text)

    def _drop(self) -> Statement:
        if self.word("TYPE"):
            exists = self.word("IF", "EXISTS")
            name, start = self.name()
            if self.custom_types.pop(name, None) is None and not exists:
                raise SqlError(f"Type {name} does not exist", start)
            return CustomType(name, None)
        is_table = self.word("TABLE")
        if not is_table:
            self.expect("STREAM")
        exists = self.word("IF", "EXISTS")
        name, start = self.name()
        return DropSource(name, exists, start, is_table, self.word("DELETE", "TOPIC"))

    def _create(self, token: Token) -> Statement:
        replaces = self.word("OR", "REPLACE")
        if self.word("TYPE"):
            exists = self.word("IF", "NOT", "EXISTS")
            name, start = self.name()
            self.expect("AS")
            if name in self.custom_types and not exists:
                raise SqlError(f"Cannot register custom type '{name}' since it is already registered", start)
            self.custom_types[name] = self.sql_type()
            return CustomType(name, self.custom_types[name])
        is_read_only = self.word("SOURCE")
        is_table = self.word("TABLE")
        if not is_table:
            self.expect("STREAM")
        exists = self.word("IF", "NOT", "EXISTS")
        name, start = self.name()
        columns = self.listed(self._column) if self.word("(") else ()
        properties = self._properties()
        query = self.query() if self.word("AS") else None
        if query is not None and columns:
            raise self.fail("CREATE ... AS SELECT takes no columns: they are those of the query", token)
        return CreateSource(
            name=name,
            is_table=is_table,
            start=start,
            columns=columns,
            properties=properties,
            query=query,
            replaces=replaces,
            if_not_exists=exists,
            is_read_only=is_read_only,
        )

    def _column(self) -> Column:
        name, _ = self.name()
        type_ = self.sql_type()
        if self.word("PRIMARY"):
            self.expect("KEY")
            return Column(name, type_, is_key=True, is_primary=True)
        if self.word("KEY"):
            return Column(name, type_, is_key=True)
        if self.word("HEADERS"):
            return Column(name, type_, header="")
        if self.word("HEADER"):
            self.expect("(")
            header = self.setting()
            self.expect(")")
            return Column(name, type_, header=header)
        return Column(name, type_)

    def _properties(self) -> dict[str, Any]:
        return dict(self.listed(self._property)) if self.word("WITH") and self._open() else {}

    def _open(self) -> bool:
        self.expect("(")
        return True

    def _property(self) -> tuple[str, Any]:
        token = self._curr
        name = self.setting().upper() if token and token.token_type == TokenType.STRING else self.name()[0].upper()
        self.expect("=")
        value = self.expression_of()
        if isinstance(value, exp.Boolean):
            return name, bool(value.this)
        if isinstance(value, exp.Literal) and (value.is_string or str(value.this).isdecimal()):
            return name, str(value.this) if value.is_string else int(str(value.this))
        raise self.fail(f"Property {name} takes a text, a whole number, or TRUE or FALSE", token)

    # Queries

    def query(self) -> Query:
        """Take a SELECT, and those that follow it behind UNION ALL."""
        first = self._query()
        others: list[Query] = []
        while self.word("UNION"):
            if not self.word("ALL"):
                message = "UNION takes ALL: it keeps all rows"
                raise self.fail(message, hint="SELECT DISTINCT ON (...) ... WITHIN drops repetitions.")
            others.append(self._query())
        return replace(first, unions=tuple(others))

    def _query(self) -> Query:
        self.expect("SELECT")
        distinct = self._distinct_on() if self.is_next("DISTINCT") else None
        items = [self._item()]
        while self.word(","):
            items.append(self._item())
        self.expect("FROM")
        source = self._from()
        match = self._match_recognize() if self.is_next("MATCH_RECOGNIZE") else None
        if match is not None and (self.word("AS") or (self._curr and self._is_alias())):
            source = replace(source, alias=self.name()[0])
        joins = []
        while (join := self._join_clause()) is not None:
            joins.append(join)
        if match is not None and joins:
            message = "MATCH_RECOGNIZE takes the rows of one source"
            raise SqlError(message, match.start, hint="Join in an earlier statement, or in a later one.")
        # `WITHIN` of DISTINCT ON follows the last source; before `ON` of a join it belongs to that join.
        distinct = distinct and self._within(distinct)
        window = self._window_clause() if self.word("WINDOW") else None
        where = self.expression_of() if self.word("WHERE") else None
        partition_by = self._by("PARTITION") if self.word("PARTITION", "BY") else ()
        group_by = self._by("GROUP") if self.word("GROUP", "BY") else ()
        having = self.expression_of() if self.word("HAVING") else None
        is_final = False
        if self.word("EMIT"):
            is_final = self.word("FINAL")
            if not is_final:
                self.expect("CHANGES")
        return Query(
            items=tuple(items),
            source=source,
            joins=tuple(joins),
            window=window,
            where=where,
            partition_by=partition_by,
            group_by=group_by,
            having=having,
            is_final=is_final,
            distinct=distinct,
            match=match,
        )

    def _distinct_on(self) -> DistinctOn:
        """Take DISTINCT ON and its columns; the times follow the sources."""
        start = self._curr.start
        self.expect("DISTINCT")
        if not self.word("ON"):
            message = "SELECT DISTINCT takes ON and the columns that repetitions have in common"
            raise SqlError(message, start, hint=_DISTINCT_HINT)
        self.expect("(")
        return DistinctOn(tuple(self.listed(self.expression_of)), 0, None, start)

    def _within(self, distinct: DistinctOn) -> DistinctOn:
        if not self.word("WITHIN"):
            message = "SELECT DISTINCT ON takes WITHIN and a time behind FROM: how far apart repetitions are at most"
            raise SqlError(message, distinct.start, hint=_DISTINCT_HINT)
        return replace(distinct, within=self._duration(), grace=self._grace())

    def _by(self, what: str) -> tuple[exp.Expr, ...]:
        if self.is_next("ROLLUP", "CUBE", "GROUPING"):
            raise self.fail(f"{self._curr.text} is not supported")
        found = [self.expression_of()]
        while self.word(","):
            found.append(self.expression_of())
        # GROUP BY (a, b) groups by two columns, not by a tuple.
        if len(found) == 1 and isinstance(found[0], exp.Tuple):
            found = found[0].expressions
        if not found:
            raise self.fail(f"{what} BY requires at least one expression", self._prev)
        return tuple(found)

    def _item(self) -> Item:
        token = self._curr
        if self._match(TokenType.STAR):
            return Item(None, start=token.start)
        if [each.text for each in self._tokens[self._index + 1 : self._index + 3]] == [".", "*"]:
            source, start = self.name()
            self._advance(2)
            return Item(None, source=source, start=start)
        expression = self.expression_of()
        alias = None
        if self.word("AS") or (self._curr and not self.is_next(*RESERVED, ",", ";", ")")):
            alias, _ = self.name()
        return Item(expression, alias, start=token.start)

    def _from(self) -> From:
        if self.is_next("("):
            message = "A query within FROM is not supported"
            raise self.fail(message, hint="Give it a name in an earlier statement: CREATE STREAM ... AS SELECT ...")
        name, start = self.name()
        alias = name
        if self.word("AS") or (self._curr and self._is_alias()):
            alias, _ = self.name()
        return From(name, alias, start)

    def _is_alias(self) -> bool:
        is_name = self._curr.token_type in {TokenType.VAR, TokenType.IDENTIFIER}
        return is_name and not self.is_next(*RESERVED) and not self._is_clause()

    def _is_clause(self) -> bool:
        # These words are not reserved: a source may have them as its alias.
        following = self._next.text.upper() if self._next else ""
        is_union = self.is_next("UNION") and following in {"ALL", "DISTINCT", "SELECT"}
        is_match = self.is_next("MATCH_RECOGNIZE") and following == "("
        return is_union or is_match or (self.is_next("ORDER") and following == "BY")

    def _match_recognize(self) -> MatchRecognize:
        start = self._curr.start
        self.expect("MATCH_RECOGNIZE", "(", "PARTITION", "BY")
        groups = self._by("PARTITION")
        self.expect_time_order("MATCH_RECOGNIZE")
        self.expect("MEASURES")
        measures = [self._measure()]
        while self.word(","):
            measures.append(self._measure())
        if self.word("ONE"):
            self.expect("ROW", "PER", "MATCH")
        if self.word("AFTER"):
            self.expect("MATCH", "SKIP", "PAST", "LAST", "ROW")
        self.expect("PATTERN", "(")
        parts = [self._part()]
        while not self.word(")"):
            parts.append(self._part())
        times = []
        for word, take in (("WITHIN", self._duration), ("GRACE", self._grace)):
            if word == "WITHIN":
                self.expect(word)
            elif not self.is_next(word):
                message = "PATTERN takes GRACE PERIOD behind WITHIN: how late a row may be, for which all matches wait"
                raise self.fail(message, hint="GRACE PERIOD 0 SECONDS waits for none.")
            times.append(take() or 0)
        definitions = dict(self._definitions()) if self.word("DEFINE") else {}
        self.expect(")")
        within, grace = times
        return MatchRecognize(
            groups, tuple(measures), tuple(parts), definitions, within=within, grace=grace, start=start
        )

    def _measure(self) -> tuple[str, exp.Expr]:
        node = self.expression_of()
        self.expect("AS")
        return self.name()[0], node

    def _part(self) -> PatternPart:
        """Take a variable of a pattern, and how often it is repeated."""
        if self._curr and self._curr.text in {"(", "|", "^", "$", "{"}:
            message = f"Patterns are variables one after the other, without {self._curr.text!r}"
            raise self.fail(message, hint="A variable may have one of + * ? {2} {2,} {2,3} behind it.")
        name, start = self.name()
        least, most, is_optional = self._repetitions()
        if self._curr and self._curr.text == "?":
            raise self.fail("Repetitions are as long as possible, and not reluctant (`?`)")
        return PatternPart(name, least, most, is_optional, start)

    def _repetitions(self) -> tuple[int, int | None, bool]:
        """Take how often a variable is repeated: at least and at most, and whether it may be missing."""
        if self.word("+"):
            return 1, None, False
        if self.word("*"):
            return 1, None, True
        if self.word("?"):
            return 1, 1, True
        if not self.word("{"):
            return 1, 1, False
        least = 0 if self.is_next(",") else self.number()
        most: int | None = least
        if self.word(","):
            most = None if self.is_next("}") else self.number()
        self.expect("}")
        if most is not None and (most < least or most == 0):
            raise self.fail(f"A variable cannot be repeated {least} to {most} times", self._prev)
        return max(least, 1), most, least == 0

    def _definitions(self) -> Iterator[tuple[str, exp.Expr]]:
        while True:
            name, _ = self.name()
            self.expect("AS")
            yield name, self.expression_of()
            if not self.word(","):
                return

    def _join_clause(self) -> Join | None:
        kind = self._join_kind()
        if kind is None:
            return None
        source = self._from()
        before = after = grace = None
        late: tuple[LateInto, ...] = ()
        if self.word("WITHIN"):
            if self.word("("):
                before = self._duration()
                self.expect(",")
                after = self._duration()
                self.expect(")")
            else:
                before = after = self._duration()
            grace = self._grace()
            late = self._late_of_join()
        self.expect("ON")
        return Join(kind, source, self.expression_of(), before, after, grace, late=late)

    def _late_of_join(self) -> tuple[LateInto, ...]:
        """Take LATE with an alias and a stream for one side, or for both."""
        if not self.word("LATE"):
            return ()
        found = [self._late_of_side()]
        while self.word(","):
            found.append(self._late_of_side())
        return tuple(found)

    def _late_of_side(self) -> LateInto:
        if self.is_next("INTO"):
            message = "LATE names a source of the join before INTO"
            raise self.fail(message, hint="LATE orders INTO late_orders, payments INTO late_payments")
        source, _ = self.name()
        return self._late_into(source)

    def _late_into(self, source: str | None = None) -> LateInto:
        self.expect("INTO")
        name, start = self.name()
        return LateInto(name, start, self._properties(), source)

    def _join_kind(self) -> str | None:
        for kind in ("INNER", "LEFT", "RIGHT", "FULL"):
            if self.word(kind):
                self.word("OUTER")
                self.expect("JOIN")
                return kind
        return "INNER" if self.word("JOIN") else None

    def _window_clause(self) -> WindowClause:
        if self.is_next("TUMBLING", "HOPPING", "SESSION"):
            kind, place = self.name()
        else:
            # A window may have a name, which nothing refers to.
            self.name()
            return self._window_clause()
        self.expect("(")
        if kind != "SESSION":
            self.expect("SIZE")
        number, unit, start = self._amount((*UNITS, *CALENDAR_UNITS) if kind == "TUMBLING" else UNITS)
        given: dict[str, Any] = {}
        while self.word(","):
            self._window_part(kind, given)
        self.expect(")")
        zone, offset = given.pop("TIMEZONE", None), given.pop("OFFSET", ())
        if unit in CALENDAR_UNITS or zone is not None or offset:
            size: WindowSize = of_calendar(number, unit, zone, offset, start)
        else:
            size = checked_duration(number * UNITS[unit], start)
        if kind == "SESSION" and size == 0:
            raise SqlError("The gap of SESSION windows must be more than 0", place)
        if kind == "HOPPING" and "ADVANCE" not in given:
            message = "HOPPING windows take ADVANCE BY and a time: how far apart they begin"
            raise SqlError(message, place, hint="TUMBLING windows begin where the one before ends.")
        return WindowClause(kind, size, **{word.lower(): value for word, value in given.items()})

    def _window_part(self, kind: str, given: dict[str, Any]) -> None:
        """Take one more part of a window, and add it to those that are given."""
        token = self._curr
        word = token.text.upper() if token else ""
        if word in given:
            raise self.fail(f"Windows have no second {word}")
        if self.word("RETENTION"):
            given[word] = self._duration()
        elif self.is_next("GRACE"):
            given[word] = self._grace()
        elif self.word("LATE"):
            given[word] = self._late_into()
        elif kind == "TUMBLING" and self.word("TIMEZONE"):
            given[word] = self._zone()
        elif kind == "TUMBLING" and self.word("OFFSET"):
            given[word] = self._offset()
        elif kind == "HOPPING" and self.word("ADVANCE"):
            self.expect("BY")
            given[word] = self._duration()
        else:
            message = f"Windows have no {word}" if token else "Expected a part of the window, found the end"
            raise self.fail(message)

    def _zone(self) -> str:
        token, zone = self._curr, self.setting()
        # It has its place here. Sizes are checked when the offset is known.
        of_calendar(1, "DAY", zone, (), token.start)
        return zone

    def _offset(self) -> list[tuple[int, str]]:
        found = [self._amount((*UNITS, *CALENDAR_UNITS))[:2]]
        while self._curr and self._curr.token_type == TokenType.NUMBER:
            found.append(self._amount((*UNITS, *CALENDAR_UNITS))[:2])
        return found


def parse(text: str) -> list[Statement]:
    return KsqlParser(dialect=Ksql()).statements(text, statement_words(text))
