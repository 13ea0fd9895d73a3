"""The options of bounded runs and of backfills, from the command line, Python and Airflow to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from riverrun.config.checks import check_number

if TYPE_CHECKING:
    from riverrun.hosting.application import Application

# For all source partitions together. It also bounds the entries of stores that a slice's tasks hold in memory, as a slice is
# one transaction.
MAX_RECORDS_PER_SLICE = 2_000_000
_LEAST, _MOST = 1, 1_000_000_000


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a bounded run besides its range, with the command line's help; None leaves a choice to the settings."""

    advance_stream_time_to: Annotated[
        str | None,
        Meta(description="Move event time to this time after the last record. Windows that end before it close."),
    ] = None
    wall_clock_punctuation: Annotated[
        str | None,
        Meta(
            description="How to treat wall-clock punctuation: refuse, once (at the end of each slice) or never."
            " Defaults to the setting bounded.wall.clock.punctuation."
        ),
    ] = None
    engine: Annotated[
        str | None,
        Meta(
            description="What processes the tasks: spark; local, this process without Spark; or auto, which is local if there"
            " are few records and Spark would run on this machine. Defaults to the setting bounded.engine."
        ),
    ] = None
    max_records_per_slice: Annotated[
        int,
        Meta(ge=_LEAST, le=_MOST, description="Records of one slice. Each task commits a slice in one transaction."),
    ] = MAX_RECORDS_PER_SLICE
    gate: Annotated[
        bool | None,
        Meta(
            description="Judge the outputs by the application's expectations before they are public. Defaults to gate in"
            " streams.toml."
        ),
    ] = None

    def __post_init__(self) -> None:
        check_number("max_records_per_slice", self.max_records_per_slice, _LEAST, _MOST)

    def chosen_for(self, application: Application) -> Application:
        """Return an application with the engine and the treatment of punctuation that these options choose."""
        if self.wall_clock_punctuation is not None:
            application = application.with_wall_clock_punctuation(self.wall_clock_punctuation)
        return application if self.engine is None else application.with_engine(self.engine)


DEFAULTS = RunOptions()


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """Options of a backfill besides its interval, with the command line's help."""

    topics: Annotated[tuple[str, ...], Meta(description="Recompute only this public table.")] = ()
    gate: Annotated[
        bool | None,
        Meta(
            description="Judge outputs of records that are not processed yet before they are public. Defaults to gate in"
            " streams.toml. Recomputed rows are always judged."
        ),
    ] = None
    approve: Annotated[str, Meta(description="Id of a verdict on recomputed rows whose warnings to approve.")] = ""
    from_beginning: Annotated[
        bool, Meta(description="Recompute tables that depend on all records, too: from all records of the inputs.")
    ] = False
