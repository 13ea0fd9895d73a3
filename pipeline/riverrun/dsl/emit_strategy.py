"""`EmitStrategy`: whether a windowed aggregation forwards every update, or each window once after it closes."""

from __future__ import annotations

from enum import Enum


class EmitStrategy(Enum):
    """Determines when a windowed aggregation forwards results (`org.apache.kafka.streams.kstream.EmitStrategy`, KIP-825)."""

    ON_WINDOW_UPDATE = "on-window-update"
    ON_WINDOW_CLOSE = "on-window-close"

    @staticmethod
    def on_window_update() -> EmitStrategy:
        """Forward every update that the cache lets through. The default."""
        return EmitStrategy.ON_WINDOW_UPDATE

    @staticmethod
    def on_window_close() -> EmitStrategy:
        """Forward each window once, when stream time has passed its end by the grace period. Not for windows without end."""
        return EmitStrategy.ON_WINDOW_CLOSE
