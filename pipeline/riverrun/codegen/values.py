"""Values as expressions of generated code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Named: TypeAlias = "Callable[[str, Any], str]"
"""Names an object in a generated function, with a prefix for each operator; returns that name."""


@dataclass(frozen=True, slots=True)
class TupleValue:
    """A value that is a tuple, taken apart: a generated function makes it only where it is needed as a whole.

    Args:
        items: Expressions for its items, which may be written several times.
        lines: The lines that these need before them.
    """

    items: tuple[str, ...]
    lines: str = ""

    @property
    def whole(self) -> str:
        return f"({' '.join(f'{item},' for item in self.items)})"


@dataclass(frozen=True, slots=True)
class OneValue:
    """A value that lines make as a whole.

    Args:
        whole: An expression for it, which may be written once.
        lines: The lines that it needs before it.
    """

    whole: str
    lines: str = ""


@dataclass(frozen=True, slots=True)
class DictValue:
    """A value that is a dict, taken apart: a generated function makes it only where it is needed as a whole.

    Args:
        names: Its keys.
        items: Expressions for its items, which may be written several times.
        lines: The lines that these need before them.
    """

    names: tuple[str, ...]
    items: tuple[str, ...]
    lines: str = ""

    @property
    def whole(self) -> str:
        return f"{{{', '.join(f'{name!r}: {item}' for name, item in zip(self.names, self.items, strict=True))}}}"
