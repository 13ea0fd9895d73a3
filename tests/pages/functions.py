"""Prints the reference page of all functions: `python -m tests.pages.functions`."""

from __future__ import annotations

import sys
from itertools import groupby

import riverrun.sql.functions  # noqa: F401 - declares them
from riverrun.sql.functions.registry import REGISTRY, Overload

_HEAD = """# SQL functions

Made by `python -m tests.pages.functions > docs/sql-functions.md`.

Statements call functions in upper or lower case. Square brackets mark arguments that may be left out, and `...` one that
may be repeated. Single letters are types that the arguments decide: `N` is a number, `D` a DECIMAL, `C` a type with an order,
`X` any type each time, every other letter any one type. Numbers widen from INTEGER to BIGINT, DECIMAL and DOUBLE. A NULL makes
the result NULL unless a description says otherwise.

Your own functions in Python take part once their module is imported:

```python
from riverrun.sql import udf


@udf
def initials(first: str, last: str) -> str:
    return first[:1] + last[:1]
```

`@udf` is for functions of one row, `@udaf` for classes that aggregate, `@udtf` for functions that make rows. Annotations are
types: `int` is BIGINT, `float` DOUBLE, `str` STRING, `bool` BOOLEAN, `bytes` BYTES, `list[X]` an ARRAY, `dict[str, X]` a MAP,
and `Annotated[decimal.Decimal, Decimal(10, 2)]` a DECIMAL. A parameter annotated `X | None` gets NULLs as None.
"""
_DIFFERENCES = """## Differences to ksqlDB

* `UNIX_TIMESTAMP()` and `UNIX_DATE()` without an argument do not exist: the clock says something else when a record is
  processed again. ROWTIME is the record's time.
* A `SUM` that its type cannot hold is an error; ksqlDB lets whole numbers wrap around.
* `COUNT_DISTINCT` is exact up to 512 different values.
* When windows of sessions merge, `EARLIEST_BY_OFFSET` and `LATEST_BY_OFFSET` take the earlier session's values as the
  earlier ones.
* Times without a zone are in UTC, names of months and days are English.
* Patterns of dates know the letters `y u M L d D E a H k h K m s S A n X x Z O V z`; another letter is an error.
* Regular expressions run on [RE2](https://github.com/google/re2/wiki/Syntax), in time that grows with the text only.
  Java's `(?<name>...)`, `\\p{Alpha}`, `\\uXXXX` and `$1` are known. Look-around, references to groups within a pattern,
  possessive quantifiers, classes within classes and more than 1000 repetitions are refused. `$` is the end of the text,
  and not the place before a line break there.
* A pattern has at most 10,000 characters. Between two `%` of LIKE, there are at most 1000 characters if one is `_`.
* Functions make texts of up to 16,777,216 characters, and arrays and maps of up to 1,000,000 items. What is larger is NULL.
"""
_LAST = ("Aggregates", "Table functions")


def reference() -> str:
    """Return the page."""
    own = [overload for overloads in REGISTRY.overloads.values() for overload in overloads if overload.own]
    own.sort(key=lambda overload: (overload.theme in _LAST, overload.theme, overload.signature.name))
    parts = [_HEAD]
    for theme, of_theme in groupby(own, key=lambda overload: overload.theme):
        parts.append(f"## {theme}\n")
        parts.extend(
            _entry(list(alike)) for _, alike in groupby(of_theme, key=lambda overload: overload.signature.name)
        )
    return "\n".join([*parts, _DIFFERENCES])


def _entry(overloads: list[Overload]) -> str:
    signatures = "\n".join(str(overload.signature) for overload in overloads)
    described = "\n\n".join(dict.fromkeys(overload.description for overload in overloads))
    return f"### {overloads[0].signature.name}\n\n```text\n{signatures}\n```\n\n{described}\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
