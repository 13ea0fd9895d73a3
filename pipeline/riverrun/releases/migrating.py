"""Makes the values of a store for a version whose values differ, by a function of the user.

A row at which the function fails is a failure of processing: `processing.exception.handler` decides whether the carrying stops,
or the row is left out. Its dead letters are written with the rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from riverrun.config import load_attribute
from riverrun.errors import USER_ERRORS, ProcessingError, RegistryError, ReleaseError, StreamsError, as_exception
from riverrun.processor.handlers import LEAVES_OUT, context_of, decision_of
from riverrun.records import RAW_KEY, RAW_VALUE, Record, TaskId, counted
from riverrun.state.api import StoreKind
from riverrun.state.stores.window import WINDOW_SUFFIX
from riverrun.state.values import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.config.code import PickledFunction
    from riverrun.processor.handlers import ProcessingExceptionHandler, ProducerRecord
    from riverrun.records import RawFields, TopicPartition
    from riverrun.state.api import StoreBuilder

log = logging.getLogger(__name__)

# Bytes that follow the key in a changelog's key: a session has its end and its start.
_SUFFIXES = {
    StoreKind.WINDOW: WINDOW_SUFFIX.size,
    StoreKind.TIMESTAMPED_WINDOW: WINDOW_SUFFIX.size,
    StoreKind.SESSION: 16,
}


@dataclass(slots=True)
class Migration:
    """Makes the values of one store.

    Args:
        before: The store of the live version, whose serdes read the rows.
        after: The store of the candidate, whose serde writes the values.
        reference: The function of key and value that returns the new value, or None to delete the row.
        sub_topology: Number of the candidate's sub-topology that has the store, for error contexts.
        handler: Decides about rows at which the function fails; None stops.
        dead_letters: Topic of all dead letters; None leaves it to the handler.
    """

    before: StoreBuilder
    after: StoreBuilder
    reference: str | PickledFunction
    sub_topology: int
    handler: ProcessingExceptionHandler | None = None
    dead_letters: str | None = None
    left_out: int = 0
    _function: Callable[[Any, Any], Any] = field(init=False)

    def __post_init__(self) -> None:
        self._function = load_attribute(self.reference)

    def __call__(self, tp: TopicPartition, fields: RawFields) -> tuple[bytes | None, Sequence[ProducerRecord]]:
        """Return the value of a changelog's record as the candidate's store has it, and dead letters; None deletes the row."""
        key, value, timestamp, _, headers = fields
        if key is None or value is None:
            return None, ()
        row: Any = None
        read: Any = None
        try:
            row = self.before.key_serde.deserialize(key[: len(key) - _SUFFIXES.get(self.before.kind, 0)])
            read = self.before.value_serde.deserialize(value)
            new = self._function(row, read)
            return (None if new is None else self.after.value_serde.serialize(new)), ()
        # The row is not to blame for a schema registry that does not answer, so no handler may leave it out.
        except RegistryError:
            raise
        except USER_ERRORS as error:
            record = Record(row, read, max(timestamp, 0), headers)
            return None, self._left_out(tp, fields, record, as_exception(error))

    def tell(self) -> None:
        """Log how many values were left out."""
        if self.left_out:
            values = counted(self.left_out, "value")
            log.warning("%s of store %s could not be migrated, and left out", values, self.before.name)

    def _left_out(
        self, tp: TopicPartition, fields: RawFields, record: Record[Any, Any], error: Exception
    ) -> Sequence[ProducerRecord]:
        """Return the dead letters of a row that is left out; raise if the handler does not resume."""
        if self.handler is None:
            self._stop(fields, error)
        where = context_of(tp, fields, self.before.name, TaskId(self.sub_topology, tp.partition))
        try:
            response = decision_of(self.handler, "processing", where, record, error)
        except ProcessingError as fatal:
            message = f"A row of store {self.before.name} could not be migrated: {fatal.message}"
            raise ReleaseError(message) from fatal
        if response.result not in LEAVES_OUT:
            self._stop(fields, error)
        self.left_out += 1
        letters = response.dead_letter_queue_records
        return letters if self.dead_letters is None else [replace(each, topic=self.dead_letters) for each in letters]

    def _stop(self, fields: RawFields, error: Exception) -> NoReturn:
        key, value = fields[RAW_KEY], fields[RAW_VALUE]
        row = f"the value {shown(value)} of key {shown(key)} of store {self.before.name}"
        message = f"{self.reference} cannot migrate {row}: {_described(error)}"
        hint = (
            "Nothing of it is public. Correct the function, then run the command again. processing.exception.handler ="
            " continue leaves such rows out."
        )
        raise ReleaseError(message, hint=hint) from error


def _described(error: BaseException) -> str:
    return error.message if isinstance(error, StreamsError) else f"{type(error).__name__}: {error}"
