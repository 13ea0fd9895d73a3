"""The specification of an import."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """Names the rows to import, and says how they become records.

    Args:
        topic: Where to; must exist.
        source: A path (directory, file or pattern), or the table of a `jdbc` source.
        format: Any format Spark reads: parquet, csv, json, jdbc, or a data source's name.
        options: The reader's options.
        schema: The rows' schema as DDL, for formats that do not know it.
        key: Key columns: one is written as text, or as it is if binary; several as a JSON object. Without, there is no key, and
            rows whose incremental column, or else whose value, is equal go to equal partitions.
        value: The column of values, text or binary, where null is a tombstone; None makes a JSON object of each row.
        timestamp: The column of event times: timestamps, dates, or numbers of ms since the epoch; None takes the present.
        missing_timestamp: What becomes of rows that have none there: `fail` ends the import, `now` takes the present; what
            follows may be late then.
        incremental: A column that only rises (a number, a date, a time), by which new rows are told from old ones: those above
            the highest value that was imported. Not seen are rows that come later with that value or a lower one (a transaction
            that began before and ended after the import; a second row of the same ms), those without a value, and deletions.
            None imports new files, or everything where there are no files.
        name: Names the import: its progress and its transactions. The topic's name if left out; then another source of an
            incremental import is refused, since it may be another table.
        parts: How many parts a batch has, each one transaction; no more than the topic has partitions, whose records come all
            from one part and in the order of the source.
    """

    topic: str
    source: str
    format: str
    _: KW_ONLY
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    key: tuple[str, ...] = ()
    value: str | None = None
    timestamp: str | None = None
    incremental: str | None = None
    name: str = ""
    parts: int = 4
    missing_timestamp: str = "fail"

    @property
    def id(self) -> str:
        """The name that its progress is kept under."""
        return self.name or self.topic
