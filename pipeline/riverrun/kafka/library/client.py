"""Settings of all clients of the library."""

from __future__ import annotations

import logging

CLIENT = {"reconnect.backoff.max.ms": 1000, "enable.metrics.push": False}
"""Defaults for all clients. They reconnect to lost brokers every second, as Java's clients do, instead of every ten. They push
no metrics to brokers (KIP-714): a client that does may wait a second when it ends, for a signal that was sent already."""

quiet = logging.getLogger("riverrun.kafka.client")
"""Receives the client library's log lines, which are hidden unless a handler is set."""
quiet.addHandler(logging.NullHandler())
quiet.propagate = False
