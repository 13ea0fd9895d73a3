"""The inputs of a stream thread: known topics, fetched records, and absent brokers."""

from __future__ import annotations
