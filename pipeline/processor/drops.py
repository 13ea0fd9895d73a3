"""Why records are dropped: Kafka Streams counts them all as `dropped-records-total`, Millrace by reason."""

from __future__ import annotations

from enum import StrEnum


class DropReason(StrEnum):
    """Every reason there is. Metrics and summaries show the values."""

    EXPIRED_WINDOW = "expired-window"
    """A store was given a window, session or version that is older than it keeps."""
    INVALID_TIMESTAMP = "invalid-timestamp"
    """A timestamp extractor gave a negative time."""
    LATE = "late"
    """The window it belongs to is closed: stream time has passed its end by the grace period."""
    NO_PARTITION = "no-partition"
    """A sink's partitioner named no partition."""
    NULL_FOREIGN_KEY = "null-foreign-key"
    """A table's row names no row of the other table to join with."""
    NULL_KEY = "null-key"
    """An operation that needs a key met none."""
    NULL_KEY_OR_VALUE = "null-key-or-value"
    """An operation that needs both lacked one of them."""
    NULL_VALUE = "null-value"
    """An operation that needs a value met none."""
    OUT_OF_ORDER = "out-of-order"
    """A versioned table had a later version of the row already."""
    PROCESSING_FAILED = "processing-failed"
    """User code raised, and `processing.exception.handler` chose to go on."""
    PRODUCTION_FAILED = "production-failed"
    """A sink could not write it, and `production.exception.handler` chose to go on."""
    STALE_RESPONSE = "stale-response"
    """A join by foreign key was answered after the row had changed again."""
    UNDECODABLE = "undecodable"
    """The source's serdes could not read it, and `deserialization.exception.handler` chose to go on."""
