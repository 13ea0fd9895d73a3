"""Decides on the outputs of a bounded run that its gate holds back: publish, judge again, or discard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from riverrun.errors import StreamsError
from riverrun_airflow.acting import acting
from riverrun_airflow.assets import TopicLineage, judged_by_topic, lineage_of
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import ApplicationLink, returning_fields
from riverrun_airflow.sessions import held_by, moved_by_step
from riverrun_airflow.work_requests import DISCARD, HELD_ACTIONS, PUBLISH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from riverrun.config import ProjectConfig
    from riverrun.hosting.gated import GateVerdict
    from riverrun.releases.gated_run import GatedRuns


class HeldRunOperator(BaseOperator):
    """Publishes the outputs of a run that its gate holds back, judges them again, or discards the run (`riverrun held`).

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        action: `publish`, `judge` or `discard`.
        approve: For `publish`: the id of the verdict whose warnings are approved; empty if it has none.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "app", "action", "approve", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#fdf3d8"
    get_openlineage_facets_on_complete = get_openlineage_facets_on_failure = lineage_of

    def __init__(
        self,
        *,
        app: str,
        action: str = PUBLISH,
        approve: str = "",
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**returning_fields(self, kwargs))
        self.app = app
        self.action = action
        self.approve = approve
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id
        self.lineage = TopicLineage()

    def execute(self, context: Context) -> dict[str, Any]:
        """Act, and return the action with the run: `{"app": ..., "action": ..., "run": ..., "records": ...}`."""
        if self.action not in HELD_ACTIONS:
            raise AirflowFailException(f"{self.action!r} is not one of the actions {', '.join(HELD_ACTIONS)}")
        return acting(lambda: self._act(context))

    def _act(self, context: Context) -> dict[str, Any]:
        by = f"airflow:{self.dag_id}/{context['run_id']}"
        project = located(self.config, self.riverrun_conn_id).project()
        held = held_by(project, self.app, by)
        done = {"app": self.app, "action": self.action}
        if self.action == DISCARD:
            return done | {"run": held.discard().id, "records": 0}
        if self.action == PUBLISH:
            return done | self._published(project, held)
        return done | self._judged(project, held)

    def _published(self, project: ProjectConfig, held: GatedRuns) -> dict[str, Any]:
        run = held.status()
        published = held.publish(self.approve)
        self.log.info("%s", published)
        if run is not None:
            self._moved(project, run.version, published.id)
        return {"run": published.id, "records": published.records}

    def _moved(self, project: ProjectConfig, version: str, run: str) -> None:
        """Record for OpenLineage what was published. It is public in any case."""
        try:
            read, written = moved_by_step(project, self.app, version, "cut")  # a cut publishes likewise
        except StreamsError as error:
            self.log.warning("OpenLineage gets no topics: %s", error.message)
            return
        facet = {"app": self.app, "version": version, "run": run}
        self.lineage = TopicLineage(project.kafka["bootstrap.servers"], read, written, facet)

    def _judged(self, project: ProjectConfig, held: GatedRuns) -> dict[str, Any]:
        verdict, run = held.judge(), held.status()
        self.log.info("%s", verdict)
        self.lineage = self._lineage_of(project, verdict)
        if verdict.critical:
            message = f"{self.app}: {'; '.join(f'{name}: {verdict.outcomes[name]}' for name in verdict.critical)}"
            raise AirflowFailException(message)
        found = {"run": "" if run is None else run.id, "records": 0}
        return found | {"verdict": verdict.id, "needs_approval": verdict.needs_approval}

    def _lineage_of(self, project: ProjectConfig, verdict: GateVerdict) -> TopicLineage:
        judged = judged_by_topic(verdict.outcomes)
        facet = {"app": self.app, "verdict": verdict.id, "range": verdict.at}
        return TopicLineage(project.kafka["bootstrap.servers"], tuple(judged), (), facet, judged)
