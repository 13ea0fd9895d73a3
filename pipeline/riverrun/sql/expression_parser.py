"""Parses ksqlDB's names, types and expressions; operators and their precedence are sqlglot's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlglot import exp
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token, TokenType

from riverrun.sql.durations import CALENDAR_UNITS, UNITS, checked_duration
from riverrun.sql.statements import RESERVED, OverFrame, SqlError, nearest
from riverrun.sql.types import MOST_DIGITS, Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_TYPES = {
    **{each.value: each for each in Primitive},
    "INT": Primitive.INTEGER,
    "VARCHAR": Primitive.STRING,
}
_MOST_NUMBER = (1 << 63) - 1
_BY_COUNT_HINT = "Windows by count are Python's: windowed_by(CountWindows.of(n))."
_CALENDAR_HINT = "Only sizes and offsets of TUMBLING windows have units of the calendar."
_ORDER_HINT = (
    "TIMESTAMP in WITH names the column that is a source's ROWTIME. "
    "For ranks, TOPK and BOTTOMK list the first values of a group; SELECT DISTINCT ON ... WITHIN drops repeated rows."
)
_OVER_HINT = (
    "SUM(amount) OVER (PARTITION BY account ORDER BY ROWTIME RANGE BETWEEN 10 MINUTES PRECEDING AND CURRENT ROW)"
)
# The compiler calls itself for each operator: Python's stack must not be the limit.
_MOST_HEIGHT = 200
CHAINS = (exp.And, exp.Or)
"""Operators that stand between any number of operands."""
_UNIT_NAMES = {"MILLISECONDS", "SECONDS", "MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS", "YEARS"}
_WITH_UNITS = {f"{of}{way}" for of in ("DATE", "TIME", "TIMESTAMP") for way in ("ADD", "SUB")}


def _unit(argument: exp.Expr) -> exp.Expr:
    # DATEADD(DAYS, ...) takes a bare word, which would otherwise be a column.
    if not isinstance(argument, exp.Column) or f"{argument.name.removesuffix('S')}S" not in _UNIT_NAMES:
        return argument
    made = exp.Literal.string(argument.name)
    made.meta.update(argument.meta)
    return made


def _check_height(expression: exp.Expr, token: Token) -> None:
    # Level by level, as a function that called itself would fail for the very expressions that are refused here. A chain
    # of AND or OR is one level, because the compiler writes it in a loop.
    level, height = [expression], 0
    while level:
        parts: list[exp.Expr] = []
        for node in level:
            chain = [node]
            for each in chain:
                for part in each.iter_expressions():
                    (chain if isinstance(each, CHAINS) and type(part) is type(each) else parts).append(part)
        level, height = parts, height + 1
        if height > _MOST_HEIGHT:
            message = f"An expression has at most {_MOST_HEIGHT} operators one after the other"
            raise SqlError(message, token.start, hint="Compute a part of it in an earlier statement.")


class ExpressionParser(Parser):
    """Parses ksqlDB's operands and types; operators and their precedence are sqlglot's."""

    # Only these: sqlglot knows more operators of this rank, such as ILIKE and GLOB, and ksqlDB does not.
    RANGE_PARSERS: ClassVar = {
        key: Parser.RANGE_PARSERS[key] for key in (TokenType.BETWEEN, TokenType.IN, TokenType.IS, TokenType.LIKE)
    }
    custom_types: dict[str, SqlType]
    is_within: bool
    """True if the parser is within an expression: the height is checked once, for the outermost one."""

    def begin(self, text: str, tokens: list[Token]) -> None:
        self.reset()
        self.sql, self._tokens, self._tokens_size = text, tokens, len(tokens)
        self._advance(0)
        self.custom_types = {}
        self.is_within = False

    # Tokens

    def fail(self, message: str, token: Token | None = None, hint: str | None = None) -> SqlError:
        """Return the error of a place, by default that of the next token."""
        at = token or self._curr
        return SqlError(message, at.start if at else len(self.sql), hint=hint)

    def raise_error(self, message: str, token: Token | None = None) -> None:
        """Raise a mistake that sqlglot itself finds."""
        # sqlglot's SENTINEL stands for the end of the text, and has no offset in it.
        raise self.fail(message, token if token is not None and token.text != "SENTINEL" else None)

    def word(self, *words: str) -> bool:
        """Take these words if they come next, in this order, and return whether they did."""
        return bool(self._match_text_seq(*words))

    def expect(self, *words: str) -> None:
        """Take required words or signs."""
        for word in words:
            if not self.word(word):
                found = repr(self._curr.text) if self._curr else "the end"
                raise self.fail(f"Expected {word}, found {found}")

    def is_next(self, *words: str) -> bool:
        token = self._curr
        return bool(token) and token.token_type != TokenType.IDENTIFIER and token.text.upper() in words

    def name(self) -> tuple[str, int]:
        """Take a name, unchanged in backquotes and otherwise in upper case; return it with its offset."""
        token = self._curr
        if not token:
            raise self.fail("Expected a name, found the end")
        if token.token_type == TokenType.IDENTIFIER:
            self._advance()
            return token.text, token.start
        if token.token_type == TokenType.NUMBER and self._is_joined_to_next(token):
            self._advance(2)
            return f"{token.text}{self._prev.text}".upper(), token.start
        upper = token.text.upper()
        if not (token.text[:1].isalpha() or token.text[:1] == "_") or token.token_type == TokenType.STRING:
            raise self.fail(f"Expected a name, found {token.text!r}")
        if upper in RESERVED:
            message = f"{token.text!r} is a reserved word"
            raise self.fail(message, hint=f"To use it as a name, put it in backquotes: `{token.text}`")
        self._advance()
        return upper, token.start

    def _is_joined_to_next(self, token: Token) -> bool:
        # sqlglot splits a name that begins with digits, such as `1R`, into a number and a word.
        return bool(self._next) and self._next.token_type == TokenType.VAR and self._next.start == token.end + 1

    def listed(self, parse: Callable[[], Any], end: str = ")") -> tuple[Any, ...]:
        """Take items between commas, up to and including a closing sign."""
        if self.word(end):
            return ()
        found = [parse()]
        while self.word(","):
            found.append(parse())
        self.expect(end)
        return tuple(found)

    # Types

    def sql_type(self) -> SqlType:
        token = self._curr
        name, start = self.name()
        if name == "ARRAY":
            self.expect("<")
            item = self.sql_type()
            self._close_angle()
            return Array(item)
        if name == "MAP":
            self.expect("<")
            key = self.sql_type()
            self.expect(",")
            value = self.sql_type()
            self._close_angle()
            return Map(key, value)
        if name == "STRUCT":
            return self._struct_type()
        if name in {"DECIMAL", "DEC", "NUMERIC"}:
            return self._decimal_type()
        if name in self.custom_types:
            return self.custom_types[name]
        if name not in _TYPES:
            message = f"Cannot resolve unknown type: {token.text}"
            raise SqlError(message, start, hint=nearest(name, [*_TYPES, "DECIMAL", "ARRAY", "MAP", "STRUCT"]))
        # A length is allowed, and has no effect.
        if name == "VARCHAR" and self.word("("):
            self.number()
            self.expect(")")
        return _TYPES[name]

    def _struct_type(self) -> SqlType:
        self.expect("<")
        fields = []
        while not self.is_next(">"):
            name, _ = self.name()
            fields.append((name, self.sql_type()))
            if not self.word(","):
                break
        self._close_angle()
        return Struct(tuple(fields))

    def _decimal_type(self) -> SqlType:
        self.expect("(")
        digits = self.listed(self.number)
        if not 1 <= len(digits) <= 2:  # noqa: PLR2004 - precision and scale
            raise self.fail(f"DECIMAL takes a precision and a scale, not {len(digits)} numbers", self._prev)
        precision, scale = (*digits, 0)[:2]
        if not 1 <= precision <= MOST_DIGITS or scale > precision:
            message = f"DECIMAL({precision}, {scale}) is impossible: precision is 1 to 64, and scale at most as much"
            raise self.fail(message, self._prev)
        return Decimal(precision, scale)

    def _close_angle(self) -> None:
        self.expect(">")

    def number(self) -> int:
        token = self._curr
        if not token or token.token_type != TokenType.NUMBER or not token.text.isdecimal():
            raise self.fail("Expected a whole number")
        self._advance()
        found = int(token.text)
        if found > _MOST_NUMBER:
            raise SqlError(f"Number {token.text} is too large", token.start)
        return found

    # Expressions

    def expression_of(self) -> exp.Expr:
        token, is_whole, self.is_within = self._curr, not self.is_within, True
        found = self._lambda() or self._parse_disjunction()
        if found is None:
            message = f"Expected an expression, found {token.text!r}" if token else "Expected an expression"
            raise self.fail(message)
        found.meta.setdefault("start", token.start)
        if is_whole:
            self.is_within = False
            _check_height(found, token)
        return found

    def _lambda(self) -> exp.Expr | None:
        # Only the arrow shows that it is a lambda, so the words before it may have to be read again.
        index = self._index
        names = self._lambda_names()
        if names is None or not self._match(TokenType.FARROW):
            self._retreat(index)
            return None
        return exp.Lambda(this=self.expression_of(), expressions=[exp.Identifier(this=name) for name in names])

    def _lambda_names(self) -> list[str] | None:
        if not self.word("("):
            return [self.name()[0]] if self._next and self._next.token_type == TokenType.FARROW else None
        names = []
        while self._curr and self._curr.token_type in {TokenType.VAR, TokenType.IDENTIFIER}:
            names.append(self.name()[0])
            if not self.word(","):
                break
        return names if self.word(")") else None

    def _parse_type(self, parse_interval: bool = True, fallback_to_identifier: bool = False) -> exp.Expr | None:  # noqa: ARG002, FBT001, FBT002 - sqlglot's own
        """Take an operand: sqlglot's methods for operators end with a call of this one."""
        token = self._curr
        # WHEN: sqlglot asks for the value between CASE and WHEN, which is optional.
        if not token or token.token_type == TokenType.WHEN:
            return None
        found = self._operand(token)
        found.meta["start"] = token.start
        while True:
            if self._match(TokenType.ARROW):
                name, start = ("*", self._prev.start) if self._match(TokenType.STAR) else self.name()
                found = exp.Dot(this=found, expression=exp.Identifier(this=name))
            elif self._match(TokenType.L_BRACKET):
                start = self._prev.start
                found = exp.Bracket(this=found, expressions=[self.expression_of()])
                self.expect("]")
            else:
                return found
            found.meta["start"] = start

    def _operand(self, token: Token) -> exp.Expr:
        kind = token.token_type
        if kind in {TokenType.STRING, TokenType.NUMBER}:
            self._advance()
            return exp.Literal(this=token.text, is_string=kind == TokenType.STRING)
        if kind in {TokenType.TRUE, TokenType.FALSE}:
            self._advance()
            return exp.Boolean(this=kind == TokenType.TRUE)
        if kind == TokenType.NULL:
            self._advance()
            return exp.Null()
        if kind == TokenType.L_PAREN:
            self._advance()
            inner = self.listed(self.expression_of)
            return exp.Paren(this=inner[0]) if len(inner) == 1 else exp.Tuple(expressions=list(inner))
        if kind == TokenType.CASE:
            self._advance()
            return self._parse_case() or exp.Null()
        return self._named_operand()

    def _named_operand(self) -> exp.Expr:
        is_quoted = self._curr.token_type == TokenType.IDENTIFIER
        name, start = self.name()
        if not is_quoted and name == "ARRAY" and self.word("["):
            return exp.Array(expressions=list(self.listed(self.expression_of, "]")))
        if self.word("("):
            return self._call(name, start)
        if self.word("."):
            column, start = self.name()
            return exp.Column(this=exp.Identifier(this=column), table=exp.Identifier(this=name))
        return exp.Column(this=exp.Identifier(this=name))

    def _call(self, name: str, start: int) -> exp.Expr:
        if name == "CAST":
            value = self.expression_of()
            self.expect("AS")
            type_ = self.sql_type()
            cast = exp.Cast(this=value, to=exp.Var(this=str(type_)))
            cast.meta["type"] = type_
            self.expect(")")
            return cast
        if name == "STRUCT":
            return exp.Struct(expressions=list(self.listed(self._field)))
        if name == "MAP":
            return exp.Map(keys=list(self.listed(self._entry)))
        if self.word("DISTINCT"):
            if name != "COUNT":
                message = f"{name}(DISTINCT ...) is not supported"
                raise SqlError(message, start, hint="COUNT(DISTINCT ...) counts each value once.")
            # It is a function with other states, and no name of a function has a space.
            name = "COUNT DISTINCT"
        arguments = list(self.listed(self._argument))
        if name in _WITH_UNITS and arguments:
            arguments[0] = _unit(arguments[0])
        call: exp.Expr = exp.Anonymous(this=name, expressions=arguments)
        call.meta["start"] = start
        if self._opens("FILTER"):
            self.expect("FILTER", "(", "WHERE")
            condition = self.expression_of()
            self.expect(")")
            call = exp.Filter(this=call, expression=exp.Where(this=condition))
            call.meta["start"] = start
        return self._over(call) if self._opens("OVER") else call

    def _opens(self, word: str) -> bool:
        """Return whether a word comes next, and a bracket after it: it is a name otherwise."""
        return self.is_next(word) and bool(self._next) and self._next.text == "("

    def _over(self, call: exp.Expr) -> exp.Window:
        """Take OVER and its rows. They are in the expression as text as well, so that equal ones compare equal."""
        self.expect("OVER", "(")
        if not self.word("PARTITION", "BY"):
            raise self.fail("OVER takes PARTITION BY: whose rows a row is computed with", hint=_OVER_HINT)
        groups = self.grouping("PARTITION")
        self.expect_time_order("OVER")
        frame = self._frame()
        self.expect(")")
        found = exp.Window(this=call, partition_by=list(groups), spec=exp.Var(this=repr(frame)))
        found.meta["frame"] = frame
        return found

    def grouping(self, clause: str) -> tuple[exp.Expr, ...]:
        """Take the expressions of GROUP BY or PARTITION BY, in brackets or not."""
        if self.is_next("ROLLUP", "CUBE", "GROUPING"):
            raise self.fail(f"{self._curr.text} is not supported")
        found = [self.expression_of()]
        while self.word(","):
            found.append(self.expression_of())
        # GROUP BY (a, b) groups by two columns, not by a tuple.
        if len(found) == 1 and isinstance(found[0], exp.Tuple):
            found = found[0].expressions
        if not found:
            raise self.fail(f"{clause} BY requires at least one expression", self._prev)
        return tuple(found)

    def expect_time_order(self, clause: str) -> None:
        """Take ORDER BY ROWTIME, which is the only order of streams."""
        if not self.word("ORDER", "BY", "ROWTIME"):
            message = f"{clause} takes ORDER BY ROWTIME: rows are in the order of their times"
            raise self.fail(message, hint=_ORDER_HINT)
        self.word("ASC")

    def _frame(self) -> OverFrame:
        if self.is_next("RANGE"):
            self.expect("RANGE", "BETWEEN")
            self._check_bounded()
            size, rows = self._duration(), None
            self.expect("PRECEDING", "AND", "CURRENT", "ROW")
        elif self.is_next("ROWS"):
            self.expect("ROWS", "BETWEEN")
            self._check_bounded()
            rows = self.number() + 1
            self.expect("PRECEDING", "AND", "CURRENT", "ROW")
            if not self.is_next("WITHIN"):
                message = "ROWS takes WITHIN and a time: how far back rows are at most"
                raise self.fail(message, hint="ROWS BETWEEN 9 PRECEDING AND CURRENT ROW WITHIN 30 DAYS")
            self.expect("WITHIN")
            size = self._duration()
        else:
            raise self.fail("OVER takes RANGE or ROWS: how far back rows reach", hint=_OVER_HINT)
        return OverFrame(size, rows, self._grace())

    def _check_bounded(self) -> None:
        if self.is_next("UNBOUNDED"):
            message = "UNBOUNDED PRECEDING would keep all rows for ever"
            raise self.fail(message, hint="GROUP BY has running results of all rows, as a table.")

    # Times

    def _grace(self) -> int | None:
        if not self.word("GRACE"):
            return None
        self.expect("PERIOD")
        return self._duration()

    def _duration(self) -> int:
        number, unit, start = self._amount(UNITS)
        return checked_duration(number * UNITS[unit], start)

    def _amount(self, units: Collection[str]) -> tuple[int, str, int]:
        """Take a number and its unit; return them, the unit as it is listed, and the offset of the unit."""
        number = self.number()
        token = self._curr
        name, start = self.name()
        unit = name.removesuffix("S")
        if unit not in units:
            hint = nearest(name, [f"{unit}S" for unit in units])
            hint = _CALENDAR_HINT if unit in CALENDAR_UNITS else hint
            hint = _BY_COUNT_HINT if unit in {"ROW", "RECORD"} else hint
            raise self.fail(f"There is no unit of time {name}", token, hint)
        return number, unit, start

    def _argument(self) -> exp.Expr:
        return exp.Star() if self._match(TokenType.STAR) else self.expression_of()

    def _field(self) -> exp.Expr:
        name, _ = self.name()
        self.expect(":=")
        return exp.PropertyEQ(this=exp.Identifier(this=name), expression=self.expression_of())

    def _entry(self) -> exp.Expr:
        key = self.expression_of()
        self.expect(":=")
        return exp.PropertyEQ(this=key, expression=self.expression_of())
