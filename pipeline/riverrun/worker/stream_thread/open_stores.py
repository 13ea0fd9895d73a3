"""Finds the open store for a query: that of a running or standby task, or a global one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.worker.queries.answers import OpenStore, StoreAnswers
from riverrun.worker.queries.queries import Reason, Refusal

if TYPE_CHECKING:
    from riverrun.runtime.stores.global_state import GlobalState
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology
    from riverrun.worker.queries.queries import Page, Question
    from riverrun.worker.tasks.standby_updater import StandbyUpdater
    from riverrun.worker.tasks.task_manager import TaskManager


class OpenStores:
    """The stores of one stream thread.

    Args:
        topology: Defines the stores.
        manager: Owns the tasks; restoring tasks do not answer.
        standbys: Follows tasks that run elsewhere.
    """

    def __init__(self, topology: Topology, manager: TaskManager, standbys: StandbyUpdater) -> None:
        self.tables: GlobalState | None = None
        """Tables that every stream thread holds; None before they are filled."""
        self._global_names = frozenset(declared.store.name for declared in topology.global_stores)
        self._manager = manager
        self._standbys = standbys
        self._answers = StoreAnswers(_builders(topology), self._find)

    def answer(self, question: Question) -> Page | Refusal:
        """Look up the present contents of a store, including uncommitted updates, since processing sees these as well.

        May be called only between two records, or while the thread waits for brokers.
        """
        return self._answers.answer(question)

    def _find(self, question: Question) -> OpenStore | Refusal:
        if self.tables is None:  # asked while brokers are waited for
            return Refusal(Reason.RESTORING, "The stream thread is starting")
        task_id = question.task
        if question.store in self._global_names:
            return OpenStore(self.tables.stores[question.store], self.tables.positions())
        owned = self._manager.running.get(task_id) if task_id is not None else None
        if owned is not None:
            reached = {tp: owned.task.position(tp) for tp in owned.inputs}
            return OpenStore(owned.task.store(question.store), {tp: n for tp, n in reached.items() if n >= 0})
        restoring = self._manager.restoring
        if task_id is not None and task_id in restoring:
            return Refusal(Reason.RESTORING, f"Task {task_id} is being restored", missing=restoring[task_id])
        if task_id in self._standbys.tasks and question.allows_standby:
            store = self._standbys.task(task_id).store(question.store)
            return OpenStore(store, self._standbys.applied(task_id), is_standby=True)
        return Refusal(Reason.NOT_HERE, f"Task {task_id} does not run here")


def _builders(topology: Topology) -> dict[str, StoreBuilder]:
    """Return all stores by name, including global ones."""
    own = {store.name: store for sub in topology.sub_topologies() for store in sub.stores}
    return own | {declared.store.name: declared.store for declared in topology.global_stores}
