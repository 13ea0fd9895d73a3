"""The state of an application: its stores as tables, its snapshots, its directories, and a new start without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError, RangeError
from riverrun.hosting.process import SystemClock
from riverrun.records import OffsetVector
from riverrun.releases.topology import build_topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from riverrun.hosting.state_schemas import StateSchemas
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.project.store_imports import Imported
    from riverrun.spark.store_files import Exported
    from riverrun.state.snapshots import Manifest
    from riverrun.worker.reset import Reset


class AppState:
    """The state of an application.

    Args:
        chosen: The application and its version.
    """

    def __init__(self, chosen: ChosenVersion) -> None:
        self._chosen = chosen

    def frame(self, store: str, at: str = "latest") -> Any:
        """Return a state store as a DataFrame of Spark (`riverrun.spark.stores.read_store`).

        Args:
            store: Name of the store, as in the topology.
            at: `latest`, an offset vector of the inputs, or the id of a run.

        Raises:
            InvalidStateStoreError: If there is no such store, or it has no changelog.
            RangeError: If the state at that point is no longer available.
        """
        from riverrun.spark.stores import read_store

        session = self._chosen.cluster.sessions.session()
        return read_store(self._chosen.connected(), store, session, build_topology, at=at)

    def export(
        self,
        store: str,
        target: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        *,
        at: str = "latest",
        options: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
    ) -> int:
        """Write all rows of a state store to a target, and replace its content.

        Args:
            store: The store's name.
            target: A directory, or the table of a `jdbc` target.
            format: `parquet`, `csv`, `json`, `jdbc` or any other that Spark knows.
            at: As in `frame`.
            options: The format's options.
            packages: Maven coordinates of libraries that the format needs.

        Returns:
            The number of rows.

        Raises:
            ConfigError: If the format does not exist.
            StreamsError: As in `frame`.
        """
        from riverrun.spark.formats import check_format, writer_options
        from riverrun.spark.stores import export_store, write_store

        sessions = self._chosen.cluster.sessions
        check_format(format, sessions.settings, packages)
        spark = sessions.session(packages)

        def write(frame: Any) -> int:
            return write_store(frame, target, format, writer_options(format, options or {}))

        return export_store(self._chosen.connected(), store, spark, build_topology, write, at=at)

    def export_files(self, store: str, target: Path, *, raw: bool = False, local: Path | None = None) -> Exported:
        """Write all rows of a store, as committed now, to Parquet, without Spark (`spark.store_files.export_rows`).

        With `local`, write the rows that a stopped worker has left on its disk instead. That needs no brokers if the version is
        named, and reads stores without a changelog, too.

        Args:
            store: Name of the store, as in the topology.
            target: A file that ends with `.parquet`, or a directory for one file per partition. Nothing may be there yet.
            raw: Whether columns hold the bytes of keys and values, which come back exactly.
            local: State directory of a stopped worker on this machine; None to read what is committed.

        Returns:
            The number of rows, the files and the partitions.

        Raises:
            InvalidStateStoreError: If there is no such store, it is no table, or it has no changelog. With `local`, if the
                directory has nothing of it.
            StateInUseError: If a worker uses the local state.
            ConfigError: If the target exists, or cannot be written.
        """
        from riverrun.spark.store_files import export_local_rows, export_rows

        if local is not None:
            return export_local_rows(self._chosen.loaded(), store, target, local, raw=raw)
        return export_rows(self._chosen.connected(), store, target, build_topology, raw=raw)

    def import_files(
        self, store: str, source: Path, *, replaces: bool = False, keeps_partitions: bool = False
    ) -> Imported:
        """Write the rows of Parquet files to a store of an application that does not run, all or none.

        Args:
            store: Name of the store, as in the topology.
            source: A file, or a directory with files that end with `.parquet`.
            replaces: Whether rows that the store has are deleted; without it the store must be empty.
            keeps_partitions: Whether the column `partition` says where rows go.

        Returns:
            The numbers of rows.

        Raises:
            InvalidStateStoreError: If there is no such store, it is no table, or has no changelog of its own.
            ConfigError: If files cannot be read, or do not have the columns of the store.
            StateError: If the store has rows, a row does not fit, or has expired. Nothing was written.
            UnderWayError: If a worker or a run processes the application.
        """
        from riverrun.project.store_imports import import_rows

        connected = self._chosen.connected()
        options = {"replaces": replaces, "keeps_partitions": keeps_partitions}
        return import_rows(connected, store, source, build_topology, **options)

    def snapshot(self) -> list[Manifest]:
        """Publish the current state of all tasks to `snapshot.url`, without disturbing running workers.

        Returns:
            The manifest of each snapshot.

        Raises:
            ConfigError: If there is no `snapshot.url`.
        """
        from riverrun.hosting.standby_tasks import publish_snapshots

        chosen = self._chosen
        if not chosen.config.streams.snapshot_url:
            message = f"No place is set for snapshots of {chosen.name}"
            raise ConfigError(message, hint=f'Set "snapshot.url" in [apps.{chosen.name}.config].')
        connected = chosen.connected().resolved()
        connected.prepare()
        return publish_snapshots(connected, SystemClock())

    def schemas(self) -> dict[str, list[str]]:
        """Return the forms that stored rows may have, by store and repartition topic; the latest one is last.

        Raises:
            BrokerError: If brokers do not answer.
        """
        return self._schemas().known()

    def accept_schema(self, store: str) -> list[str]:
        """Take the present code's serdes as those of all rows of a store, whatever has written them.

        A start then no longer refuses the store. A row that the serdes cannot read still ends its task when it is read.

        Args:
            store: Name of the store, or of the repartition topic without the application's id.

        Returns:
            The forms that no longer count.

        Raises:
            StateSchemaError: If there is no such store with a changelog, or it has no rows.
            BrokerError: If brokers do not answer.
        """
        return self._schemas().accept(store)

    def _schemas(self) -> StateSchemas:
        from riverrun.hosting.state_schemas import StateSchemas

        return StateSchemas(self._chosen.connected().resolved())

    def directories(self, state_dir: Path | None = None) -> list[Path]:
        """Return the directories of its state on this machine.

        Args:
            state_dir: Directory of all applications' state. Default: `state.dir`.
        """
        from riverrun.hosting.local_state import directories_of

        chosen = self._chosen
        return list(directories_of(chosen.application_id, state_dir or chosen.project.state_directory(chosen.config)))

    def clean_up(self, state_dir: Path | None = None) -> list[Path]:
        """Delete its state on this machine; workers restore theirs (`KafkaStreams.cleanUp`).

        Args:
            state_dir: As in `directories`.

        Returns:
            The deleted directories.
        """
        from riverrun.worker.reset import clean_up

        found = self.directories(state_dir)
        clean_up(found)
        return found

    def resume(self, start: str) -> None:
        """Set where the application continues whose committed offsets brokers have deleted. Its state stays as it is.

        Args:
            start: By input, the offset of the first record that it has not processed: `topic-0@12,topic-1@7`.

        Raises:
            UnderWayError: If a worker or a bounded run processes the application.
            RangeError: If it is not known to have lost these offsets, or was further, or the topic is shorter.
            TopicError: If a topic was deleted and created again.
        """
        from riverrun.hosting.continuing import resume

        try:
            offsets = OffsetVector.parse(start).offsets
        except ValueError as error:
            raise RangeError(str(error), hint="Write topic-0@12,topic-1@7.") from error
        resume(self._chosen.connected(), offsets)

    def plan_reset(self, start: str = "earliest") -> Reset:
        """Return the actions of a reset, without doing them.

        Args:
            start: New start of the inputs: `earliest`, `latest`, a vector or a time.

        Raises:
            RangeError: If it is not a point of the inputs.
            UnderWayError: If outputs of a run are held back: publish or discard them first.
        """
        from riverrun.spark.ranges import resolve
        from riverrun.worker.reset import plan_reset

        connected = self._chosen.connected()
        self._chosen.require_nothing_held(connected.version)
        offsets = resolve(connected, start, "latest").start
        return plan_reset(connected, offsets, self._chosen.project.application_ids)

    def reset(self, plan: Reset) -> None:
        """Start over: delete all results and state of the application.

        Args:
            plan: The actions, from `plan_reset`.

        Raises:
            StreamsError: If workers or a run are active.
        """
        from riverrun.worker.reset import reset

        reset(plan, self._chosen.cluster.admin)
