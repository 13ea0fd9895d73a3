"""Rules of data contracts, such as encryption of fields: they are not applied, so schemas with rules are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

_WRITING, _READING = frozenset({"WRITE", "WRITEREAD"}), frozenset({"READ", "WRITEREAD"})
# Confluent's clients apply these only if they read with the latest version of a subject, which serdes here never do.
_MIGRATING = frozenset({"UPGRADE", "DOWNGRADE", "UPDOWN"})


def check_written(schema: Any, what: str) -> None:
    """Refuse to write with a schema whose rules would change or refuse values."""
    _check(schema, f"Values cannot be written with {what}", _WRITING)


def check_read(schema: Any, what: str) -> None:
    """Refuse to read with a schema whose rules would change or refuse values."""
    _check(schema, f"Values cannot be read with {what}", _READING)


def _check(schema: Any, refusal: str, modes: frozenset[str]) -> None:
    # A mode that is not known may be any.
    found = [
        rule for rule in _enabled(schema) if _mode(rule) in modes or _mode(rule) not in _WRITING | _READING | _MIGRATING
    ]
    if found:
        rules = ", ".join(f"{rule.name} ({rule.type})" for rule in found)
        message = f"{refusal}: its rules are not supported: {rules}"
        hint = "Set ignore.rules = true to leave rules out: then fields that they would encrypt are in clear."
        raise SchemaError(message, hint=hint)


def _enabled(schema: Any) -> Iterable[Any]:
    kinds = schema.rule_set
    if kinds is None:
        return
    for rules in (kinds.domain_rules, kinds.migration_rules, getattr(kinds, "encoding_rules", None)):
        yield from (rule for rule in rules or () if not rule.disabled)


def _mode(rule: Any) -> str:
    return str(rule.mode)
