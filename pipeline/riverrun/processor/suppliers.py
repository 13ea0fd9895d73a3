"""Checks the suppliers of users' processors as Kafka Streams does."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from riverrun.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.api import StoreBuilder


def check_supplier(supplier: Callable[[], Any]) -> None:
    """Check that a supplier returns a new instance on each call (`ApiUtils.checkSupplier`).

    Raises:
        TopologyError: If it returns one instance twice, which tasks would share.
    """
    if not isinstance(supplier, type) and supplier() is supplier():
        name = getattr(supplier, "__qualname__", type(supplier).__qualname__)
        message = f"{name} generates single reference. Supplier#get() must return a new object each time it is called."
        raise TopologyError(message, hint="Pass the class, or a function that creates a new one.")


def connected_stores(supplier: Callable[[], Any]) -> tuple[StoreBuilder, ...]:
    """Return the stores that a supplier brings (`org.apache.kafka.streams.processor.ConnectedStoreProvider`).

    A supplier brings stores if it has a method `stores()` that returns their builders. If the supplier is a class, it
    must be a method of the class (`@staticmethod` or `@classmethod`), as there is no instance yet.
    """
    if isinstance(supplier, type):
        declared = inspect.getattr_static(supplier, "stores", None)
        if not isinstance(declared, staticmethod | classmethod):
            return ()
    stores = getattr(supplier, "stores", None)
    return tuple(stores()) if callable(stores) else ()
