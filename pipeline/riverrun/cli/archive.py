"""`riverrun archive`: topics in Parquet, which outlive their retention."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.output import echo
from riverrun.cli.project import FAILED, Master, confirm, flag, settings_of
from riverrun.cli.transfers import follow_until_stopped
from riverrun.config.addons import is_of_others
from riverrun.config.archives import ENGINES
from riverrun.errors import ConfigError
from riverrun.records import counted

if TYPE_CHECKING:
    from riverrun.archive.archiving import Archived
    from riverrun.archive.manifest import ArchivedFile, TopicManifest
    from riverrun.project.archives import Archives
    from riverrun.project.riverrun import Riverrun

app = typer.Typer(help="Archive topics, so that what retention deletes can still be processed.", no_args_is_help=True)

Topics = Annotated[list[str], typer.Argument(help="Names of topics.")]
Url = Annotated[
    str | None,
    typer.Option(help="Place of the archive: a path, or a URL of fsspec. Defaults to that of streams.toml."),
]
AsJson = Annotated[bool, flag("--json", "Print JSON, one object per line.")]
_MEBIBYTE = 2**20


@app.command()
def write(
    context: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Names of [archives.NAME] in streams.toml, by default all, or names of topics."),
    ] = None,
    url: Url = None,
    engine: Annotated[
        str | None, typer.Option(help="local for this process, or spark. As streams.toml says, else local.")
    ] = None,
    master: Master = None,
    *,
    skip_lost: Annotated[bool, flag("--skip-lost", "Continue after records that are lost for good.")] = False,
    follow: Annotated[bool, flag("--follow", "Archive what comes to [archives.NAME] until Ctrl-C or SIGTERM.")] = False,
) -> None:
    """Archive what topics have had since they were archived last, up to their last stable offsets.

    Records are kept as they are: key, value and header bytes, offsets and times. An interrupted command continues where its
    manifest ends. With --url, all names are those of topics. Several processes with --follow share the partitions.
    """
    from riverrun.project.progress_bar import progress_bar

    if engine not in {None, *ENGINES}:
        raise ConfigError(f"There is no engine {engine!r}", hint="--engine is local or spark.")
    project = settings_of(context).project(master)
    declared, others = _chosen(project, topics or [], url)
    if follow:
        if len(declared) != 1 or others or engine not in {None, ENGINES[0]}:
            message = "--follow takes the name of one archive in streams.toml, without --url and --engine"
            raise ConfigError(
                message, hint="Declare topics and url in [archives.NAME]; start a process for each archive."
            )
        archive = project.archive(declared[0])
        follow_until_stopped(declared[0], partial(archive.follow, may_skip=skip_lost))
        return
    with progress_bar():
        for name in declared:
            _show_added(project.archive(name).write(engine=engine, may_skip=skip_lost))
        if others:
            archives = _archives(context, url, master)
            _show_added(archives.write(others, engine=engine or ENGINES[0], may_skip=skip_lost))


def _chosen(project: Riverrun, names: list[str], url: str | None) -> tuple[list[str], list[str]]:
    """Return the declared archives among the names, and all other names: those of topics."""
    known = project.config.section("archives")
    if not names and (url is not None or not known):
        message = "No topic is named" if url is not None else f"{project.config.path} declares no archive"
        raise ConfigError(message, hint="Name topics, or declare [archives.NAME] in streams.toml.")
    if url is not None:
        return [], names
    chosen = names or list(known)
    return [name for name in chosen if name in known], [name for name in chosen if name not in known]


def _show_added(found: list[Archived]) -> None:
    for done in found:
        added = f"{counted(done.records, 'record')} added, {done.size / _MEBIBYTE:.1f} MiB"
        echo(f"{done.manifest.topic}: {added if done.offsets else 'nothing is new'}")


@app.command("list")
def list_topics(context: typer.Context, url: Url = None, *, as_json: AsJson = False) -> None:
    """List the archived ranges of each topic, with their gaps and times."""
    archives = _archives(context, url)
    found = archives.topics()
    if as_json:
        for manifest in found:
            echo(manifest.encode().decode())
        return
    for manifest in found:
        for line in _lines(manifest):
            echo(line)
    if not found:
        echo("nothing is archived")
    for topic in archives.unlisted():
        echo(f"{topic}: has files that no manifest lists (riverrun archive verify {topic})")


@app.command()
def verify(context: typer.Context, topics: Topics, url: Url = None) -> None:
    """Read all files of topics, and compare their bytes and records with the manifest. Exits with 1 if one is damaged.

    Names files that no manifest lists, too: they are of killed archivers, or of running archivers.
    """
    archives, is_damaged = _archives(context, url), False
    for topic in topics:
        files = count = 0

        def note(_file: ArchivedFile) -> None:
            nonlocal files
            files += 1

        for damage in archives.verify(topic, note):
            echo(f"{topic}: {damage.reason}")
            count += 1
        echo(f"{topic}: {counted(files, 'file')} verified, {count} damaged")
        for left in archives.leftovers(topic):
            size = left.size / _MEBIBYTE
            echo(f"{topic}: no manifest lists {left.name} of {_time(left.modified_ms)}, {size:.1f} MiB")
        is_damaged = is_damaged or count > 0
    if is_damaged:
        raise typer.Exit(FAILED)


@app.command()
def compact(
    context: typer.Context,
    topics: Topics,
    url: Url = None,
    below: Annotated[
        int, typer.Option(min=1, max=10_000, help="Files smaller than this many MiB are joined with their neighbours.")
    ] = 32,
    *,
    by_key: Annotated[
        bool, flag("--by-key", "Drop records that a later one with their key has superseded instead.")
    ] = False,
) -> None:
    """Join small files, as frequent runs write them. Files that were replaced stay until the next compaction.

    With --by-key, the archive of a topic that brokers compact is compacted likewise: the last record of each key stays.
    """
    archives = _archives(context, url)
    for topic in topics:
        before = archives.topic(topic)
        after = archives.compact_by_key(topic) if by_key else archives.compact(topic, below * _MEBIBYTE)
        gone = sum(file.records for file in before.files) - sum(file.records for file in after.files)
        dropped = f", {counted(gone, 'superseded record')} dropped" if by_key else ""
        echo(f"{topic}: {counted(len(before.files), 'file')} became {len(after.files)}{dropped}")


@app.command()
def drop(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    url: Url = None,
    before: Annotated[
        str | None, typer.Option(help="Only files all of whose records have an earlier event time than this.")
    ] = None,
    *,
    leftovers: Annotated[
        bool, flag("--leftovers", "Only files of a day ago and earlier that no manifest lists: of killed archivers.")
    ] = False,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
) -> None:
    """Drop a topic from the archive, or its oldest files. Versions that still need them can no longer be computed.

    With --leftovers, the archive keeps everything, and is not asked about.
    """
    from riverrun.spark.ranges import time_ms

    archives = _archives(context, url)
    if leftovers:
        if before is not None:
            message = "--leftovers drops files that the archive does not have, and --before files that it has"
            raise ConfigError(message, hint="Use one command for each.")
        left = archives.drop_leftovers(topic)
        size = sum(each.size for each in left) / _MEBIBYTE
        echo(f"{topic}: {counted(len(left), 'leftover file')} dropped, {size:.1f} MiB")
        return
    manifest = archives.topic(topic)
    before_ms = None if before is None else time_ms(before)
    what = "everything" if before is None else f"what is earlier than {before}"
    files = counted(len(manifest.files), "file")
    confirm(f"Drop {what} of {topic} ({files}) from {archives.url}?", yes=yes)
    gone = archives.drop(topic, before_ms)
    echo(f"{topic}: {counted(len(gone), 'file')} dropped, {counted(sum(file.records for file in gone), 'record')}")


def _archives(context: typer.Context, url: str | None, master: str | None = None) -> Archives:
    from riverrun.project.archives import Archives

    project = settings_of(context).project(master)
    declared = (each for each in project.config.section("archives").values() if not isinstance(each, ConfigError))
    return Archives(project.cluster, url_of(project, url), declared)


def url_of(project: Riverrun, url: str | None) -> str:
    """Return the URL of the archive: the given one, or the only one of the project."""
    if url is not None:
        return url
    # A declaration with an error may be the one that is meant.
    for each in project.config.section("archives").values():
        if isinstance(each, ConfigError):
            raise each
    declared = {each.url for each in project.config.section("archives").values()}
    of_apps = (app.streams.archive_url for app in project.config.apps.values())
    # Add-ons only read theirs.
    known: list[str] = sorted({url for url in (*declared, *of_apps) if url and not is_of_others(url)})
    if len(known) != 1:
        message = f"streams.toml names {', '.join(known)}" if known else "streams.toml names no archive"
        raise ConfigError(
            message, hint="Say which one: --url; or declare [archives.NAME], or archive.url of applications."
        )
    return known[0]


def _lines(manifest: TopicManifest) -> list[str]:
    lines = []
    for partition in range(manifest.partitions):
        for stretch in manifest.stretches(partition):
            files = [each for each in manifest.of(partition) if stretch.start <= each.start < stretch.end]
            records = sum(each.records for each in files)
            size = sum(each.size for each in files) / _MEBIBYTE
            gaps = f", {counted(stretch.size - records, 'offset')} without one" if stretch.size > records else ""
            some = [each for each in files if each.records]
            first, last = (min(each.first_ms for each in some), max(each.last_ms for each in some)) if some else (0, 0)
            times = f", {_time(first)} to {_time(last)}" if some else ""
            of = f"{manifest.topic}-{partition}@{stretch}"
            lines.append(
                f"{of}: {counted(records, 'record')}{gaps}{times}, {counted(len(files), 'file')}, {size:.1f} MiB"
            )
    return lines


def _time(time_ms: int) -> str:
    """Return a time as text.

    >>> _time(0), _time(2**62)
    ('1970-01-01T00:00:00+00:00', '4611686018427387904 ms')
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    # Producers may set a time that no calendar has.
    except (OverflowError, ValueError):
        return f"{time_ms} ms"
