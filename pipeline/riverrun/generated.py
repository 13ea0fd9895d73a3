"""Functions made from generated text, whose lines tracebacks, profilers and debuggers can show."""

from __future__ import annotations

import linecache
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from textwrap import indent
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_compiled: WeakValueDictionary[tuple[str, str], CodeType] = WeakValueDictionary()
"""Code by label and text, shared by tasks with equal functions."""
_owners: dict[str, Sequence[str]] = {}
"""By file name of a generated function with marks, the owner of each line."""
# Separates a line from the name of its owner. Python refuses NUL in source text, so no line contains it.
_MARK = "\x00"


def marked(line: str, owner: str) -> str:
    """Return a line that belongs to an owner, which `owner_of` finds again; a line keeps its first owner."""
    return line if not owner or _MARK in line else f"{line}{_MARK}{owner.encode('unicode_escape').decode()}"


def owner_of(file: str, line: int | None) -> str:
    """Return the owner of a line of a generated function; empty if it has none, or the file is another one."""
    owners = _owners.get(file, ())
    # None: Python has added instructions between lines.
    return owners[line - 1] if line is not None and 0 < line <= len(owners) else ""


def owner_before(file: str, line: int | None) -> str:
    """Return the owner of the call that a generated function has made last before it reached a line; empty if there is none."""
    owners = _owners.get(file, ())
    if line is None or not 0 < line <= len(owners):
        return ""
    lines = linecache.getlines(file)
    depth = _depth(lines[line - 1])
    # The nearest call above that is indented no deeper: deeper ones may have been left out.
    above = ((lines[number], owners[number]) for number in range(line - 2, -1, -1))
    return next((owner for text, owner in above if _depth(text) <= depth and _calls(text)), "")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _calls(line: str) -> bool:
    # What follows `else:` is deeper, and has calls.
    return "(" in line or line.strip() == "else:"


def generated(label: str, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """Make a function from the text of one definition, whose lines may be `marked`; `names` are the objects that it uses.

    `linecache` has the lines as long as the function, or a traceback through it, exists.
    """
    code = _compiled.get((label, text))
    if code is None:
        code = _compiled[label, text] = _code(label, text)
    return FunctionType(code, names)


_PLACED = re.compile(r"\brow\[(?P<item>\d+)\]|\b(?P<constant>c\d+)\b|\b(?P<own>[lrtps]\d+(_\d+)?)\b")


def placed(code: str, *, item: Callable[[int], str], constant: Callable[[str], str], own: Callable[[str], str]) -> str:
    """Return the code of an expression with its generated names (`row[N]`, `cN`, `tN` and the like) replaced.

    >>> placed("row[0] + (t1 := row[1]) * c0", item="v{}".format, constant="constant_{}".format, own="own_{}".format)
    'v0 + (own_t1 := v1) * constant_c0'
    """

    def name(found: re.Match[str]) -> str:
        if found["item"] is not None:
            return item(int(found["item"]))
        return own(found["own"]) if found["constant"] is None else constant(found["constant"])

    return _PLACED.sub(name, code)


def text_of(function: Callable[..., Any]) -> str:
    """Return the text that a generated function was made from."""
    return "".join(linecache.getlines(function.__code__.co_filename))


def _code(label: str, text: str) -> CodeType:
    file = f"<riverrun {label}>"
    # Tasks of another application, or with other settings, may have a function of the same label.
    if linecache.getlines(file):
        file = next(name for n in count(2) if not linecache.getlines(name := f"<riverrun {label} #{n}>"))
    parts = [line.partition(_MARK) for line in text.split("\n")]
    plain = "\n".join(line for line, _, _ in parts)
    owners = [owner.encode().decode("unicode_escape") for _, _, owner in parts]
    module = compile(plain, file, "exec")
    code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
    _keep_lines(file, plain)
    if any(owners):
        _owners[file] = owners
    # Not when Python ends: nobody reads the lines then.
    finalize(code, _forget, file).atexit = False
    return code


def _keep_lines(file: str, text: str) -> None:
    # Without a time of change: `checkcache` would look for the file on disk, and drop the lines.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def _forget(file: str) -> None:
    _owners.pop(file, None)
    # An entry without lines stays: this may run while `linecache.checkcache`, which doctest and tracebacks call,
    # iterates over the names, and removing one would make that fail.
    _keep_lines(file, "")


_MOST_LINES = 2_000


class NotGenerated(Exception):  # noqa: N818 - no error: plain functions do the same
    """No lines can be written for an operator, or for a schema; the text says why."""


@dataclass(slots=True)
class Lines:
    """The lines of a generated function while they are written, and the objects that they use by name."""

    names: dict[str, Any]
    written: list[str] = field(default_factory=list)
    _count: int = 0
    _total: int = 0

    def add(self, text: str) -> None:
        """Add lines; raise NotGenerated if they become too many."""
        added = text.splitlines()
        self._total += len(added) or 1
        if self._total > _MOST_LINES:
            raise NotGenerated("it would be too long")
        self.written += added

    def new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def assigned(self, expression: str) -> str:
        """Add a line that assigns an expression to a new variable, and return its name."""
        name = self.new()
        self.add(f"{name} = {expression}")
        return name

    def named(self, thing: Any) -> str:
        if thing is None:
            return "None"
        name = f"c{len(self.names)}"
        self.names[name] = thing
        return name

    @contextmanager
    def aside(self) -> Iterator[list[str]]:
        """Collect lines in a separate list; the caller adds them."""
        outer, self.written = self.written, []
        yield self.written
        self.written = outer

    @contextmanager
    def indented(self) -> Iterator[None]:
        with self.aside() as own:
            yield
        self.written += indent("\n".join(own), " " * 4).splitlines()


def block(head: str, *lines: str) -> str:
    """Return a compound statement: its head, and the lines within it.

    >>> print(block("if a:", block("if b:", ""), "c = 1"))
    if a:
        if b:
            pass
        c = 1
    """
    body = "\n".join(line for line in lines if line) or "pass"
    return f"{head}\n{indent(body, '    ')}"
