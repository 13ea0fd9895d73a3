"""Access to tables of Apache Iceberg: catalogues, commits that are not repeated, and errors in words."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError, NotInstalledError, UnauthorizedError
from pyiceberg.table import Table, TableProperties

from riverrun.errors import ConfigError, EngineError, StreamsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog

ATTEMPTS = 100
"""How often a commit is repeated because others have changed the table."""
_REFUSED = (
    *(BadRequestError, ForbiddenError, UnauthorizedError, NotInstalledError),
    *(ImportError, PermissionError, TypeError, ValueError),
)
"""Errors of settings, tables and values, which no repetition mends."""


def opened_catalog(properties: Mapping[str, str]) -> Catalog:
    """Return the catalogue with these properties; `name` is its name."""
    others = dict(properties)
    return load_catalog(others.pop("name", "default"), **others)


def without_retries(table: Table) -> Table:
    """Return the table as one whose commits pyiceberg does not repeat; the stored properties stay as they are."""
    properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    metadata = table.metadata.model_copy(update={"properties": properties})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)


@contextmanager
def told(doing: str, name: str) -> Iterator[None]:
    """Translate errors of the catalogue and its store; each kind has its own.

    Args:
        doing: What is done, for messages.
        name: The table.

    Raises:
        ConfigError: If the catalogue or the table refuses.
        EngineError: If the catalogue or its store does not answer.
    """
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
