"""Add-ons: packages that bring commands, and loaders of topologies. Riverrun's own plug in as those of others do."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from riverrun.config.code import PickledFunction, load_attribute
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

GROUP = "riverrun.addons"
"""The group of entry points that name add-ons."""


@dataclass(frozen=True, slots=True)
class TopologyLoader:
    """Turns files of one kind into topologies. Functions are named as `module:function`, and imported when they are needed.

    Args:
        build: Function of a file's text, an empty `StreamsBuilder` and `file=`, the path; it returns the `Topology`.
        digests: Function of a file's text and its path; it returns a digest per part, by name. The plan of a release lists
            the parts whose digests differ; none if left out.
        queries: Function of the process that answers queries of an instance; such topologies answer none if left out.
    """

    build: str
    digests: str | None = None
    queries: str | None = None


@dataclass(frozen=True, slots=True)
class AddOn:
    """The parts of an add-on. An entry point in the group `riverrun.addons` names it, as `module:attribute`.

    Args:
        commands: For each further command of `riverrun`, its function or its `typer.Typer`, as `module:attribute`.
        topologies: Loaders of files that `topology` in `streams.toml` may name, by suffix, such as `.sql`.
        archives: For each prefix of `archive.url`, such as `acme` of `acme+s3://...`, a function of that URL. It returns an
            object with the methods of `riverrun.kafka.admin.EarlierRecords`: the records in front of topics.
        sections: For each further section of `streams.toml`, a function of the file's path, the name and the content of
            `[SECTION.NAME]`, and the environment variables. It returns what the table declares. If that reads or writes topics,
            its attribute `links` (`riverrun.config.links.Links`) puts it into the graph of the project.
        methods: For each further method of `Riverrun`, a function whose first argument is the project.
    """

    commands: Mapping[str, str] = field(default_factory=dict)
    topologies: Mapping[str, TopologyLoader] = field(default_factory=dict)
    archives: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)


_KINDS = {
    "commands": "command",
    "topologies": "suffix",
    "archives": "prefix of archives",
    "sections": "section",
    "methods": "method",
}
"""The parts of add-ons, as messages name one."""


# Entry points would do for these as well. But reading them costs each process 40 ms and 3 MiB, and workers of an
# application in SQL need none of others; nor would an editable install see new ones before it is installed again.
BUILT_IN: Mapping[str, AddOn] = {
    "transfers": AddOn(
        commands={"import": "riverrun.cli.transfers:import_topic", "export": "riverrun.cli.transfers:export_topic"},
        sections={
            "exports": "riverrun.config.exports:export_config",
            "imports": "riverrun.config.imports:import_config",
        },
        methods={
            name: f"riverrun.project.transfers:{name}"
            for name in ("run_import", "run_export", "export", "declared_import")
        },
    ),
    "archive": AddOn(
        commands={"archive": "riverrun.cli.archive:app", "try": "riverrun.cli.trial:try_out"},
        archives={"": "riverrun.archive.one_log:ArchivedLog"},
        sections={"archives": "riverrun.config.archives:archive_config"},
        methods={"archive": "riverrun.project.archives:archive"},
    ),
    "sql": AddOn(
        commands={"sql": "riverrun.cli.sql:sql"},
        topologies={
            ".sql": TopologyLoader(
                "riverrun.sql.planning.planner:build_sql",
                "riverrun.sql.statement_files:statement_digests",
                "riverrun.service.query_computing:compute_queries",
            )
        },
    ),
    "neighbours": AddOn(sections={"neighbours": "riverrun.config.neighbours:neighbour_config"}),
    "console": AddOn(commands={"console": "riverrun.cli.console:console"}),
    "demo": AddOn(commands={"demo": "riverrun.cli.demo:app"}),
}
"""The add-ons of this distribution."""


def others() -> Mapping[str, AddOn]:
    """Return the add-ons of other distributions, by their names for messages."""
    found = loaded_others()
    if isinstance(found, ConfigError):
        raise found
    return found


@cache
def loaded_others() -> Mapping[str, AddOn] | ConfigError:
    """Return the add-ons of other distributions; the error if one is wrong, so that it is looked for once."""
    try:
        return _load_others()
    except ConfigError as error:
        return error


def _load_others() -> Mapping[str, AddOn]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - most processes need none of them

    found: dict[str, AddOn] = {}
    for point in entry_points(group=GROUP):
        name = f"{point.name!r} of {point.dist.name} {point.dist.version}" if point.dist else repr(point.name)
        found[name] = part_of(name, point.value)
        if not isinstance(found[name], AddOn):
            message = f"Add-on {name} cannot be loaded: {point.value} is of type {type(found[name]).__name__}"
            raise ConfigError(message, hint="Its entry point must name a riverrun.config.AddOn.")
        for method in found[name].methods:
            if method.startswith("_"):
                message = f"Add-on {name} has a method {method!r}, and names that begin with _ are private"
                raise ConfigError(message, hint="Rename its method.")
    _refuse_doubles(found)
    return found


def part_of(name: str, reference: str) -> Any:
    """Return the object that `module:attribute` of an add-on names."""
    try:
        return load_attribute(reference)
    except ConfigError as error:
        message = f"Add-on {name} cannot be loaded: {error.message}"
        raise ConfigError(message, hint="Install another version of it, or uninstall it.") from error


def loader_of(topology: str | PickledFunction) -> TopologyLoader | None:
    """Return the loader of the file that a topology is; None if a function builds it.

    >>> loader_of("orders.sql").build
    'riverrun.sql.planning.planner:build_sql'
    >>> loader_of("shop.orders:build") is None
    True
    """
    suffix = "" if isinstance(topology, PickledFunction) else PurePath(topology).suffix
    if not suffix or ":" in suffix:
        return None
    own: Mapping[str, TopologyLoader] = parts("topologies", BUILT_IN)
    return own[suffix] if suffix in own else parts("topologies", others()).get(suffix)


def prefix_of(url: str) -> str:
    """Return the prefix by which an archive's URL names an add-on; empty if it has none.

    >>> prefix_of("acme+s3://bucket"), prefix_of("s3://bucket"), prefix_of("/data/a+b")
    ('acme', '', '')
    """
    scheme, separator, _ = url.partition("://")
    return scheme.partition("+")[0] if separator and "+" in scheme else ""


def is_of_others(url: str) -> bool:
    """Return whether an add-on of another distribution reads the archive at a URL."""
    prefix = prefix_of(url)
    return bool(prefix) and prefix in parts("archives", others())


def parts(kind: str, add_ons: Mapping[str, AddOn]) -> dict[str, Any]:
    """Return the parts of one kind that add-ons have, by name; the kind is a field of `AddOn`."""
    return {name: part for each in add_ons.values() for name, part in getattr(each, kind).items()}


def loaded_part(kind: str, name: str) -> Any:
    """Return the object that a part names, of Riverrun's own add-ons first; None if no add-on has it."""
    own = parts(kind, BUILT_IN)
    if name in own:
        return load_attribute(own[name])
    for add_on, each in others().items():
        if name in getattr(each, kind):
            return part_of(add_on, getattr(each, kind)[name])
    return None


def refuse_taken(kind: str, taken: Collection[str]) -> None:
    """Refuse others' add-ons that have a part with the name of one in Riverrun's core."""
    for name, add_on in others().items():
        for each in getattr(add_on, kind):
            if each in taken:
                message = f"Add-on {name} has a {_KINDS[kind]} {each!r}, as Riverrun has"
                raise ConfigError(message, hint=f"Uninstall it, or rename its {_KINDS[kind]}.")


def _refuse_doubles(found: Mapping[str, AddOn]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for name, add_on in {**{repr(name): each for name, each in BUILT_IN.items()}, **found}.items():
        for named in ((word, each) for kind, word in _KINDS.items() for each in getattr(add_on, kind)):
            owner = owners.setdefault(named, name)
            if owner != name:
                message = f"Add-ons {owner} and {name} have the same {named[0]}, {named[1]!r}"
                raise ConfigError(message, hint="Uninstall one of them.")
