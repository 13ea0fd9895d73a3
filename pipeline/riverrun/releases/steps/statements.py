"""Statements in which two versions of an application differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.config.checks import read_text

if TYPE_CHECKING:
    from riverrun.hosting.application import Application


def statement_digests_of(application: Application) -> dict[str, str]:
    """Return a digest per SQL statement of a version; empty if its topology is not a file of statements."""
    path = application.config.topology_of(application.version)
    if not isinstance(path, str) or not path.endswith(".sql"):
        return {}
    from riverrun.sql.digests import statement_digests  # noqa: PLC0415 - its parser is an extra

    return statement_digests(read_text(Path(path)), path)
