"""Converts the keys of one store to bytes and back; errors of the serde name store, key and serde."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import BrokerError, DeserializationError, SerializationError, StreamsError
from riverrun.serde.api import hint_of, refusal
from riverrun.state.values import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder


@dataclass(slots=True, eq=False)
class StoredKeys:
    """Converts the keys of one store to bytes and back.

    Functions that run for each record call `serialize`, and raise what `refused` returns if it fails. `written` would cost
    one more call.

    Args:
        store: Name of the store.
        serde: Serde of its keys.
    """

    store: str
    serde: Serde[Any]
    serialize: Callable[[Any], bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Look up the serde's function."""
        self.serialize = self.serde.serialize

    def written(self, key: Any) -> bytes:
        """Return a key as bytes.

        Raises:
            SerializationError: If the serde cannot write it.
        """
        try:
            return self.serialize(key)
        except Exception as error:
            raise self.refused(key, error) from error

    def read(self, data: bytes) -> Any:
        """Read a key from bytes.

        Raises:
            DeserializationError: If the serde cannot read it.
        """
        try:
            return self.serde.deserialize(data)
        except BrokerError:  # an error of a schema registry
            raise
        except Exception as error:
            why = refusal(self.serde, error)
            message = f"Store {self.store} cannot read the key {shown(data)}: {why}"
            raise DeserializationError(message, hint="Give the store the serde that has written its keys.") from error

    def refused(self, key: Any, error: Exception) -> StreamsError:
        """Return the error about a key that the serde cannot write; an error of a schema registry is returned unchanged."""
        if isinstance(error, BrokerError):
            return error
        why = refusal(self.serde, error)
        message = f"Store {self.store} cannot take the {type(key).__name__} key {shown(key)}: {why}"
        return SerializationError(
            message, hint=hint_of(error) or "Give the store a serde for such keys, or keys that its serde writes."
        )


def stored_keys(builder: StoreBuilder) -> StoredKeys:
    """Return the converter for the keys of a store."""
    return StoredKeys(builder.name, builder.key_serde)
