"""Tells exits of commands from exits of the user code that they call."""

from __future__ import annotations

from traceback import walk_tb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_TYPER = {"typer", "click"}


def is_of_command(end: SystemExit) -> bool:
    """Return whether a command itself ends the program, as those of add-ons may anywhere in their packages."""
    frames = [frame for frame, _ in walk_tb(end.__traceback__)]
    # The first one has called typer.
    called = [frame for frame in frames[1:] if _package(frame) not in _TYPER]
    # Riverrun's commands end in typer, and so does `typer.Exit` of any command.
    if not called or frames[-1] is not called[-1]:
        return True
    package = _package(called[0])
    if package == "riverrun":
        return False
    # Riverrun calls user code, wherever that is installed. Other packages that the command calls belong to it.
    return next(each for each in map(_package, reversed(called)) if each in {"riverrun", package}) == package


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
