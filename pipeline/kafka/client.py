"""Shared by all clients of the library."""

from __future__ import annotations

import logging

CLIENT = {"reconnect.backoff.max.ms": 1000, "enable.metrics.push": False}
"""Of all clients, unless the user says otherwise: brokers that are gone are looked for every second, as by Java's clients, not
every ten; and no metrics are pushed to brokers (KIP-714), as the library, at the end of a client that does, waits for a signal
that it may have given before, a second long."""

quiet = logging.getLogger("millrace.kafka.client")
"""Where the client library's own chatter goes: nowhere, unless somebody listens."""
quiet.addHandler(logging.NullHandler())
quiet.propagate = False
