"""`AppWorker`: an instance of an application in a program (`org.apache.kafka.streams.KafkaStreams`)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from riverrun.arguments import function, takes
from riverrun.errors import StreamsError
from riverrun.project.stores import ReadOnlyStore, ReadOnlyStores, place_of
from riverrun.runtime.failures import user_code
from riverrun.service.instance import new_instance
from riverrun.service.routing import KeyQueryMetadata, key_query_metadata
from riverrun.worker.states import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

    from riverrun.hosting.application import Application
    from riverrun.topology.topology import Topology
    from riverrun.worker.states import InstanceStatus, WorkerSummary
    from riverrun.worker.stream_thread.protocol import StreamJob
    from riverrun.worker.streams_instance import StreamsInstance

_OVER = frozenset({WorkerState.NOT_RUNNING, WorkerState.ERROR})


class AppWorker:
    """Runs an application in this program, as one instance of its group; its stream threads are processes.

    ```python
    with clicks.worker(threads=2) as worker:
        worker.wait_for(WorkerState.RUNNING)
        print(worker.stores["clicks-per-user"]["ann"])
        worker.wait()
    ```

    Within `with` or `async with` it runs, and it closes at the end. If you call `start` instead, the program continues until
    you close it.

    Args:
        application: The application to run, in one version.
        build: Builds its topology within a stream thread, which is another process.
        token: Token that callers of its HTTP interface must show; empty for none.
        complete: Completes a switch of versions whose coordinator has died; None to leave that to others.
    """

    def __init__(
        self,
        application: Application,
        build: Callable[[StreamJob], Topology],
        token: str = "",
        complete: Callable[[], None] | None = None,
    ) -> None:
        self._complete = complete
        self._application = application
        self._build = build
        self._token = token
        self._instance: StreamsInstance | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._state = WorkerState.CREATED
        self._summary: WorkerSummary | None = None
        self._error: BaseException | None = None
        self._listener: Callable[[WorkerState, WorkerState], None] = lambda _new, _old: None
        self._handler: Callable[[StreamsError], str] | None = None

    def __enter__(self) -> Self:
        """Start, unless it has started."""
        if self._thread is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error of the worker is raised, unless another exception is being raised."""
        self.close()
        if kind is None and self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        """Start as `with` does, without blocking the event loop."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close as `with` does, without blocking the event loop."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    @property
    def application(self) -> Application:
        """The application that it runs. A version that is not live writes to staging topics (`published`)."""
        return self._application

    @property
    def state(self) -> WorkerState:
        """Its state (`KafkaStreams.state`)."""
        return self._state

    @property
    def server(self) -> str:
        """`host:port` where it answers over HTTP; empty if nowhere."""
        return "" if self._instance is None else self._instance.server

    @takes(listener=function("new_state, old_state"))
    def set_state_listener(self, listener: Callable[[WorkerState, WorkerState], None]) -> None:
        """Set a function to call with each change of state (`KafkaStreams.setStateListener`).

        Args:
            listener: Takes the new state and the old one. The worker's thread calls it, and waits for it.
        """
        self._listener = listener

    @takes(handler=function("error"))
    def set_uncaught_exception_handler(self, handler: Callable[[StreamsError], str]) -> None:
        """Set a function that decides about the failure of a stream thread (`StreamsUncaughtExceptionHandler`).

        Args:
            handler: Takes the error; returns `replace_thread`, `shutdown_client` or `shutdown_application`. It overrides
                `uncaught.exception.handler`.

        Raises:
            StreamsError: If the worker has started already.
        """
        self._require_new("a handler is set")
        self._handler = handler

    def start(self) -> None:
        """Start in a separate thread (`KafkaStreams.start`): the worker joins its group, and restores its tasks.

        Raises:
            ConfigError: If its address cannot be used.
            MissingExtraError: If its HTTP interface needs packages that are not installed.
            StreamsError: If it was started before.
        """
        self._require_new("it is started")
        with ExitStack() as stack:
            instance = new_instance(
                self._application,
                self._build,
                token=self._token,
                on_state=self._note,
                uncaught_exception_handler=self._handler,
                complete=self._complete,
            )
            self._instance = stack.enter_context(instance)
            # The thread closes the interface when the instance ends; only a failure before its start closes it here.
            answering = stack.pop_all()
        arguments = self._instance, answering
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"worker-{self._application.id}")
        self._thread.start()

    def close(self, timeout_s: float | None = None) -> bool:
        """Commit, hand over the tasks, and leave the group (`KafkaStreams.close`). Only `wait` raises errors of the worker.

        Args:
            timeout_s: Longest wait for the end; without limit by default.

        Returns:
            Whether it has ended.
        """
        if self._instance is None or self._thread is None:
            return True
        self._instance.stop()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> WorkerSummary:
        """Wait until it ends, because it was closed or failed.

        Args:
            timeout_s: Longest wait; without limit by default.

        Returns:
            The work done.

        Raises:
            StreamsError: The error with which it failed; or if it was not started.
            TimeoutError: If it is still running after that time.
        """
        if self._thread is None:
            message = f"{self._application.id} was not started"
            raise StreamsError(message, hint="Call start(), or use `with`.")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            message = f"{self._application.id} is still running after {timeout_s} s"
            raise TimeoutError(message)
        if self._error is not None:
            raise self._error
        return self.summary()

    def wait_for(self, state: WorkerState = WorkerState.RUNNING, timeout_s: float | None = None) -> None:
        """Wait until it is in a state.

        Args:
            state: The state; `running` means that all its tasks are restored.
            timeout_s: Longest wait; without limit by default.

        Raises:
            StreamsError: If it ends earlier.
            TimeoutError: If it has not reached the state after that time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state in {state, *_OVER}, timeout_s)
            reached = self._state
        if reached is state:
            return
        if reached not in _OVER:
            message = f"{self._application.id} is {reached.value}, not {state.value}, after {timeout_s} s"
            raise TimeoutError(message)
        self.wait()
        message = f"{self._application.id} ended before it was {state.value}"
        raise StreamsError(message)

    @property
    def has_begun(self) -> bool:
        """Return whether it has found its topics and tasks. Until then it waits for brokers, and owns no tasks."""
        return self._instance is not None and self._instance.layout is not None

    def status(self) -> InstanceStatus:
        """Return its current status.

        Raises:
            StreamsError: If it was not started.
        """
        return self._started().status()

    def summary(self) -> WorkerSummary:
        """Return the work done so far.

        Raises:
            StreamsError: If it was not started.
        """
        return self._summary or self._started().summary()

    def metadata(self) -> Mapping[str, tuple[str, ...]]:
        """Return the tasks of each instance that answers queries, by `host:port` (`metadataForAllStreamsClients`)."""
        assignment = self._started().assignment
        found: dict[str, tuple[str, ...]] = {}
        for task, server in sorted(assignment.servers.items()) if assignment is not None else ():
            found[server] = (*found.get(server, ()), task)
        return found

    def query_metadata_for_key(self, store: str, key: Any) -> KeyQueryMetadata:
        """Return the place of a key (`KafkaStreams.queryMetadataForKey`).

        Args:
            store: The store's name.
            key: The key, before serialization; it need not exist.

        Raises:
            InvalidStateStoreError: If there is no such store, or the worker is starting.
        """
        instance = self._started()
        place = place_of(instance, store)
        task = place.task_of(place.builder.key_serde.serialize(key))
        return key_query_metadata(place, task, instance.assignment, instance.server)

    def store(self, name: str, *, stale: bool = False) -> ReadOnlyStore:
        """Return a state store (`KafkaStreams.store`).

        Args:
            name: Name of the store, as in the topology.
            stale: Whether standbys of this instance may answer, whose content may be older.

        Raises:
            InvalidStateStoreError: If there is no such store, or the worker is starting.
        """
        instance = self._started()
        place_of(instance, name)
        return ReadOnlyStore(instance, name, stale=stale)

    @property
    def stores(self) -> ReadOnlyStores:
        """Its state stores by name."""
        return ReadOnlyStores(self._started())

    def pause(self) -> None:
        """Pause processing, and keep the tasks (`KafkaStreams.pause`)."""
        self._started().pause()

    def resume(self) -> None:
        """Continue after a pause (`KafkaStreams.resume`)."""
        self._started().pause(paused=False)

    def scale(self, threads: int) -> None:
        """Set the number of stream threads (`addStreamThread`, `removeStreamThread`).

        Args:
            threads: The number, at least one.

        Raises:
            ConfigError: If it is less than one, or more than an instance may have.
        """
        self._started().scale(threads)

    def clean_up(self) -> None:
        """Delete its state on this machine (`KafkaStreams.cleanUp`). It is restored from changelogs at the next start.

        Raises:
            StreamsError: If it runs.
            StateInUseError: If another worker uses it.
        """
        from riverrun.hosting.local_state import directories_of
        from riverrun.worker.reset import clean_up

        if self._thread is not None and self._thread.is_alive():
            message = f"{self._application.id} is running: its state is in use"
            raise StreamsError(message, hint="Close it first.")
        clean_up(directories_of(self._application.id, self._application.state_directory))

    def _run(self, instance: StreamsInstance, answering: ExitStack) -> None:
        try:
            with answering:
                self._summary = instance.run()
        except BaseException as error:  # noqa: BLE001 - raised by the calls that wait for the end
            self._error = error
            # `wait_for` in other threads must end as well.
            self._note(WorkerState.ERROR)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _note(self, state: WorkerState) -> None:
        with self._changed:
            before, self._state = self._state, state
            self._changed.notify_all()
        if state is not before:
            # Outside the lock: the listener may ask for the state, or wait for it in another thread.
            with user_code("The state listener"):
                self._listener(state, before)

    def _started(self) -> StreamsInstance:
        if self._instance is None:
            message = f"{self._application.id} was not started"
            raise StreamsError(message, hint="Call start(), or use `with`.")
        return self._instance

    def _require_new(self, before: str) -> None:
        if self._instance is not None:
            message = f"{self._application.id} was started before {before}"
            raise StreamsError(message, hint="Create another worker: app.worker().")
