"""Opens a store from its builder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.state.api import StoreKind, idle
from riverrun.state.stores.buffer import SuppressionBuffer
from riverrun.state.stores.expiring import ExpiringKeyValueStore
from riverrun.state.stores.join_window import JoinWindowStateStore, ListValueStateStore
from riverrun.state.stores.key_value import KeyValueStateStore
from riverrun.state.stores.session import SessionStateStore
from riverrun.state.stores.versioned import VersionedStateStore
from riverrun.state.stores.window import WindowStateStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.api import StateBackend, StateStore, StoreBuilder, StoreOpener, UpdateContext


def open_store(
    builder: StoreBuilder, backend: StateBackend, context: UpdateContext, pause: Callable[[], None] = idle
) -> StateStore:
    """Open the store that `builder` describes, above `backend`.

    The store reads the current record from `context` at each update. `pause` is called now and then while the store is
    flushed; meanwhile it may be read by key.
    """
    match builder.kind:
        case StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW:
            return WindowStateStore(builder, backend, context, pause)
        case StoreKind.SESSION:
            return SessionStateStore(builder, backend, context, pause)
        case StoreKind.BUFFER:
            return SuppressionBuffer(builder, backend, context)
        case StoreKind.JOIN_WINDOW:
            return JoinWindowStateStore(builder, backend, context)
        case StoreKind.LIST_VALUE:
            return ListValueStateStore(builder, backend, context)
        case StoreKind.VERSIONED:
            return VersionedStateStore(builder, backend, context)
        case _ if builder.ttl_ms is not None and not builder.table_expires:
            return ExpiringKeyValueStore(builder, backend, context, pause)
        case _:
            return KeyValueStateStore(builder, backend, context, pause)


_opens: StoreOpener = open_store
