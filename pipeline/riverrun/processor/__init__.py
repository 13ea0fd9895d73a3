"""The low-level API: `Processor` for users, and `Operator` for built-in operators.

May import state contracts, serdes and values. Knows neither graphs nor tasks nor Kafka.
"""

from __future__ import annotations
