"""Requests to brokers: each has a deadline, and errors name the brokers."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from riverrun.errors import BrokerError, ConfigError
from riverrun.kafka.errors import REFUSED_LOGIN, UNREACHABLE, mapped_errors, streams_error
from riverrun.kafka.library import librdkafka
from riverrun.kafka.library.client import CLIENT, quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from concurrent.futures import Future

    from riverrun.errors import StreamsError

CLIENT_ID = "riverrun-admin"
"""Client id of these requests."""
REQUEST_SECONDS = 15.0
"""Time limit of a request, after which the brokers count as unreachable."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05
"""The pause between two attempts doubles, as most conditions hold within milliseconds."""


class Requests:
    """Creates clients for requests, and waits for their answers.

    Args:
        kafka: Client properties; security properties pass through.

    Attributes:
        kafka: The client properties.
        client: The library's client. It must outlive its requests: the future of a collected client never ends.

    Raises:
        ConfigError: If the library refuses the properties.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.kafka = kafka
        self._servers = kafka.get("bootstrap.servers", "")
        refusals: list[KafkaError] = []
        self._refusals = refusals  # not a method as callback: a client in a cycle lives until the collector comes round

        def connection_failed(error: KafkaError) -> None:
            if error.code() in REFUSED_LOGIN:
                refusals[:] = [error]

        # To the library an admin client is a producer, whose requests may make brokers create the topics they mention.
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
        """Return a consumer that reads or sets a group's offsets without joining. The caller closes it.

        The admin client is not used for requests to a group's coordinator: it crashes the process if the coordinator
        has just started, moved or died (librdkafka issue 5040, pull request 5397).

        Args:
            group: The group.
            isolation: Whether it reads uncommitted offsets.
            properties: Properties of this consumer only.
        """
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        with mapped_errors("create a consumer"):
            return Consumer({**CLIENT, **self.kafka, **own, **properties}, logger=quiet)

    def result(self, future: Future[Any], doing: str, *, ignore: Collection[int] = ()) -> Any:
        """Return a request's answer.

        Args:
            future: The client's future of the request.
            doing: The action, to complete "cannot <doing>".
            ignore: Codes of errors that are not failures; the answer is None for them.
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
        """Translate the client's exceptions to Riverrun's errors, with the servers' names."""
        try:
            yield
        except KafkaException as error:
            raise self.error(error.args[0], doing) from error
        except TimeoutError as error:  # the future's timeout: the library should have given up earlier
            raise self.error(KafkaError(librdkafka.TIMED_OUT), doing) from error

    def error(self, error: KafkaError, doing: str) -> StreamsError:
        """Return the error with its true cause: a refused login looks like a broker that does not answer."""
        if error.code() in UNREACHABLE:
            error = self.refusal() or error
        return streams_error(error, f"{doing} at {self._servers}")

    def refusal(self) -> KafkaError | None:
        """Return why the brokers refused the login; None if they did not, or did not answer. Each refusal is returned once."""
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
        """Check repeatedly until a condition holds.

        Args:
            condition: Returns whether it holds.
            doing: The action, to complete "cannot <doing>".
            seconds: Time limit.
            error: Type of the error on failure; it is `retriable`.
            hint: What the user can do about it.
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
