"""Suites of expectations: returned by a function, or read from files that Great Expectations has written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config import call_attribute
from riverrun.config.checks import nearest, read_text
from riverrun.errors import ConfigError
from riverrun.extras import require_extra
from riverrun.quality.expectations import Checks, Expectations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.config.code.functions import PickledFunction

DIFFERENCE, STORE, RUNS, WORKERS = "difference.", "store.", "runs", "workers"
"""Prefixes of the names of suites that are not about the records of an output."""


def declared(quality: str | PickledFunction | None) -> Any:
    """Return the expectations that an application's function returns or its files contain.

    Args:
        quality: The value of `AppConfig.quality`; a path of files contains a path separator.

    Raises:
        ConfigError: If the function cannot be called, or a file cannot be read.
    """
    if quality is None:
        return []
    if isinstance(quality, str) and os.sep in quality:
        return read_suites(Path(quality))
    return call_attribute(quality)


def read_suites(path: Path) -> Checks:
    """Read suites of expectations from files in the format of Great Expectations' own store of suites.

    A suite has the name of the output that it is about. `difference.TOPIC` is about a topic's difference, `store.NAME` about a
    state store, `runs` about bounded runs, and `workers` about running instances.

    Args:
        path: A file, or a directory with files at any depth.

    Raises:
        ConfigError: If there are no suites, or one cannot be read.
    """
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not all(file.is_file() for file in files) or not files:
        message = f"There are no suites of expectations at {path}"
        raise ConfigError(message, hint="quality is module:function, a file of JSON, or a directory with such files.")
    require_extra("quality")
    tables: dict[str, list[Any]] = {}
    differences: dict[str, list[Any]] = {}
    stores: dict[str, list[Any]] = {}
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
        else:
            tables.setdefault(name, []).extend(expectations)
    topics = {*tables, *differences}
    outputs = {topic: Expectations(tables.get(topic, ()), differences.get(topic, ())) for topic in sorted(topics)}
    return Checks(outputs, stores, runs, workers)


def _suite(file: Path) -> tuple[str, list[Any]]:
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError) as error:
        message = f"The suite {file} cannot be read: {error}"
        raise ConfigError(message) from error
    is_suite = isinstance(content, dict) and isinstance(content.get("name"), str)
    if not is_suite or not isinstance(content.get("expectations"), list):
        message = f"{file} is no suite of expectations"
        raise ConfigError(
            message, hint='A suite is {"name": "TOPIC", "expectations": [{"type": ..., "kwargs": {...}}]}.'
        )
    return content["name"], [_expectation(file, each) for each in content["expectations"]]


def _expectation(file: Path, given: Mapping[str, Any]) -> Any:
    from great_expectations.exceptions import ExpectationNotFoundError, GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    try:
        options = {key: given[key] for key in ("meta", "notes", "severity") if given.get(key) is not None}
        made = ExpectationConfiguration(type=given["type"], kwargs=dict(given["kwargs"]), **options)
        return made.to_domain_obj()
    except ExpectationNotFoundError as error:
        message = f"{file}: there is no expectation {given['type']!r}"
        hint = nearest(given["type"], list_registered_expectation_implementations())
        raise ConfigError(message, hint=hint) from error
    except (GreatExpectationsError, KeyError, TypeError, ValueError) as error:
        told = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        message = f"{file}: an expectation cannot be used: {told}: {given}"
        raise ConfigError(message) from error
