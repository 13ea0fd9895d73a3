r"""Functions of regular expressions, and LIKE.

Both take time in proportion to the text, whatever pattern and text are: texts come from records, and patterns from statements
and queries, and neither may stall a task. Regular expressions run on RE2, which never goes back. It has no look-around,
no references to groups and no possessive quantifiers: such patterns are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from re2 import Options, _re2

from riverrun.sql.functions.registry import scalar
from riverrun.sql.functions.values import MOST_CHARACTERS, MOST_ITEMS, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

THEME = "Regular expressions"
LONGEST_PATTERN = 10_000
"""Greatest number of characters of a pattern."""
# Between two `%` of LIKE with a `_` among them, each character may be compared at each place of a text.
_LONGEST_BLANKS = 1000
# RE2 is linear for one match, but each match of some patterns is sought up to the end of the text, and each byte of a
# match may move all groups in all instructions: about a second in all.
_LONGEST_WAY = 400_000_000
_GROUPS_PER_STEP = 4
# Without room for its automaton, RE2 follows all instructions at each byte: so many steps take some seconds.
_MOST_STEPS = 10_000_000_000
_Spans: TypeAlias = list[tuple[int, int]]
_ANYWHERE = _re2.RE2.Anchor.UNANCHORED
_POSIX = {
    name: f"[:{name.lower()}:]"
    for name in "Lower Upper ASCII Alpha Digit Alnum Punct Graph Print Blank Cntrl XDigit Space".split()  # noqa: SIM905 - a list of words
}
"""Java's POSIX classes, as RE2 has them within brackets."""
_TOKEN = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\u(?P<unit>[0-9a-fA-F]{4})|\\(?P<posix>[pP])\{(?P<name>\w+)\}|\\.|&&|[\[\]]|.",
    re.DOTALL,
)
_ITEM = r"\\[dDsSwW]|\\[^\w\s]|\[\^?[^\[\]\\]+\]|[^\\\[\](){}.*+?^$|]"
_GROUP = r"\((?:\?:|\?P?<\w+>)?|\)(?![*+?{])"
# Patterns whose matches end where the search for them ends, since only their last item repeats.
_LOCAL = re.compile(rf"(?:{_ITEM}|{_GROUP})*[*+]?\)*")
_REFERENCE = re.compile(r"\\(?P<escaped>.)|\$(?P<number>\d)|\$\{(?P<name>\w+)\}|(?P<bad>[\\$])", re.DOTALL)


# Few: each may take 8 MB when it has seen many texts, as RE2 builds its automaton while it matches.
@lru_cache(maxsize=32)
def _compiled(pattern: str, *, with_groups: bool = False) -> _re2.RE2:
    """Compile a pattern of Java's; raise ValueError for one that takes more than linear time.

    Groups cost much: without them only the span of the whole match is found.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"a regular expression may have {LONGEST_PATTERN} characters, not {len(pattern)}")
    options = Options()
    options.log_errors = False
    options.never_capture = not with_groups
    found = _re2.RE2(_translated(pattern).encode(), options)
    if not found.ok():
        reason = found.error().decode(errors="replace")
        raise ValueError(
            f"the regular expression {pattern!r}: {reason} (look-around and references to groups are not supported)"
        )
    return found


def _translated(pattern: str) -> str:
    r"""Return a pattern of Java's as RE2 writes it.

    >>> _translated(r"\p{Alpha}[\p{Digit}\u0041]")
    '[[:alpha:]][[:digit:]\\x{0041}]'
    """
    parts: list[str] = []
    opened: int | None = None
    for found in _TOKEN.finditer(pattern):
        text = found[0]
        if opened is not None and (text in {"[", "&&"} or found["quoted"] is not None):
            raise ValueError(f"the regular expression {pattern!r}: a class of characters must not contain [, && or \\Q")
        if found["posix"] is not None:
            text = _class(found["posix"], found["name"], text, is_within=opened is not None)
        elif found["unit"] is not None:
            text = f"\\x{{{found['unit']}}}"
        if text == "[" and opened is None:
            opened = found.start()
        elif text == "]" and opened is not None and pattern[opened : found.start()] not in {"[", "[^"}:
            opened = None
        parts.append(text)
    return "".join(parts)


def _class(letter: str, name: str, text: str, *, is_within: bool) -> str:
    if name not in _POSIX:
        return text
    known = _POSIX[name] if letter == "p" else f"[:^{_POSIX[name][2:]}"
    return known if is_within else f"[{known}]"


def _matches(pattern: str, data: bytes, *, with_groups: bool) -> Iterator[_Spans]:
    """Yield the spans of each match, and of its groups, in bytes."""
    compiled, at, end, way = _compiled(pattern), 0, len(data), 0
    grouped = _compiled(pattern, with_groups=True) if with_groups else None
    cost = 0 if grouped is None else grouped.NumberOfCapturingGroups() * grouped.ProgramSize()
    is_local = _LOCAL.fullmatch(pattern) is not None
    if end * compiled.ProgramSize() > _MOST_STEPS:
        raise ValueError(f"the regular expression {pattern!r} is too long for a text of {end} bytes")
    for _ in range(MOST_ITEMS):
        found: _Spans = compiled.Match(_ANYWHERE, data, at, end)
        start, last = found[0]
        if start < 0:
            return
        way += (0 if is_local else end - at) + (last - start + 1) * cost // _GROUPS_PER_STEP
        if way > _LONGEST_WAY:
            raise ValueError(f"the regular expression {pattern!r} matches a text of {end} bytes too often")
        yield found if grouped is None else grouped.Match(_ANYWHERE, data, at, end)
        # An empty match at the end would be found again and again.
        if at == end:
            return
        at = last if last > at else _next(data, at)
    raise ValueError(f"more than {MOST_ITEMS} matches of a regular expression")


def _next(data: bytes, at: int) -> int:
    """Return the index of the next character of UTF-8."""
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:  # noqa: PLR2004 - bytes that continue a character
        at += 1
    return at


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _part(data: bytes, span: tuple[int, int]) -> str | None:
    start, end = span
    return None if start < 0 else data[start:end].decode("utf-8", "surrogatepass")


_PATTERN = {"pattern": _compiled}


@scalar(
    "REGEXP_EXTRACT(pattern STRING, text STRING, [group INTEGER]) -> STRING",
    theme=THEME,
    constants=_PATTERN,
    is_late=True,
)
def extracted(pattern: str, text: str, group: int = 0) -> str | None:
    """The first part that matches, or a group of it; NULL if nothing matches."""
    data = _encoded(text)
    found = next(_matches(pattern, data, with_groups=group > 0), [])
    return _part(data, found[group]) if 0 <= group < len(found) else None


@scalar(
    "REGEXP_EXTRACT_ALL(pattern STRING, text STRING, [group INTEGER]) -> ARRAY<STRING>",
    theme=THEME,
    constants=_PATTERN,
    is_late=True,
)
def all_extracted(pattern: str, text: str, group: int = 0) -> list[str | None] | None:
    """All parts that match, or a group of each."""
    data = _encoded(text)
    if not 0 <= group <= _compiled(pattern, with_groups=True).NumberOfCapturingGroups():
        return None
    return [_part(data, found[group]) for found in _matches(pattern, data, with_groups=group > 0)]


@scalar(
    "REGEXP_REPLACE(text STRING, pattern STRING, new STRING) -> STRING", theme=THEME, constants=_PATTERN, is_late=True
)
def pattern_replaced(text: str, pattern: str, new: str) -> str:
    """The text with every part that matches replaced; `$1` is a group."""
    data, template = _encoded(text), _template(new)
    names = dict(_compiled(pattern, with_groups=True).NamedCapturingGroups())
    with_groups = any(isinstance(each, str) for each in template)
    parts: list[bytes] = []
    at = size = 0
    for found in _matches(pattern, data, with_groups=with_groups):
        parts.append(data[at : found[0][0]])
        size += len(parts[-1])
        for each in template:
            parts.append(each if isinstance(each, bytes) else _group(data, found, each, names))
            size += len(parts[-1])
        at = found[0][1]
        if size > MOST_CHARACTERS:
            raise ValueError(f"a text of more than {MOST_CHARACTERS} characters")
    return b"".join([*parts, data[at:]]).decode("utf-8", "surrogatepass")


def _group(data: bytes, found: _Spans, reference: str, names: dict[bytes, int]) -> bytes:
    number = int(reference) if reference.isdecimal() else names.get(reference.encode(), -1)
    if not 0 <= number < len(found):
        raise ValueError(f"there is no group {reference}")
    start, end = found[number]
    return data[start:end] if start >= 0 else b""


@lru_cache(maxsize=64)
def _template(new: str) -> tuple[bytes | str, ...]:
    """Parse a replacement of Java's: bytes as they are, and texts that refer to groups."""
    parts: list[bytes | str] = []
    at = 0
    for found in _REFERENCE.finditer(new):
        parts.append(_encoded(new[at : found.start()]))
        at = found.end()
        reference = found["number"] or found["name"]
        literal = found["escaped"] if found["escaped"] in {"\\", "$"} else found[0]
        parts.append(_encoded(literal) if reference is None else reference)
    parts.append(_encoded(new[at:]))
    return tuple(part for part in parts if part)


@scalar(
    "REGEXP_SPLIT_TO_ARRAY(text STRING, pattern STRING) -> ARRAY<STRING>", theme=THEME, constants=_PATTERN, is_late=True
)
def pattern_split(text: str, pattern: str) -> list[str | None]:
    """The parts between matches; single characters if the pattern is empty."""
    if not pattern:
        return list(within(text, MOST_ITEMS))
    data = _encoded(text)
    parts, at = [], 0
    for found in _matches(pattern, data, with_groups=False):
        parts.append(_part(data, (at, found[0][0])))
        at = found[0][1]
    return [*parts, _part(data, (at, len(data)))]


# LIKE


@dataclass(frozen=True, slots=True)
class _Blanks:
    """A part of a pattern with `_`: an expression without repetition, for a number of characters."""

    expression: re.Pattern[str]
    length: int


Segment: TypeAlias = "str | _Blanks"
"""A part of a pattern between two `%`: a text, unless there is a `_` in it."""


def like(text: str | None, pattern: str | None, escape: str = "") -> bool:
    """Return whether a text matches a pattern of `%` and `_`.

    >>> like("abcd", "a%_d"), like("a%", "a!%", "!"), like("ab", "a!%", "!")
    (True, True, False)
    """
    if text is None or pattern is None:
        return False
    # Patterns come from rows here: only short ones are remembered, since records could fill the memory with long ones.
    return (_recent_test if len(pattern) <= _LONGEST_BLANKS else like_test)(pattern, escape)(text)


def like_test(pattern: str, escape: str = "") -> Callable[[str | None], bool]:
    """Return the test of a pattern of `%` and `_`, which takes linear time; `escape` is empty if there is no ESCAPE."""
    first, *rest = _segments(pattern, escape)
    if not rest:
        if isinstance(first, str):
            return lambda text: text == first
        return lambda text: text is not None and first.expression.fullmatch(text) is not None
    *middle, last = rest
    middle = [each for each in middle if each]
    if isinstance(first, str) and isinstance(last, str) and all(isinstance(each, str) for each in middle):
        return _test_of_texts(first, [each for each in middle if isinstance(each, str)], last)
    return _test_of_blanks(*(_blanks(each) if isinstance(each, str) else each for each in (first, last, *middle)))


_recent_test = lru_cache(maxsize=1000)(like_test)


def _test_of_texts(first: str, middle: Sequence[str], last: str) -> Callable[[str | None], bool]:
    """Return the test of texts with `%` between them."""
    # The first place of each text after the one before is enough: a later one would only leave less for the rest.
    least = len(first) + len(last)
    if not least and len(middle) == 1:
        return lambda text: text is not None and middle[0] in text

    def test(text: str | None) -> bool:
        if text is None or len(text) < least or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for each in middle:
            at = text.find(each, at, end)
            if at < 0:
                return False
            at += len(each)
        return True

    return test


def _test_of_blanks(first: _Blanks, last: _Blanks, *middle: _Blanks) -> Callable[[str | None], bool]:
    """Return the test of parts with `%` between them, some of which have a `_`."""
    least = first.length + last.length

    def test(text: str | None) -> bool:
        if text is None or len(text) < least or first.expression.match(text) is None:
            return False
        at, end = first.length, len(text) - last.length
        for each in middle:
            found = each.expression.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return last.expression.match(text, end) is not None

    return test


def _segments(pattern: str, escape: str) -> list[Segment]:
    found: list[list[str]] = [[]]
    is_escaped = False
    for sign in pattern:
        if is_escaped or sign not in {"%", "_", escape}:
            found[-1].append(sign)
            is_escaped = False
        elif sign == escape:
            is_escaped = True
        elif sign == "%":
            found.append([])
        else:
            found[-1].append("")  # any character
    return [_segment(each) for each in found]


def _segment(signs: list[str]) -> Segment:
    if "" not in signs:
        return "".join(signs)
    return _blanks(signs)


def _blanks(signs: Sequence[str]) -> _Blanks:
    if len(signs) > _LONGEST_BLANKS:
        raise ValueError(f"between two % of LIKE there may be {_LONGEST_BLANKS} characters with a _, not {len(signs)}")
    return _Blanks(re.compile("".join(re.escape(each) or "." for each in signs), re.DOTALL), len(signs))
