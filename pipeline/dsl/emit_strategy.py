"""`EmitStrategy`: whether a windowed aggregation forwards every update, or each window once when it has closed."""

from __future__ import annotations

from enum import Enum


class EmitStrategy(Enum):
    """When a windowed aggregation forwards (`org.apache.kafka.streams.kstream.EmitStrategy`, KIP-825)."""

    ON_WINDOW_UPDATE = "on-window-update"
    ON_WINDOW_CLOSE = "on-window-close"

    @staticmethod
    def on_window_update() -> EmitStrategy:
        """Every update, as far as the cache lets it through. The default."""
        return EmitStrategy.ON_WINDOW_UPDATE

    @staticmethod
    def on_window_close() -> EmitStrategy:
        """Each window once, when stream time has passed its end by the grace period; never for windows without end."""
        return EmitStrategy.ON_WINDOW_CLOSE
