"""Generates the page of every key of `streams.toml`: `python -m tests.pages.settings docs/reference/config.md`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.archives import ArchiveConfig
from riverrun.config.exports import COLUMN_TYPES, NUMBERS, OF_FILES, ExportConfig
from riverrun.config.imports import CHOICES as IMPORT_CHOICES
from riverrun.config.imports import OPTIONS, POLLING, ImportConfig
from riverrun.config.neighbours import NeighbourConfig
from riverrun.config.parsing import NOT_THE_USERS
from riverrun.config.sections import CLIENT_SETTINGS, CONSOLE_KEYS, CONSOLE_SERVER, SERDE_SETTINGS, AppConfig
from riverrun.config.streams import PREFIXED, SETTINGS, StreamsConfig, dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from dataclasses import Field

_HEAD = """\
# Keys of streams.toml

`python -m tests.pages.settings` makes this page from the declarations of the settings.
[Configuration](../configuration.md) explains them with an example.

Unknown keys and impossible values are refused before anything starts.
Quote names with dots; TOML splits them otherwise.
"""
_KAFKA = """
## `[kafka]`

librdkafka's properties, for every client, by librdkafka's names.
`${NAME}` is replaced by an environment variable, `${file:/PATH}` by what that file says.

| Key | Type | Default | Meaning |
|---|---|---|---|
| `bootstrap.servers` | text | required | Addresses of brokers, `host:port`, separated by commas. |
| `unsafe.properties` | list of text | `[]` | Properties that may be set although clients load code or run commands by them: \
`plugin.library.paths`, `sasl.kerberos.kinit.cmd`, `ssl.engine.id`, `ssl.engine.location`, `ssl.providers`. |
| `oauth_cb` | text | none | `module:function` that returns tokens for logins with `OAUTHBEARER`. |
| any other property | text, number, true/false | librdkafka's | As librdkafka documents it. |

Correctness rests on some properties, which cannot be set, with or without a prefix:

| Property | Why |
|---|---|
"""
_SPARK = """
## `[spark]`

Settings of Spark sessions, by Spark's names.
`${NAME}` is replaced by an environment variable, `${file:/PATH}` by what that file says.

| Key | Type | Default | Meaning |
|---|---|---|---|
| `spark.*` | any | Spark's | As Spark documents it. `--master` comes before `spark.master` and `spark.remote`. |
"""
_REGISTRY = """
## `[schema_registry]`

Settings of the schema registry, by the names of Confluent's client.
`${NAME}` is replaced by an environment variable, `${file:/PATH}` by what that file says.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""
_CONSOLE = """
## `[console]`

Where `riverrun console` answers, by the names that `[apps.NAME.config]` has for an instance. `${NAME}` is replaced in secrets.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""
_LOGGING = """
## `[logging]`

What Python's `logging.config.dictConfig` takes, for commands and all processes that run functions of applications.

| Key | Type | Default | Meaning |
|---|---|---|---|
| `formatters`, `filters`, `handlers`, `loggers`, `root`, `incremental`, `version` | any | Python's | As Python documents it. |
| `disable_existing_loggers` | true/false | `false` | Whether loggers that this section does not name are switched off. |
"""
_APPS = """
## `[apps.NAME]`

One application. The application id is `NAME-VERSION`.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""
_EXPORTS = """
## `[exports.NAME]`

A topic, and the target that `riverrun export NAME --follow` keeps up to date.
Exactly one of `table`, `format` and `sink` is set. A table of Iceberg has a `catalog`, and no target.
`${NAME}` in the target is replaced by an environment variable, `${file:/PATH}` by what that file says.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""
_IMPORTS = """
## `[imports.NAME]`

A table or files, and the topic that `riverrun import NAME --follow` keeps up to date.
Exactly one of `table`, `query` and `format` is set. Tables and queries need `incremental`.
`${NAME}` in the source is replaced by an environment variable, `${file:/PATH}` by what that file says.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""
_ARCHIVES = """
## `[archives.NAME]`

Topics, and the place where `riverrun archive write NAME` keeps them.
`${NAME}` in the URL is replaced by an environment variable, `${file:/PATH}` by what that file says.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""
_NEIGHBOURS = """
## `[neighbours.NAME]`

A program outside the project, in the graph that `riverrun plan` shows. At least one of its keys is set.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""
_STREAMS = """
## `[apps.NAME.config]`

Kafka Streams' settings by their own names. The last column shows whether Kafka has the setting or only Riverrun.

| Key | Type | Default | Meaning | Of |
|---|---|---|---|---|
"""
_PREFIXED = """
### Prefixes

The part after a prefix names one setting.

| Key | Type | Default | Meaning | Of |
|---|---|---|---|---|
"""
_KINDS = {
    "str": "text",
    "str | PickledFunction": "text",
    "int": "number",
    "bool": "true/false",
    "tuple[str, ...]": "list of texts",
}
_UNITS = {"ms": "ms", "bytes": "bytes"}
_ARGUMENT = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)
_COLUMN_TYPES = f"Allowed: {', '.join(f'`{kind}`' for kind in COLUMN_TYPES)}."
_TABLES = ("versions", "outputs")
"""Keys of an application whose values are tables."""


def page() -> str:
    """Return the page as Markdown."""
    refused = {key.partition(".")[2]: why for key, why in NOT_THE_USERS.items()}
    return "".join(
        [
            _HEAD,
            _KAFKA,
            *(_row(f"`{name}`", why) for name, why in sorted(refused.items())),
            _SPARK,
            _REGISTRY,
            *_registry_rows(),
            _CONSOLE,
            *_console_rows(),
            _LOGGING,
            _APPS,
            *_app_rows(),
            _EXPORTS,
            *_export_rows(),
            _IMPORTS,
            *_import_rows(),
            _ARCHIVES,
            *_archive_rows(),
            _NEIGHBOURS,
            *_neighbour_rows(),
            _STREAMS,
            *_streams_rows(each for each in fields(StreamsConfig) if dotted(each.name) not in PREFIXED),
            _PREFIXED,
            *_streams_rows(each for each in fields(StreamsConfig) if dotted(each.name) in PREFIXED),
        ]
    )


def meanings(declared: type) -> Mapping[str, str]:
    """Return the meaning of each field: the text below it, or in the docstring of its class."""
    found = dict(_ARGUMENT.findall(declared.__doc__ or ""))
    (body,) = ast.parse(inspect.getsource(declared)).body
    assert isinstance(body, ast.ClassDef)
    for each, below in pairwise(body.body):
        match each, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return {name: " ".join(text.split()) for name, text in found.items()}


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n".replace("<", "&lt;")


def _registry_rows() -> Iterator[str]:
    for key, setting in {**CLIENT_SETTINGS, **SERDE_SETTINGS}.items():
        kind = setting.kind if isinstance(setting.kind, type) else setting.kind[0]
        default = "required" if key == "url" else _shown(setting.default)
        yield _row(f"`{key}`", _with_unit(key, _KINDS[kind.__name__]), default, setting.meaning)


def _console_rows() -> Iterator[str]:
    settings = {dotted(each.name): each for each in fields(StreamsConfig)}
    for key in CONSOLE_KEYS:
        default = CONSOLE_SERVER if key == "application.server" else settings[key].default
        meaning = "Address, `host:port`, of the page." if key == "application.server" else "As of an instance."
        yield _row(f"`{key}`", SETTINGS[key].values.type_name, _shown(default), meaning)


def _app_rows() -> Iterator[str]:
    means = meanings(AppConfig)
    for each in fields(AppConfig):
        if each.name in {"name", "streams", "schema_registry", "logging", "elsewhere"}:
            continue
        if each.name == "carry":
            yield _row("`[apps.NAME.carry.VERSION]`", "table", "empty", means[each.name])
        elif each.name in _TABLES:
            yield _row(f"`[apps.NAME.{each.name}]`", "table", "empty", means[each.name])
        else:
            kind = _KINDS[str(each.type).removesuffix(" | None")]
            yield _row(f"`{each.name}`", kind, _shown(each.default), means[each.name])


def _export_rows() -> Iterator[str]:
    means = meanings(ExportConfig)
    for each in fields(ExportConfig):
        if each.name == "consumer":
            yield _row("`consumer.*`", "text, number, true/false", "librdkafka's", means[each.name])
        elif each.name == "catalog":
            yield _row("`[exports.NAME.catalog]`", "table", "empty", means[each.name])
        elif each.name == "columns":
            yield _row("`[exports.NAME.columns]`", "table", "empty", f"{means[each.name]} {_COLUMN_TYPES}")
        elif each.name != "name":
            default = _shown(each.default or None) if each.name != "topic" else "required"
            yield _row(f"`{each.name}`", _KINDS[str(each.type)], default, " ".join(_export_words(each.name, means)))


def _import_rows() -> Iterator[str]:
    means = meanings(ImportConfig)
    for each in fields(ImportConfig):
        if each.name == "options":
            of = "; ".join(
                f"{form}: {', '.join(f'`{name}`' for name in names)}" for form, names in OPTIONS.items() if names
            )
            yield _row("`[imports.NAME.options]`", "table", "empty", f"{means[each.name]} Of {of}.")
        elif each.name != "name":
            default = "required" if each.name in {"topic", "source"} else _shown(each.default or None)
            default = "`0`" if each.default == 0 and each.name in POLLING else default
            yield _row(f"`{each.name}`", _KINDS[str(each.type)], default, " ".join(_import_words(each.name, means)))


def _import_words(key: str, means: Mapping[str, str]) -> Iterator[str]:
    yield means[key]
    if key in IMPORT_CHOICES:
        yield f"Allowed: {', '.join(f'`{value}`' for value in IMPORT_CHOICES[key])}."
    if key in POLLING:
        yield f"At least {POLLING[key][0]}, at most {POLLING[key][1]}."


def _archive_rows() -> Iterator[str]:
    means = meanings(ArchiveConfig)
    for each in fields(ArchiveConfig):
        if each.name == "consumer":
            yield _row("`consumer.*`", "text, number, true/false", "librdkafka's", means[each.name])
        elif each.name == "catalog":
            yield _row("`[archives.NAME.catalog]`", "table", "empty", means[each.name])
        elif each.name != "name":
            kind = _KINDS[str(each.type).removesuffix(" | None")]
            yield _row(f"`{each.name}`", kind, _shown(each.default), means[each.name] + _bounds_of(each.name))


def _neighbour_rows() -> Iterator[str]:
    means = meanings(NeighbourConfig)
    for each in fields(NeighbourConfig):
        if each.name != "name":
            yield _row(f"`{each.name}`", _KINDS[str(each.type)], _shown(each.default), means[each.name])


def _export_words(key: str, means: Mapping[str, str]) -> Iterator[str]:
    yield means[key]
    if key in OF_FILES:
        yield f"Of files: `{OF_FILES[key]}`."
    if key in NUMBERS:
        yield _bounds_of(key).strip()


def _bounds_of(key: str) -> str:
    return f" At least {NUMBERS[key][0]}, at most {NUMBERS[key][1]}." if key in NUMBERS else ""


def _streams_rows(settings: Iterable[Field[Any]]) -> Iterator[str]:
    means = meanings(StreamsConfig)
    for each in settings:
        key = dotted(each.name)
        values, is_kafkas = SETTINGS[key]
        is_prefix = key in PREFIXED
        default = "none" if is_prefix else _shown(each.default)
        meaning = f"{means[each.name]} {values.bounds}".rstrip()
        name = f"`{key}.*`" if is_prefix else f"`{key}`"
        yield _row(name, _with_unit(key, values.type_name), default, meaning, "Kafka" if is_kafkas else "Riverrun")


def _with_unit(key: str, kind: str) -> str:
    unit = _UNITS.get(key.rpartition(".")[2])
    return f"{kind}, {unit}" if unit and kind == "number" else kind


def _shown(value: Any) -> str:
    """Return a default as TOML spells it."""
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case str():
            return f'`"{value}"`'
        case ():
            return "`[]`"
        case _:
            return "required" if value is MISSING else f"`{value}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
