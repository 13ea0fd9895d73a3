"""Expectations of outputs, stores, inputs, runs and workers, in one form.

They are what a `quality` function returns, or suites in files that Great Expectations has written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config import call_attribute
from riverrun.config.checks import nearest, read_text
from riverrun.config.code import load_attribute
from riverrun.errors import ConfigError
from riverrun.extras import require_extra
from riverrun.hosting.process import uncollected
from riverrun.topology.nodes import SourceNode

if TYPE_CHECKING:
    from collections.abc import Collection

    from riverrun.config.code import PickledFunction
    from riverrun.topology.topology import Topology


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
        workers: Expectations of the work of running workers: how many records each task has read, how late they were, and
            how many were dropped by reason. Only checks of a live version judge them.
        actions: Great Expectations' own, such as `SlackNotificationAction`. Each runs after each part of a check.
        inputs: Expectations of the records that a bounded run with a gate reads, by source topic. Only its gate judges them.
    """

    outputs: Any = ()
    stores: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    runs: Sequence[Any] = ()
    # A release is not judged by the fields below, so its verdict does not depend on them (`suite_digest`).
    workers: Sequence[Any] = field(default=(), compare=False)
    actions: Sequence[Any] = field(default=(), compare=False)
    inputs: Mapping[str, Sequence[Any]] = field(default_factory=dict, compare=False)


def checks_of(where: str, given: Any, topology: Topology) -> Checks:
    """Return the result of a `quality` function as checks; `where` names the function in messages."""
    if not isinstance(given, Checks):
        return Checks(given)
    _require_known(where, given.stores, topology.stores, "a state store")
    patterns = [node.pattern for node in topology.nodes.values() if isinstance(node, SourceNode) and node.pattern]
    # A pattern may find a topic later.
    possible = {topic for topic in given.inputs if any(pattern.fullmatch(topic) for pattern in patterns)}
    _require_known(where, given.inputs, possible.union(topology.source_topics), "an input")
    _require_list(where, given.runs)
    _require_list(where, given.workers)
    return given


def _require_known(where: str, given: Mapping[str, Sequence[Any]], known: Collection[str], kind: str) -> None:
    for name, each in given.items():
        if name not in known:
            message = f"{where} has expectations of {name!r}, which is not {kind}"
            raise ConfigError(message, hint=nearest(str(name), known))
        _require_list(where, each)


def by_topic(where: str, given: Any, topics: Collection[str], logs: Collection[str]) -> dict[str, Expectations]:
    """Return the expectations of each output; `given` is a list, `Expectations`, or either by topic."""
    if not isinstance(given, Mapping):
        common = _of(where, given)
        return {topic: Expectations(common.table) if topic in logs else common for topic in topics}
    found = {topic: Expectations() for topic in topics}
    for topic, each in given.items():
        if topic not in found:
            message = f"{where} has expectations of {topic!r}, which is not an output"
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


# Names, or prefixes of names, of suites that are not about the records of an output.
DIFFERENCE, STORE, INPUT, RUNS, WORKERS = "difference.", "store.", "input.", "runs", "workers"


def declared(quality: str | PickledFunction | None) -> Any:
    """Return the expectations that an application's function returns or its files contain."""
    if quality is None:
        return []
    # Both import Great Expectations, with so many classes that the search for cycles takes a fifth of that time.
    with uncollected():
        # A path of files contains a separator, a function's reference never does.
        if isinstance(quality, str) and os.sep in quality:
            return read_suites(Path(quality))
        return call_attribute(quality)


def read_suites(path: Path) -> Checks:
    """Read suites of expectations from files in the format of Great Expectations' own store of suites.

    A suite has the name of the output that it is about. `difference.TOPIC` is about a topic's difference, `store.NAME` about
    a state store. `runs` is about bounded runs, `input.TOPIC` about the records that one with a gate reads, and `workers` about
    running workers.
    """
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not all(file.is_file() for file in files) or not files:
        message = f"There are no suites of expectations at {path}"
        raise ConfigError(message, hint="quality is module:function, a file of JSON, or a directory with such files.")
    require_extra("quality")
    tables: dict[str, list[Any]] = {}
    differences: dict[str, list[Any]] = {}
    stores: dict[str, list[Any]] = {}
    inputs: dict[str, list[Any]] = {}
    runs: list[Any] = []
    workers: list[Any] = []
    for file in files:
        name, expectations = _suite(file)
        if name == RUNS:
            runs += expectations
        elif name == WORKERS:
            workers += expectations
        elif name.startswith(DIFFERENCE):
            differences.setdefault(name.removeprefix(DIFFERENCE), []).extend(expectations)
        elif name.startswith(STORE):
            stores.setdefault(name.removeprefix(STORE), []).extend(expectations)
        elif name.startswith(INPUT):
            inputs.setdefault(name.removeprefix(INPUT), []).extend(expectations)
        else:
            tables.setdefault(name, []).extend(expectations)
    topics = {*tables, *differences}
    outputs = {topic: Expectations(tables.get(topic, ()), differences.get(topic, ())) for topic in sorted(topics)}
    return Checks(outputs, stores, runs, workers, inputs=inputs)


def _suite(file: Path) -> tuple[str, list[Any]]:
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The suite {file} cannot be read: {error}") from error
    is_suite = isinstance(content, dict) and isinstance(content.get("name"), str)
    if not is_suite or not isinstance(content.get("expectations"), list):
        message = f"{file} is not a suite of expectations"
        raise ConfigError(
            message, hint='A suite is {"name": "TOPIC", "expectations": [{"type": ..., "kwargs": {...}}]}.'
        )
    return content["name"], [_expectation(file, place, each) for place, each in enumerate(content["expectations"], 1)]


_OPTIONS = ("meta", "notes", "description", "severity")
# Great Expectations adds these to files that it saves.
_OF_THEIRS = ("id", "rendered_content", "expectation_context", "success_on_last_run")


def _expectation(file: Path, place: int, given: Any) -> Any:
    """Return the expectation at a place of a suite (from 1), as Great Expectations' own object."""
    from great_expectations.exceptions import ExpectationNotFoundError, GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    import riverrun.quality.last_runs  # noqa: F401, PLC0415 - registers its expectations

    where, name = f"{file}: expectation {place}", ""
    try:
        kind, kwargs = _parts(given)
        own = _class_named(kind) if ":" in kind else None
        name = kind if own is None else own.expectation_type
        options = {key: given[key] for key in _OPTIONS if given.get(key) is not None}
        return ExpectationConfiguration(type=name, kwargs=dict(kwargs), **options).to_domain_obj()
    except ConfigError as error:
        raise ConfigError(f"{where} cannot be used: {error.message}", hint=error.hint) from error
    except ExpectationNotFoundError as error:
        message = f"{where}: there is no expectation {given['type']!r}"
        known = nearest(given["type"], list_registered_expectation_implementations())
        raise ConfigError(message, hint=f"{known} A class of your own is written as module:ClassName.") from error
    except (GreatExpectationsError, TypeError, ValueError) as error:
        message = f"{where} cannot be used: {' '.join(str(error).split())}: {given}"
        raise ConfigError(message, hint=_nearest_argument(error, name)) from error


def _parts(given: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the type and the arguments of an expectation in a file; refuse keys that nobody reads."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{given!r} is not an object", hint='An expectation is {"type": ..., "kwargs": {...}}.')
    for key, kind in (("type", str), ("kwargs", Mapping)):
        if not isinstance(given.get(key), kind):
            message = f"{key!r} is missing: {given}" if key not in given else f"{key} is {given[key]!r}"
            raise ConfigError(message, hint='An expectation is {"type": ..., "kwargs": {...}}.')
    for key in given.keys() - {"type", "kwargs", *_OPTIONS, *_OF_THEIRS}:
        raise ConfigError(f"there is no {key!r}: {given}", hint=nearest(str(key), ("type", "kwargs", *_OPTIONS)))
    return given["type"], given["kwargs"]


def _class_named(reference: str) -> Any:
    from great_expectations.expectations.expectation import Expectation

    found = load_attribute(reference)
    if not (isinstance(found, type) and issubclass(found, Expectation)):
        message = f"{reference} is {found!r}, not a class of expectations"
        raise ConfigError(message, hint="It must be a subclass of great_expectations.expectations.Expectation.")
    return found


def _nearest_argument(error: Exception, name: str) -> str | None:
    """Return a hint with the argument that was meant, if the error is about an unknown one."""
    from great_expectations.expectations.registry import get_expectation_impl

    unknown = [each["loc"][-1] for each in getattr(error, "errors", list)() if each["type"] == "value_error.extra"]
    fields = get_expectation_impl(name).__fields__ if unknown else {}
    return nearest(str(unknown[0]), fields) if unknown else None
