"""Converts the values that a `quality` function may return to one form: expectations of outputs, stores, runs and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import nearest
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Expectations:
    """Expectations that the data of an output has to meet before a version goes live: Great Expectations' own, with severities.

    A `quality` function returns a list, for the records of each output; `Expectations`, for each output; or either by topic.

    Args:
        table: Expectations of the rows that the candidate has computed; of a log, those of its records.
        difference: Expectations of the rows of both versions side by side. Logs have none.
    """

    table: Sequence[Any] = field(default=())
    difference: Sequence[Any] = field(default=())


@dataclass(frozen=True, slots=True)
class Checks:
    """All checks of a version, as returned by a `quality` function.

    Args:
        outputs: A list, for the records of each output; `Expectations`, for each output; or either by topic.
        stores: Expectations of the rows of state stores, by store.
        runs: Expectations of the version's bounded runs: how many records they have read, and dropped by reason.
        workers: Expectations of the work of running instances: how many records each task has read, how late they were, and
            how many were dropped by reason. Only checks of a live version judge them.
        actions: Great Expectations' own, such as `SlackNotificationAction`. Each runs after each part of a check.
    """

    outputs: Any = ()
    stores: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    runs: Sequence[Any] = ()
    workers: Sequence[Any] = field(default=(), compare=False)
    actions: Sequence[Any] = field(default=(), compare=False)


def checks_of(where: str, given: Any, stores: Collection[str]) -> Checks:
    """Return the result of a `quality` function as checks.

    Args:
        where: The function that returned it, for messages.
        given: `Checks`, or a value that its `outputs` accepts.
        stores: The state stores.

    Raises:
        ConfigError: If a store does not exist, or the value is something else.
    """
    if not isinstance(given, Checks):
        return Checks(given)
    for store, each in given.stores.items():
        if store not in stores:
            message = f"{where} has expectations of {store!r}, which is no state store"
            raise ConfigError(message, hint=nearest(str(store), stores))
        _require_list(where, each)
    _require_list(where, given.runs)
    _require_list(where, given.workers)
    return given


def by_topic(where: str, given: Any, topics: Collection[str], logs: Collection[str]) -> dict[str, Expectations]:
    """Return the expectations of each output.

    Args:
        where: The function that returned them, for messages.
        given: A list, for the table of each output; `Expectations`, for each output; or either of these by topic.
        topics: The outputs.
        logs: The outputs that are logs.

    Raises:
        ConfigError: If an output does not exist, is a log and has no difference, or the value is something else.
    """
    if not isinstance(given, Mapping):
        common = _of(where, given)
        return {topic: Expectations(common.table) if topic in logs else common for topic in topics}
    found = {topic: Expectations() for topic in topics}
    for topic, each in given.items():
        if topic not in found:
            message = f"{where} has expectations of {topic!r}, which is no output"
            raise ConfigError(message, hint=nearest(str(topic), found))
        found[topic] = _of(where, each)
        if topic in logs and found[topic].difference:
            message = f"{where} has expectations of the difference of {topic}, which is a log"
            raise ConfigError(message, hint="Logs are not compared: give expectations of its records (table=).")
    return found


def _of(where: str, given: Any) -> Expectations:
    if isinstance(given, Expectations):
        return given
    _require_list(where, given)
    return Expectations(given)


def _require_list(where: str, given: Any) -> None:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        message = f"{where} returns {given!r}"
        hint = (
            "It must return a list of expectations, Expectations(table=, difference=), these by topic, or Checks(...)."
        )
        raise ConfigError(message, hint=hint)
