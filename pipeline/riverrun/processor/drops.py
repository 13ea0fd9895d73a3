"""The reasons for dropped records: Kafka Streams counts all as `dropped-records-total`, Riverrun also by reason."""

from __future__ import annotations

from enum import StrEnum


class DropReason(StrEnum):
    """All reasons. Metrics and summaries show the values."""

    EXPIRED_WINDOW = "expired-window"
    """A window, session or version was older than the retention of its store."""
    INVALID_TIMESTAMP = "invalid-timestamp"
    """A timestamp extractor returned a negative time."""
    LATE = "late"
    """Its window is closed: stream time has passed the end by the grace period."""
    NO_PARTITION = "no-partition"
    """A sink's partitioner returned no partition."""
    NULL_FOREIGN_KEY = "null-foreign-key"
    """A row has no foreign key to join by."""
    NULL_KEY = "null-key"
    """An operation needs a key, and the record has none."""
    NULL_KEY_OR_VALUE = "null-key-or-value"
    """An operation needs key and value, and the record lacks one."""
    NULL_VALUE = "null-value"
    """An operation needs a value, and the record has none."""
    OUT_OF_ORDER = "out-of-order"
    """A versioned table already had a later version of the row."""
    PROCESSING_FAILED = "processing-failed"
    """User code raised, and `processing.exception.handler` chose to continue."""
    PRODUCTION_FAILED = "production-failed"
    """A sink could not write it, and `production.exception.handler` chose to continue."""
    STALE_RESPONSE = "stale-response"
    """A foreign-key join answered after the row had changed again."""
    UNDECODABLE = "undecodable"
    """The source's serdes could not read it, and `deserialization.exception.handler` chose to continue."""
