"""Functions of regular expressions."""

from __future__ import annotations

import re
from functools import lru_cache

from riverrun.sql.functions.registry import scalar

THEME = "Regular expressions"


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of Java's: names of groups are translated, and the rest is common to both languages."""
    return re.compile(re.sub(r"\(\?<([A-Za-z]\w*)>", r"(?P<\1>", pattern))


@lru_cache(maxsize=256)
def _template(new: str) -> str:
    """Translate Java's references to groups, such as $1."""
    escaped = re.sub(r"\\(?![$\\])", r"\\\\", new)
    return re.sub(r"(?<!\\)\$(\d)", r"\\g<\1>", escaped).replace("\\$", "$")


@scalar("REGEXP_EXTRACT(pattern STRING, text STRING, [group INTEGER]) -> STRING", theme=THEME)
def extracted(pattern: str, text: str, group: int = 0) -> str | None:
    """The first part that matches, or a group of it; NULL if nothing matches."""
    compiled = _compiled(pattern)
    found = compiled.search(text)
    return found[group] if found and group <= compiled.groups else None


@scalar("REGEXP_EXTRACT_ALL(pattern STRING, text STRING, [group INTEGER]) -> ARRAY<STRING>", theme=THEME)
def all_extracted(pattern: str, text: str, group: int = 0) -> list[str | None] | None:
    """All parts that match, or a group of each."""
    compiled = _compiled(pattern)
    return [found[group] for found in compiled.finditer(text)] if group <= compiled.groups else None


@scalar("REGEXP_REPLACE(text STRING, pattern STRING, new STRING) -> STRING", theme=THEME)
def pattern_replaced(text: str, pattern: str, new: str) -> str:
    """The text with every part that matches replaced; `$1` is a group."""
    return _compiled(pattern).sub(_template(new), text)


@scalar("REGEXP_SPLIT_TO_ARRAY(text STRING, pattern STRING) -> ARRAY<STRING>", theme=THEME)
def pattern_split(text: str, pattern: str) -> list[str]:
    """The parts between matches; single characters if the pattern is empty."""
    if not pattern:
        return list(text)
    parts, at = [], 0
    for found in _compiled(pattern).finditer(text):
        parts.append(text[at : found.start()])
        at = found.end()
    return [*parts, text[at:]]
