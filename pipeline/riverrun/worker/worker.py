"""`Worker`: takes over all tasks of an application in this process, and runs them until it is stopped."""

from __future__ import annotations

from contextlib import nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING

from riverrun.hosting.alone import WORKER, processing_alone
from riverrun.hosting.barrier_listener import BarrierListener
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.inputs import warn_of_narrow_times
from riverrun.hosting.restoring import silently
from riverrun.hosting.state_schemas import StateSchemas
from riverrun.kafka.admin import Admin
from riverrun.runtime.stuck_records import named_if_stuck
from riverrun.worker.states import WorkerState, moved
from riverrun.worker.stream_thread.stream_thread import StreamThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from riverrun.hosting.application import Application
    from riverrun.hosting.release import Release
    from riverrun.records import TopicPartition
    from riverrun.worker.node_sampling import NodeTimes
    from riverrun.worker.states import WorkerSummary


class Worker:
    """Runs all tasks of one version of an application in this process, without a group.

    It pauses at barriers, and publishes as the control topic says, like the instances of a group.

    Args:
        on_restore: Called with changelog, records restored and records expected.
    """

    def __init__(
        self,
        application: Application,
        *,
        on_state: Callable[[WorkerState], None] = lambda _state: None,
        on_restore: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        self.state = WorkerState.CREATED
        self.has_begun = False
        """True if it has taken tasks; before that it only reads, and has nothing to release."""
        self._application = application = application.lasting()
        self._connected = ConnectedApplication(application, Admin(application.kafka))
        self._on_state = on_state
        self._thread = StreamThread(application, on_restore=on_restore or silently)
        self._news: SimpleQueue[Release] = SimpleQueue()
        # Completes no switch: versions are switched live only while groups of them run.
        self._listener = BarrierListener(
            self._connected.admin, application.config.name, application.version, self._news.put
        )
        self._stopping = False

    @property
    def application(self) -> Application:
        return self._application

    @property
    def node_times(self) -> NodeTimes:
        """Return the time that it has spent at nodes, if samples are taken (`node_sampling.sampled`)."""
        return self._thread.figures.nodes

    def stop(self) -> None:
        """Ask the worker to finish its turn, commit, and release its tasks. May be called from a signal handler."""
        self._stopping = True
        self._thread.stop_waiting()

    def summary(self) -> WorkerSummary:
        return self._thread.figures.summary()

    def run(self, *, until_caught_up: bool = False) -> WorkerSummary:
        """Run until stopped or, with `until_caught_up`, until all inputs have been read to their ends and processed.

        With `until_caught_up`, nothing else may process the application meanwhile.
        """
        try:
            self._move_to(WorkerState.REBALANCING)
            stuck = named_if_stuck(self._thread.figures.node_of)
            with stuck, self._alone() if until_caught_up else nullcontext():
                summary = self._process(until_caught_up=until_caught_up)
        except BaseException:
            self.state = WorkerState.ERROR
            self._on_state(self.state)
            raise
        else:
            self._move_to(WorkerState.NOT_RUNNING)
            return summary
        finally:
            self._listener.close()
            self._thread.close()

    def _alone(self) -> AbstractContextManager[object]:
        return processing_alone(self._connected, WORKER)

    def _process(self, *, until_caught_up: bool) -> WorkerSummary:
        self._thread.start()
        StateSchemas(self._connected.resolved()).check()
        warn_of_narrow_times(self._connected)
        self._listener.start()
        self.has_begun = True
        self._thread.assign_all()
        while not self._stopping and not (until_caught_up and self._thread.has_finished()):
            while not self._news.empty():
                self._thread.learn(self._news.get())
            self._thread.run_once()
            self._thread.look_for_topics()
            if self.state is WorkerState.REBALANCING and not self._thread.figures.restoring:
                self._move_to(WorkerState.RUNNING)
        self._move_to(WorkerState.PENDING_SHUTDOWN)
        # Commits the tasks without an owner, so that the next owner fences nobody.
        self._thread.assign(frozenset(), frozenset())
        return self.summary()

    def _move_to(self, state: WorkerState) -> None:
        self.state = moved(self.state, state)
        self._on_state(state)
