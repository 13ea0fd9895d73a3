"""Imports: any source that Spark reads into a topic, keyed, exactly once, and only what is new.

An import goes in batches: the files that are new, or the rows whose column has risen above the last value, or everything. A
batch is cut by partition into parts, each written in one transaction together with the note that it is done, as exactly-once
source connectors do with their offsets (KIP-618). A batch that was cut off is done again as it was planned; parts that are done
are skipped; if none is, it is planned anew, as the plan may be why it failed. Attempts of a part fence each other
through its transactional id.

What is to be done is in `import_spec`, how far it is in `import_progress`. `import_source` finds what is new, `import_rows`
makes records of rows, and `import_parts` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pipeline.errors import ConfigError, RangeError
from pipeline.spark.session import lazily
from pipeline.transfers.import_parts import fence_parts, write_batch
from pipeline.transfers.import_progress import Batch, Progress, Terms
from pipeline.transfers.import_source import with_what_is_new
from pipeline.transfers.import_spec import ImportSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline.kafka.admin import Admin

__all__ = ["ImportSpec", "ImportSummary", "run_import"]


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """The outcome of an import.

    Args:
        read: Rows read from the source; those that an earlier attempt had written are among them.
        written: Records written.
        batches: Batches they came in.
    """

    read: int
    written: int
    batches: int


def run_import(
    spec: ImportSpec,
    admin: Admin,
    spark: Any,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    here: Path | None = None,
) -> ImportSummary:
    """Import what is new. Run again after a failure, it completes the batch that was cut off.

    Args:
        spec: What.
        admin: Asks the brokers.
        spark: A Spark session, or a function that makes one: it is called once the topic is found to be there.
        on_progress: Called again and again with the records written and the rows of the whole batch, from another thread; to
            know these, the rows are counted first.
        here: The source, if it is a file or directory of this machine: then no Spark starts if none of its files are new.

    Raises:
        ConfigError: If the source cannot be read, has no such column, what was begun was told apart in another way, or an
            import by a column that has no name of its own had another source.
        RangeError: If the topic was created anew since the last import.
        DeserializationError: If a row has no event time, or one before 1970; nothing of its batch is written.
        TopicError: If there is no such topic.
        TaskMigratedError: If the same import runs elsewhere.
        BrokerError: If brokers do not answer.
    """
    if spec.missing_timestamp not in {"fail", "now"}:
        message = f"{spec.missing_timestamp!r} cannot become of rows without a time"
        raise ConfigError(message, hint="Allowed: fail, now")
    progress = Progress(admin, spec.id)
    admin.require([spec.topic], f"import {spec.id} writes to")
    if here is not None and _has_nothing_new(spec, progress, here):
        _check_goes_on(spec, progress.last(), admin.topic_ids([spec.topic])[spec.topic])
        return ImportSummary(0, 0, 0)
    session = lazily(spark)()
    read = written = batches = 0
    while True:
        last = progress.last()
        batch = _to_do(spec, admin, session, last)
        if batch is None:
            return ImportSummary(read, written, batches)
        if batch != last:
            progress.begin(batch, last)
        rows, records = write_batch(spec, batch, admin, session, on_progress)
        read, written = read + rows, written + records
        progress.finish(batch)
        batches += 1
        if not (batch.files or batch.upto):
            return ImportSummary(read, written, batches)


def _has_nothing_new(spec: ImportSpec, progress: Progress, source: Path) -> bool:
    """Whether all files of a source have been imported, as far as can be told without Spark, which may leave some out."""
    last = progress.last()
    if not (last.number and last.is_done) or spec.incremental is not None:
        return False
    known = {unquote(urlsplit(name).path) for name in progress.files() if name.startswith("file:")}
    below = source.absolute().rglob("*") if source.is_dir() else [source.absolute()]
    there = {str(path) for path in below if path.is_file() and not path.name.startswith((".", "_"))}
    return bool(there) and there <= known


def _to_do(spec: ImportSpec, admin: Admin, spark: Any, last: Batch) -> Batch | None:
    """The batch that was cut off, if a part of it is written, or else what is new; None if nothing is."""
    progress, topic_id = Progress(admin, spec.id), admin.topic_ids([spec.topic])[spec.topic]
    _check_goes_on(spec, last, topic_id)
    if not last.is_done:
        fence_parts(spec, last, admin.kafka)
        if progress.has_parts(last):
            _check_same_terms(spec, last)
            return last
    number, above = (last.number + 1, last.upto) if last.is_done else (last.number, last.above)
    partitions = admin.partitions([spec.topic])[spec.topic]
    parts, terms = min(spec.parts, partitions), Terms.of(spec)
    planned = Batch(number, partitions, parts, is_done=False, terms=terms, topic_id=topic_id)
    return with_what_is_new(spec, planned, above, progress.files, spark)


def _check_same_terms(spec: ImportSpec, last: Batch) -> None:
    """Make sure that a batch which is written in part is completed as it was begun.

    Raises:
        ConfigError: If rows would belong to other parts now.
    """
    terms = Terms.of(spec)
    if last.terms != terms:
        message = f"Batch {last.number} of import {spec.id} was cut off when a part of it was written"
        raise ConfigError(message, hint=f"Complete it as it was begun: with {last.terms.differences(terms)}.")


def _check_goes_on(spec: ImportSpec, last: Batch, topic_id: str) -> None:
    """Make sure that what was imported means the same to this import.

    Raises:
        ConfigError: If rows were told apart otherwise, or are another table's.
        RangeError: If the topic is another one.
    """
    if last.number and last.topic_id != topic_id:
        message = f"Topic {spec.topic} was created anew since batch {last.number} of import {spec.id} was begun"
        raise RangeError(message, hint="What has been imported is not in it. Import it under another name (--name).")
    if not (last.number if last.is_done else last.number - 1):
        return
    if last.terms.incremental != spec.incremental:
        before, now = (column or "no column" for column in (last.terms.incremental, spec.incremental))
        message = f"Import {spec.id} has told new rows by {before} so far, not by {now}"
        raise ConfigError(message, hint="Import it under another name (--name): that imports everything.")
    if spec.incremental is not None and last.terms.source != spec.source and not spec.name:
        message = (
            f"Import {spec.id} has had rows of {last.terms.source} so far, up to {last.upto}, not of {spec.source}"
        )
        hint = f"Give this one a name of its own (--name). If it is the same table: --name {spec.id}."
        raise ConfigError(message, hint=hint)
