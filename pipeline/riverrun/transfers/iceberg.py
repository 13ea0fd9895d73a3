"""Access to tables of Apache Iceberg: catalogues, commits without retries, and translated errors.

Only this module uses pyiceberg beyond its documented API: in `without_retries`, `swap_files` and `types_of`. If a version lacks
what they need, they say so.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError, NotInstalledError, UnauthorizedError

from riverrun.errors import ConfigError, EngineError, StreamsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.types import IcebergType

ATTEMPTS = 100
"""Attempts of a commit while others change the table."""
_REFUSED = (
    *(BadRequestError, ForbiddenError, UnauthorizedError, NotInstalledError),
    *(ImportError, PermissionError, TypeError, ValueError),
)
"""Errors of settings, tables and values, at which no retry helps."""
SUPPORTED = "0.12"
"""The version of pyiceberg that has everything that is needed beyond its documented API."""
_RETRIES = "commit.retry.num-retries"
_READERS = 8
"""Number of Parquet footers that are read concurrently."""


def opened_catalog(properties: Mapping[str, str]) -> Catalog:
    """Return the catalogue with these properties; `name` is its name."""
    others = dict(properties)
    return load_catalog(others.pop("name", "default"), **others)


def without_retries(table: Table) -> Transaction:
    """Return a transaction of the table as it was loaded, which pyiceberg does not repeat."""
    with _needing("commits that are not repeated"):
        # pyiceberg takes the number of retries only from the table's properties. This changes a copy in memory, not the table.
        table.metadata = table.metadata.model_copy(update={"properties": {**table.properties, _RETRIES: "0"}})
        if table.properties.get(_RETRIES) != "0":
            raise AttributeError(_RETRIES)
    return table.transaction()


def swap_files(table: Table, gone: Iterable[DataFile], added: Iterable[str], summary: Mapping[str, str]) -> Table:
    """Take files out of a table as it was loaded, and register the Parquet files at other places, in one snapshot.

    No data file is touched. If anybody has changed the table since, this raises `CommitFailedException`.
    """
    transaction = without_retries(table)
    with _needing("snapshots of chosen files"):
        from pyiceberg.io.pyarrow import parquet_file_to_data_file  # noqa: PLC0415 - loads pandas

        update = transaction.update_snapshot(snapshot_properties=dict(summary)).overwrite()
        remove, add = update.delete_data_file, update.append_data_file
    with ThreadPoolExecutor(_READERS) as readers:
        files = [*readers.map(partial(parquet_file_to_data_file, table.io, table.metadata), added)]
    with update:
        for file in gone:
            remove(file)
        for file in files:
            add(file)
    return transaction.commit_transaction()


def types_of(schema: pa.Schema) -> dict[str, IcebergType]:
    """Return the types that columns of Arrow have in a table of Iceberg, by name."""
    with _needing("types of columns"):
        from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415 - loads pandas
    numbers = count(1)
    numbered = pyarrow_to_schema(pa.schema([_numbered(field, numbers) for field in schema]))
    return {field.name: field.field_type for field in numbered.fields}


def _numbered(field: pa.Field, numbers: Iterator[int]) -> pa.Field:
    # `pyarrow_to_schema` refuses columns without field ids, which tables have and new schemas do not.
    kind, number = field.type, next(numbers)
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(part, numbers) for part in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, numbers), _numbered(kind.item_field, numbers))
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, numbers))
    return field.with_type(kind).with_metadata({"PARQUET:field_id": str(number)})


@contextmanager
def _needing(what: str) -> Iterator[None]:
    """Report that this version of pyiceberg lacks something that is only looked up here."""
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        message = f"pyiceberg {pyiceberg.__version__} has no {what}, or has them in another form"
        hint = f"Install pyiceberg {SUPPORTED}, with which this version of Riverrun was tested."
        raise ConfigError(message, hint=hint) from error


@contextmanager
def told(doing: str, name: str) -> Iterator[None]:
    """Translate errors of the catalogue and its store; every kind has its own."""
    try:
        yield
    except (StreamsError, KeyboardInterrupt):
        raise
    except _REFUSED as error:
        message = f"Cannot {doing} {name} of Iceberg: {error}"
        raise ConfigError(message, hint="Check the catalogue's properties, its package, and the columns.") from error
    except Exception as error:
        message = f"Cannot {doing} {name} of Iceberg: {error}"
        raise EngineError(message, hint="Check that the catalogue and its store answer.") from error
