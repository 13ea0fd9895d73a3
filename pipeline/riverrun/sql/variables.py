"""DEFINE and UNDEFINE: variables, which stand as `${name}` in the statements after them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from riverrun.sql.statements import SqlError, nearest, words

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from sqlglot.tokenizer_core import Token

# A second sign in front is the sign for the reference itself.
_REFERENCE = re.compile(r"\$?\$\{(\w+)\}")
_QUOTED = {TokenType.STRING: "'", TokenType.IDENTIFIER: "`"}
_NAMES = {TokenType.VAR, TokenType.NUMBER, TokenType.TRUE, TokenType.FALSE, TokenType.NULL, *_QUOTED}
# Variables within values of others would otherwise multiply: a short text could become any length.
_MOST_CHARACTERS = 10_000
_VALUE_HINT = "In a text or in backquotes it may stand next to others: `${env}_orders`, '${env}.orders'."


def statement_words(text: str, variables: MutableMapping[str, str] | None = None) -> list[Token]:
    """Return the words of statements, with values in place of variables, and without DEFINE and UNDEFINE.

    Args:
        text: The statements, each with a semicolon at its end.
        variables: Those that are known before the text, by name in upper case. Definitions of the text are added.
    """
    return _Words(words(text), {} if variables is None else variables).replaced()


class _Words:
    def __init__(self, tokens: Sequence[Token], variables: MutableMapping[str, str]) -> None:
        self._tokens = tokens
        self._variables = variables
        self._at = 0

    def replaced(self) -> list[Token]:
        found: list[Token] = []
        while self._at < len(self._tokens):
            is_first = not found or found[-1].token_type == TokenType.SEMICOLON
            if is_first and self._is_next("DEFINE"):
                self._define()
            elif is_first and self._is_next("UNDEFINE"):
                self._undefine()
            elif self._tokens[self._at].text.endswith("$") and self._is_next("{", 1):
                found += self._referred()
            else:
                found.append(self._in_quotes(self._take()))
        return found

    def _is_next(self, word: str, ahead: int = 0) -> bool:
        at = self._at + ahead
        return at < len(self._tokens) and self._is_word(self._tokens[at], word)

    def _is_word(self, token: Token, word: str) -> bool:
        return token.token_type not in _QUOTED and token.text.upper() == word

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, what: str, *kinds: TokenType) -> Token:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or token.token_type not in kinds:
            at, shown = (self._tokens[-1].end + 1, "the end") if token is None else (token.start, repr(token.text))
            raise SqlError(f"Expected {what}, found {shown}", at)
        return self._take()

    def _define(self) -> None:
        self._take()
        name = self._expect("the name of a variable", TokenType.VAR)
        self._expect("=", TokenType.EQ)
        value = self._in_quotes(self._expect("a text in quotes", TokenType.STRING))
        self._end()
        self._variables[name.text.upper()] = value.text

    def _undefine(self) -> None:
        self._take()
        name = self._expect("the name of a variable", TokenType.VAR)
        self._end()
        if self._variables.pop(name.text.upper(), None) is None:
            raise self._unknown(name.text, name.start)

    def _end(self) -> None:
        if self._at < len(self._tokens):
            self._expect(";", TokenType.SEMICOLON)

    def _unknown(self, name: str, start: int) -> SqlError:
        hint = nearest(name, self._variables) or f"DEFINE {name} = '...';"
        return SqlError(f"There is no variable {name}", start, hint=hint)

    def _referred(self) -> list[Token]:
        """Return the words of the value of a variable that stands outside quotes."""
        begin = self._at
        first, _ = self._take(), self._take()
        name, last = self._expect("${name}", TokenType.VAR), self._expect("${name}", TokenType.R_BRACE)
        around = [*self._tokens[max(begin - 1, 0) : begin], *self._tokens[self._at : self._at + 1]]
        is_joined = any({each.end + 1, each.start - 1} & {first.start, last.end} and _is_name(each) for each in around)
        if is_joined or first.text != "$":
            raise SqlError("A variable outside quotes stands alone", first.start, hint=_VALUE_HINT)
        if name.text.upper() not in self._variables:
            raise self._unknown(name.text, first.start)
        found = _single(self._variables[name.text.upper()])
        if not found:
            message = f"The value of {name.text} is no single name, number or text"
            raise SqlError(message, first.start, hint="A text has its own quotes: DEFINE name = '''text''';")
        for each in found:
            each.start, each.end = first.start, last.end
        return found

    def _in_quotes(self, token: Token) -> Token:
        """Replace the variables within a text or a name in backquotes; what names none stays as it is."""

        def value(found: re.Match[str]) -> str:
            known = self._variables.get(found[1].upper())
            if known is None:
                return found[0]
            return found[0][1:] if found[0].startswith("$$") else known

        if token.token_type in _QUOTED and (made := _REFERENCE.sub(value, token.text)) != token.text:
            if len(made) > _MOST_CHARACTERS:
                message = f"With its variables, this has {len(made)} characters: the most is {_MOST_CHARACTERS}"
                raise SqlError(message, token.start)
            token.text = made
        return token


def _single(value: str) -> list[Token]:
    """Return the word of a value, with a minus sign if it has one; nothing if it is something else."""
    try:
        found = words(value)
    except SqlError:
        return []
    is_negative = [each.token_type for each in found] == [TokenType.DASH, TokenType.NUMBER]
    return found if is_negative or (len(found) == 1 and _is_name(found[0])) else []


def _is_name(token: Token) -> bool:
    return token.token_type in _NAMES


def spelled(tokens: Sequence[Token]) -> str:
    """Return the text of words, which are as far apart as they were written."""
    parts = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        # Two signs in a row would begin a comment.
        is_comment = before is not None and before.token_type == token.token_type == TokenType.DASH
        is_joined = before is None or (before.end + 1 == token.start and not is_comment)
        parts.append(f"{'' if is_joined else ' '}{_spelled(token)}")
    return "".join(parts)


def _spelled(token: Token) -> str:
    quote = _QUOTED.get(token.token_type, "")
    return f"{quote}{token.text.replace(quote, quote * 2) if quote else token.text}{quote}"
