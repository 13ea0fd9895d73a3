"""The page that lists every error: `python -m tests.pages.errors docs/reference/errors.md`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun import errors
from riverrun.cli.project import code_of
from riverrun.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """\
# Errors

`python -m tests.pages.errors` makes this page from the errors themselves.
[Errors](../errors.md#errors) names the person who must act, and [troubleshooting](../troubleshooting.md) explains messages.

All errors are in `riverrun.errors`. Each has a `message`, and a `hint` if you can do something about it. Commands print both.
An `except` clause for an error also catches its subclasses. A command that fails with an error ends with its exit code.
"""


def page() -> str:
    """Write the page, as Markdown."""
    return "\n".join([_HEAD, *_section(StreamsError)]) + "\n"


def _section(error: type[StreamsError], parent: str | None = None) -> Iterator[str]:
    """Describe an error, then those below it in the order of their module."""
    yield from (f"## {error.__name__}", "", _text(error), "")
    kind = f"A kind of `{parent}`. " if parent is not None else ""
    yield f"{kind}Exit code {code_of(error.__new__(error))}."
    for below in vars(errors).values():
        if inspect.isclass(below) and issubclass(below, StreamsError) and error in below.__bases__:
            yield ""
            yield from _section(below, error.__name__)


def _text(error: type[StreamsError]) -> str:
    """Return what the docstring says, without its arguments."""
    text = inspect.getdoc(error) or ""
    return text.partition("\n\nArgs:")[0].strip()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
