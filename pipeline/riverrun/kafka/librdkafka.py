"""Everything of confluent-kafka that is not its public interface, or that is wrong in it, and settings of all its clients.

librdkafka's own error codes have names that begin with an underscore in Python, although they are documented.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, __version__

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

# All clients reconnect to lost brokers every second, as Java's clients do, instead of every ten. They push no metrics to
# brokers (KIP-714): a client that does may wait a second when it ends, for a signal that was sent already. Each new client
# connects twice, to the bootstrap address and to the broker behind it, or to its coordinator. The library takes that for a
# lost connection, and waits for `reconnect.backoff.ms`: with 100, the default, this is most of the time of a short request.
CLIENT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 1000, "enable.metrics.push": False}

# Clients of hosts that wait for brokers for long. While all are away, the library looks for others at bootstrap addresses. It
# forgets its waits and starts threads each time, so it reconnects at this interval, and takes up to 3 % of a CPU with 10 ms.
# Without that (`metadata.recovery.strategy=none`), it would never find brokers that have been replaced.
LASTING = {"reconnect.backoff.ms": "100"}

quiet = logging.getLogger("riverrun.kafka.client")
"""Receives the client library's log lines, which are hidden unless a handler is set."""
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


def end_in_background(end: Callable[[], object], name: str) -> None:
    """Call a function that ends a client in a thread, which the process awaits before it exits."""
    # A reader that was not finished may be collected when the interpreter ends. No thread can start then, and waiting for
    # one would never end; the client ends with the process.
    if sys.is_finalizing():
        return
    threading.Thread(target=end, name=f"end-{name}").start()


INSTALLED: str = __version__
"""The installed version of confluent-kafka."""
SUPPORTED = "confluent-kafka>=2.15.1,<2.17"
"""The versions that Riverrun's package requires."""


def _code(name: str) -> int:
    code = getattr(KafkaError, name, None)
    if not isinstance(code, int):
        message = f"confluent-kafka {INSTALLED} is not supported: it has no error code {name}"
        raise ConfigError(message, hint=f"pip install '{SUPPORTED}'")
    return code


ALL_BROKERS_DOWN = _code("_ALL_BROKERS_DOWN")
AUTHENTICATION = _code("_AUTHENTICATION")
AUTO_OFFSET_RESET = _code("_AUTO_OFFSET_RESET")
DESTROY_BROKER = _code("_DESTROY_BROKER")
FATAL = _code("_FATAL")
FENCED_PRODUCER = _code("_FENCED")
INVALID_ARG = _code("_INVALID_ARG")
MSG_TIMED_OUT = _code("_MSG_TIMED_OUT")
NOENT = _code("_NOENT")
PARTITION_EOF = _code("_PARTITION_EOF")
PURGE_INFLIGHT = _code("_PURGE_INFLIGHT")
PURGE_QUEUE = _code("_PURGE_QUEUE")
RESOLVE = _code("_RESOLVE")
SSL = _code("_SSL")
STATE = _code("_STATE")
TIMED_OUT = _code("_TIMED_OUT")
TIMED_OUT_QUEUE = _code("_TIMED_OUT_QUEUE")
TRANSPORT = _code("_TRANSPORT")
UNKNOWN_PARTITION = _code("_UNKNOWN_PARTITION")
UNKNOWN_TOPIC = _code("_UNKNOWN_TOPIC")
UNSUPPORTED_FEATURE = _code("_UNSUPPORTED_FEATURE")
WAIT_COORD = _code("_WAIT_COORD")
