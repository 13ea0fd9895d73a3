"""State stores of an application as DataFrames of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.releases.versions.build import build_topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.project.chosen_version import ChosenVersion


def store_frame(chosen: ChosenVersion, store: str, at: str) -> Any:
    """Return a state store as a DataFrame; see `read_store`."""
    from riverrun.spark.store_frames.stores import read_store

    return read_store(chosen.connected(), store, chosen.cluster.sessions.session(), build_topology, at=at)


def write_store_to(
    chosen: ChosenVersion,
    store: str,
    target: str,
    form: str,
    *,
    at: str,
    options: Mapping[str, str] | None,
    packages: Sequence[str],
) -> int:
    """Write all rows of a state store to a target, and return their number.

    Args:
        chosen: The application.
        store: The store's name.
        target: A directory, or a table.
        form: A format that Spark knows.
        at: `latest`, an offset vector of the inputs, or the id of a run.
        options: The format's options.
        packages: Maven coordinates of libraries that the format needs.

    Raises:
        ConfigError: If the format does not exist.
    """
    from riverrun.spark.store_frames.stores import export_store, write_store
    from riverrun.transfers.files import writer_options
    from riverrun.transfers.transfer_checks import check_format

    sessions = chosen.cluster.sessions
    check_format(form, sessions.settings, packages)
    spark = sessions.session(packages)

    def write(frame: Any) -> int:
        return write_store(frame, target, form, writer_options(form, options or {}))

    return export_store(chosen.connected(), store, spark, build_topology, write, at=at)
