"""Requests to brokers: each has a deadline, and what goes wrong names the brokers that were asked."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pipeline.errors import BrokerError, ConfigError
from pipeline.kafka import librdkafka
from pipeline.kafka.client import CLIENT, quiet
from pipeline.kafka.errors import REFUSED_LOGIN, UNREACHABLE, mapped_errors, streams_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from concurrent.futures import Future

    from pipeline.errors import StreamsError

CLIENT_ID = "millrace-admin"
"""What brokers call those who ask."""
REQUEST_SECONDS = 15.0
"""How long one request may take before the brokers count as unreachable."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05
"""Between two questions about the same thing, the pause doubles: most of what is waited for comes within milliseconds."""


class Requests:
    """Makes the clients that ask, and waits for their answers.

    Args:
        kafka: Client properties; security properties pass through.

    Attributes:
        kafka: The client properties.
        client: The library's own. It must outlive its requests: a future of a collected one never ends.

    Raises:
        ConfigError: If the library does not take the properties.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.kafka = kafka
        self._servers = kafka.get("bootstrap.servers", "")
        refusals: list[KafkaError] = []
        self._refusals = refusals  # not a method as callback: a client in a cycle lives until the collector comes round

        def connection_failed(error: KafkaError) -> None:
            if error.code() in REFUSED_LOGIN:
                refusals[:] = [error]

        # To the library an admin client is a producer, which has brokers make the topics it asks about if they do such things.
        own = {"client.id": CLIENT_ID, "allow.auto.create.topics": False, "error_cb": connection_failed}
        try:
            with mapped_errors("use the client properties"):
                self.client = AdminClient({**CLIENT, **kafka, **own}, logger=quiet)
        except ConfigError as error:
            missing = [f"{name} {path}" for name, path in kafka.items() if _is_missing_file(name, path)]
            error.hint = f"There is no such file: {', '.join(missing)}" if missing else error.hint
            raise

    def consumer(
        self, group: str, isolation: str = "read_committed", properties: Mapping[str, Any] = MappingProxyType({})
    ) -> Consumer:
        """A consumer that asks for a group's offsets, or sets them, and never joins it; whoever takes it ends it.

        The admin client is asked nothing that a group's coordinator answers: it crashes the process if that has just started,
        moved or died (librdkafka issue 5040, pull request 5397).

        Args:
            group: The group.
            isolation: Whether it sees what is not committed.
            properties: Of this one alone.
        """
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        with mapped_errors("create a consumer"):
            return Consumer({**CLIENT, **self.kafka, **own, **properties}, logger=quiet)

    def result(self, future: Future[Any], doing: str, *, ignore: Collection[int] = ()) -> Any:
        """A request's answer.

        Args:
            future: What the client gave for the request.
            doing: What is being done, as in "cannot <doing>".
            ignore: Codes of errors that are no failures; with one of them the answer is None.
        """
        with self.asking(doing):
            try:
                return future.result(REQUEST_SECONDS + 5)
            except KafkaException as error:
                if error.args[0].code() not in ignore:
                    raise
        return None

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Turn what the client raises into Millrace's errors, with the servers' names in them."""
        try:
            yield
        except KafkaException as error:
            raise self.error(error.args[0], doing) from error
        except TimeoutError as error:  # the future's own: the library should have given up before
            raise self.error(KafkaError(librdkafka.TIMED_OUT), doing) from error

    def error(self, error: KafkaError, doing: str) -> StreamsError:
        """The error, with its true cause: a login that is refused looks like a broker that does not answer."""
        if error.code() in UNREACHABLE:
            error = self.refusal() or error
        return streams_error(error, f"{doing} at {self._servers}")

    def refusal(self) -> KafkaError | None:
        """Why the brokers have not accepted who connects; None if they have, or did not answer. Each is told once."""
        self.client.poll(0)
        return self._refusals.pop() if self._refusals else None

    def until(
        self,
        condition: Callable[[], bool],
        doing: str,
        seconds: float = REQUEST_SECONDS,
        error: type[BrokerError] = BrokerError,
        hint: str | None = None,
    ) -> None:
        """Ask again and again until a condition holds.

        Args:
            condition: Asks, and says whether it holds.
            doing: What is being done, as in "cannot <doing>".
            seconds: How long to go on.
            error: What to raise then; it is `retriable`.
            hint: What its user can do about it.
        """
        deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                message = f"Cannot {doing} at {self._servers} within {seconds:.0f} s"
                raise error(message, retriable=True, hint=hint)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _is_missing_file(name: str, path: str) -> bool:
    return name.startswith("ssl.") and name.endswith(".location") and path != "probe" and not Path(path).exists()
