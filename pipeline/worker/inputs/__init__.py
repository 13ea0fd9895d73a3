"""The inputs of a stream thread: the topics that are known, the records fetched for tasks, and brokers that are absent."""

from __future__ import annotations
