"""The low-level API: what users may implement (`Processor`), and what built-in operators implement (`Operator`).

May import state contracts, serdes and values. Knows neither graphs nor tasks nor Kafka.
"""

from __future__ import annotations
