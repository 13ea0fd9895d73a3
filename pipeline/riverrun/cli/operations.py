"""Operates applications: `riverrun status`, `lag`, `reset`, `resume`, `clean-up`, `scale`, `skip`, `snapshot` and `state`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated, Any

import typer

from riverrun.cli.output import echo
from riverrun.cli.project import App, Version, confirm, flag, require_answer, settings_of
from riverrun.config.streams import MOST_THREADS
from riverrun.errors import RangeError
from riverrun.records import TopicPartition, counted, whole_number

Yes = Annotated[bool, flag("--yes", "-y", "Delete without asking first.")]
Store = Annotated[str, typer.Argument(help="Name of the store.")]
Server = Annotated[str | None, typer.Option(help="Address of an instance, host:port; defaults to application.server.")]

state_app = typer.Typer(
    help="Export and import the stores of an application, and look at the forms of their rows.", no_args_is_help=True
)


def status(context: typer.Context, app: App, version: Version = None, server: Server = None) -> None:
    """Show an application's instances. An instance that answers also shows its own tasks and the places of all others."""
    found = settings_of(context).project().app(app, version=version).status(server)
    echo(f"{found.application_id}: group {found.group}, {counted(len(found.members), 'instance')}")
    for member in found.members:
        echo(f"  {member}")
    if found.instance is not None:
        _show_instance(found.instance)
    elif found.members:
        echo("For its tasks, ask an instance: --server host:port")
    for warning in found.warnings:
        echo(f"Warning: {warning}", err=True)


def lag(context: typer.Context, app: App, version: Version = None) -> None:
    """Show by how many offsets an application is behind, for each partition of its source and repartition topics."""
    from rich.console import Console
    from rich.table import Table

    from riverrun.hosting.inputs import beyond_warning, total_text

    chosen = settings_of(context).project().app(app, version=version)
    found = chosen.lag()
    table = Table(title=chosen.application_id, title_justify="left")
    table.add_column("partition", overflow="fold")
    for name in ("committed", "end", "lag"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        committed = "none" if each.committed is None else str(each.committed)
        table.add_row(str(each.tp), committed, str(each.end), each.text)
    Console(emoji=False).print(table)
    internal = [each for each in found if each.is_internal]
    own = [each for each in found if not each.is_internal]
    echo(f"{total_text(own)}; {total_text(internal, 'in repartition topics')}")
    for warning in (beyond_warning(found), chosen.expiry_warning()):
        if warning is not None:
            echo(f"Warning: {warning}", err=True)


def reset(
    context: typer.Context,
    app: App,
    version: Version = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Where it reads next: earliest, latest, a vector (topic-0@12,topic-1@7) or a time."
        ),
    ] = "earliest",
    *,
    dry_run: Annotated[bool, flag("--dry-run", "Show what the command would do, and stop.")] = False,
    yes: Yes = False,
) -> None:
    """Let an application start over: delete its internal topics and local state, and set where it reads next."""
    chosen = settings_of(context).project().app(app, version=version)
    plan = chosen.state.plan_reset(start)
    question = f"Delete all that {plan.application_id} has computed?"
    # Whatever refuses comes first: what is shown below is done.
    if not dry_run:
        plan.require_nobody()
        require_answer(question, yes=yes)
    for topic in plan.topics:
        echo(f"delete topic {topic}")
    for directory in plan.directories:
        echo(f"delete local state {directory}")
    echo(f"set offsets {plan.offsets}")
    if dry_run:
        if plan.members:
            echo(f"The reset is refused while the group has members: {', '.join(plan.members)}")
        echo("Nothing was done")
        return
    confirm(question, yes=yes)
    chosen.state.reset(plan)
    echo(f"{plan.application_id} starts over")


def resume(
    context: typer.Context,
    app: App,
    version: Version = None,
    *,
    start: Annotated[str, typer.Option("--from", help="Where it reads next: topic-0@12,topic-1@7.")],
) -> None:
    """Set where an application continues whose committed offsets brokers have deleted. Its state stays as it is.

    Only offsets that brokers have forgotten can be set, to no earlier ones than a worker has begun with.
    """
    chosen = settings_of(context).project().app(app, version=version)
    chosen.state.resume(start)
    echo(f"{chosen.application_id} continues at {start}")


def clean_up(
    context: typer.Context,
    app: App,
    version: Version = None,
    state_dir: Annotated[Path | None, typer.Option(help="Directory of the local state; defaults to state.dir.")] = None,
    *,
    yes: Yes = False,
) -> None:
    """Delete an application's local state on this machine; workers restore theirs. With --version it asks no broker."""
    chosen = settings_of(context).project().app(app, version=version)
    found = chosen.state.directories(state_dir)
    if found:
        confirm(f"Delete {', '.join(map(str, found))}?", yes=yes)
    for directory in chosen.state.clean_up(state_dir):
        echo(f"Deleted local state {directory}")
    if not found:
        where = state_dir or chosen.project.state_directory(chosen.config)
        echo(f"There is no local state of {chosen.application_id} in {where.resolve()}")


def scale(
    context: typer.Context,
    app: App,
    threads: Annotated[int, typer.Argument(min=1, max=MOST_THREADS, help="Number of stream threads.")],
    server: Server = None,
) -> None:
    """Set the number of stream threads of an instance (num.stream.threads) while it runs."""
    chosen = settings_of(context).project().app(app)
    answer = chosen.scale(threads, server)
    address = server or chosen.config.streams.application_server
    echo(f"{address} runs {counted(answer['threads'], 'stream thread')}")


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _waited_for(waiting: Any) -> str:
    """Describe what a task waits for.

    >>> _waited_for({"inputs": ["clicks-1"], "tasks": ["0_0", "0_2"]})
    'records of clicks-1 (max.task.idle.ms) and 0_0 0_2, behind in event time'
    """
    inputs, tasks = " ".join(waiting["inputs"]), " ".join(waiting["tasks"])
    said = (inputs and f"records of {inputs} (max.task.idle.ms)", tasks and f"{tasks}, behind in event time")
    return " and ".join(filter(None, said))


def _show_instance(status: Any) -> None:
    echo(f"{status['server']} is {status['state']}{', paused' if status['paused'] else ''}:")
    done = f"{counted(status['processed'], 'record')} in {counted(status['commits'], 'commit')}"
    echo(f"  {counted(status['threads'], 'stream thread')}, {done}")
    echo(f"  active: {' '.join(status['active']) or 'none'}")
    for task, missing in status["restoring"].items():
        echo(f"  restoring: {task}, {'an unknown number of' if missing is None else missing} records missing")
    # Instances of earlier versions report neither this nor warnings.
    for task, waiting in status.get("waiting", {}).items():
        echo(f"  waiting: {task}, since {_time(waiting['since'])}, for {_waited_for(waiting)}")
    for task, behind in status["standby"].items():
        echo(f"  standby: {task}, {behind} records behind")
    for task, warnings in status.get("warnings", {}).items():
        for warning in warnings:
            echo(f"  warning: {task}: {warning}")
    everywhere: dict[str, list[str]] = {}
    for task, server in sorted(status["servers"].items()):
        everywhere.setdefault(server, []).append(task)
    for server, tasks in sorted(everywhere.items()):
        echo(f"{server} has {' '.join(tasks)}")


def skip(
    context: typer.Context,
    app: App,
    record: Annotated[
        str,
        typer.Argument(
            help="Place of the record as errors name it: topic-partition@offset, or with #number in a pack."
        ),
    ],
    version: Version = None,
    *,
    dry_run: Annotated[bool, flag("--dry-run", "Show what the command would skip, and stop.")] = False,
) -> None:
    """Skip one input record that cannot be processed. State and all other records stay as they are.

    The record must be the next one of its task, and no instance may run the task. It goes to the dead letter topic, if
    the application has one.
    """
    chosen = settings_of(context).project().app(app, version=version)
    planned = chosen.plan_skip(*_place(record))
    if dry_run:
        echo(f"{record} of task {planned.task_id} would be skipped; nothing was done")
        return
    done = chosen.skip(planned)
    echo(f"{record} of task {done.task_id} is skipped")


def _place(text: str) -> tuple[TopicPartition, int, int]:
    """Return the partition, the offset, and the number within a pack, 0 without one."""
    name, _, place = text.rpartition("@")
    offset, separator, number = place.partition("#")
    try:
        tp = TopicPartition.parse(name)
    except ValueError:
        tp = None
    if tp is None or whole_number(offset) is None or (separator and not whole_number(number)):
        raise RangeError(f"{text!r} does not name a record", hint="Write topic-partition@offset, such as clicks-0@8.")
    return tp, int(offset), int(number or 0)


def snapshot(context: typer.Context, app: App, version: Version = None) -> None:
    """Publish the present state of all tasks to snapshot.url. Workers continue meanwhile."""
    from riverrun.project.progress_bar import progress_bar

    chosen = settings_of(context).project().app(app, version=version)
    with progress_bar():
        published = chosen.state.snapshot()
    for manifest in published:
        echo(f"{manifest.task}: {manifest.name}, {len(manifest.files)} files, {manifest.size_bytes} bytes")
    echo(f"{len(published)} snapshots are at {chosen.config.streams.snapshot_url}")


@state_app.command("export")
def state_export(
    context: typer.Context,
    app: App,
    store: Store,
    to: Annotated[Path, typer.Option(help="A file that ends with .parquet, or a directory for a file per partition.")],
    version: Version = None,
    *,
    raw: Annotated[bool, flag("--raw", "Write keys and values as bytes, which come back exactly.")] = False,
    local: Annotated[
        Path | None, typer.Option(help="State directory of a stopped worker, whose rows are read instead.")
    ] = None,
) -> None:
    """Write all rows of a store, as committed now, to Parquet. The application may run meanwhile, and needs no Spark.

    With --local, the rows are those that a stopped worker has left on its disk. With --version as well, no broker is asked.
    """
    chosen = settings_of(context).project().app(app, version=version)
    done = chosen.state.export_files(store, to, raw=raw, local=local)
    echo(f"{counted(done.rows, 'row')} of {store} in {counted(len(done.files), 'file')} at {to}")
    if local is not None:
        echo(f"partitions: {', '.join(map(str, done.partitions))}")


@state_app.command("import")
def state_import(
    context: typer.Context,
    app: App,
    store: Store,
    source: Annotated[Path, typer.Argument(help="A Parquet file, or a directory with such files.")],
    version: Version = None,
    *,
    replace: Annotated[bool, flag("--replace", "Delete the rows that the store has, in the same transaction.")] = False,
    keep_partitions: Annotated[
        bool, flag("--keep-partitions", "Put each row where its column partition says.")
    ] = False,
) -> None:
    """Write the rows of Parquet files to a store of an application that does not run: all of them, or none."""
    state = settings_of(context).project().app(app, version=version).state
    done = state.import_files(store, source, replaces=replace, keeps_partitions=keep_partitions)
    echo(f"{counted(done.rows, 'row')} in {store}, in place of {done.replaced}")


@state_app.command("schemas")
def state_schemas(context: typer.Context, app: App, version: Version = None) -> None:
    """Show the forms in which the rows of each store and repartition topic were written. The latest one is last."""
    chosen = settings_of(context).project().app(app, version=version)
    found = chosen.state.schemas()
    for owner, forms in sorted(found.items()):
        echo(owner)
        for form in forms:
            echo(f"  {form}")
    if not found:
        echo(f"No rows of {chosen.application_id} are recorded")


@state_app.command("accept")
def state_accept(context: typer.Context, app: App, store: Store, version: Version = None) -> None:
    """Take the present code's classes as those of all rows of a store, so that the next start does not refuse them.

    A row that the code cannot read still ends its task when it is read.
    """
    chosen = settings_of(context).project().app(app, version=version)
    for form in chosen.state.accept_schema(store):
        echo(f"no longer compared: {form}")
    echo(f"{chosen.application_id} takes all rows of {store} as those of the present code")
