"""Errors of calls that a statement cannot make, and of values that a function cannot take."""

from __future__ import annotations

from riverrun.errors import TopologyError


class UnknownFunction(TopologyError):  # noqa: N818 - a name of SQL's own vocabulary
    """No function has this name.

    Args:
        name: The name in the statement.
        nearest: The name it resembles most; None if there is none.
    """

    def __init__(self, name: str, nearest: str | None) -> None:
        """Keep both names, and offer the nearest."""
        super().__init__(
            f"Can't find any functions with the name '{name}'", hint=f"Did you mean {nearest}?" if nearest else None
        )
        self.name = name
        self.nearest = nearest


class WrongArguments(TopologyError):  # noqa: N818 - as above
    """The function does not take arguments of these types; the message lists what it takes."""
