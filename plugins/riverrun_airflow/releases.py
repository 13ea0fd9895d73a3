"""Steps of releases as tasks: plan, reprocess, gate, cut and what follows. Each may be repeated."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from riverrun.errors import StreamsError
from riverrun.hosting.release import ACTIONS
from riverrun_airflow.acting import acting, end_at_once
from riverrun_airflow.assets import TopicLineage, judged_by_topic, lineage_of
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import ApplicationLink, DocsLink, SparkLink, logged, returning_fields
from riverrun_airflow.progress import following
from riverrun_airflow.results import result_of_step
from riverrun_airflow.sessions import STEPS, moved_by_step, published_by, releaser_of, retired_by, take
from riverrun_airflow.submission import concluded, is_apart, submit
from riverrun_airflow.work_requests import StepRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow.sdk import Context

    from riverrun.config import ProjectConfig
    from riverrun.hosting.gated import GateVerdict
    from riverrun_airflow.drivers import Note

_RETIRED = "retired"


class ReleaseOperator(BaseOperator):
    """Takes one step of a release (`riverrun release STEP`). Each step may be repeated.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        step: `plan`, `start`, `reprocess`, `gate`, `approve`, `cut`, `rollback`, `retire` or `abort`.
        to: The version that is to go live; for `plan` and `start`.
        verdict: For `approve`: the id of the verdict whose warnings are approved; empty to approve nothing.
        carry: For `plan` and `start`: whether the version takes over the state of the live version where nothing about it has
            changed. A template may make it the text `True` or `False`.
        apart: As in `BoundedRunOperator`, for steps that may compute on Spark: `reprocess`, `gate`, `cut`, `rollback`, and
            `start` if it carries state.
        config: Path of `streams.toml`; by default, as the connection says.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "app", "step", "to", "verdict", "carry", "master", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(), DocsLink(), SparkLink())
    ui_color = "#eef7ea"
    get_openlineage_facets_on_complete = get_openlineage_facets_on_failure = lineage_of

    def __init__(
        self,
        *,
        app: str,
        step: str,
        config: str = "",
        to: str = "",
        verdict: str = "",
        carry: bool | str = False,
        master: str = "",
        apart: bool | None = None,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**returning_fields(self, kwargs))
        self.config = config
        self.app = app
        self.docs_page, self.lineage = "", TopicLineage()
        self.step = step
        self.to = to
        self.verdict = verdict
        self.carry = carry
        self.master = master
        self.apart, self.spark_page = apart, ""
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Take the step, and return the state of the release (`results.result_of_step`). A failed gate is not retried."""
        return acting(partial(self._take, context))

    def on_kill(self) -> None:
        """End the task, and Spark with its process; the step may be taken again."""
        end_at_once()

    def driven(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue after a driver has taken the step, or has failed."""
        project = acting(lambda: located(self.config, self.riverrun_conn_id).project())

        def conclude(_: Note) -> dict[str, Any]:
            found = self._found(project)
            self._moved(project, found)
            return found

        with self._judging(project):
            return concluded(self, context, event, conclude)

    @contextmanager
    def _judging(self, project: ProjectConfig) -> Iterator[None]:
        """Note what a gate has judged, if this context fails: a failed gate has a verdict, too."""
        try:
            yield
        except Exception:
            try:
                self._found(project)
            # It must not hide why the step has failed.
            except Exception as error:  # noqa: BLE001 - as above
                self.log.warning("What the step has found is not known: %s", error)
            raise

    def _take(self, context: Context) -> dict[str, Any]:
        if self.step not in STEPS:
            raise AirflowFailException(f"{self.step!r} is not a step of a release: {', '.join(STEPS)}")
        location = located(self.config, self.riverrun_conn_id)
        project = location.project()
        request = self._request(context, project)
        # The other steps read, or change topics and records of releases, within seconds: a driver would take longer to start.
        computes = ACTIONS[self.step].computes or (self.step == "start" and request.carry)
        if computes and is_apart(self, project):
            submit(self, context, location, request)
        with self._judging(project), following(logged(self, context)):
            self.log.info("%s", take(project, request))
        found = self._found(project)
        self._moved(project, found)
        return found

    def _request(self, context: Context, project: ProjectConfig) -> StepRequest:
        by = f"airflow:{self.dag_id}/{context['run_id']}"
        given = {"to": self.to, "verdict": self.verdict}
        about = self._retired(context, project) if self.step == "retire" else given.get(ACTIONS[self.step].option, "")
        carries = str(self.carry).strip().lower() == "true"
        return StepRequest(self.app, self.step, about, self.master, by, carries)

    def _retired(self, context: Context, project: ProjectConfig) -> str:
        store: Any = context["task_state_store"]
        # The first attempt may have taken the version out of the release: a second one still has to delete what is left
        # of it.
        version: str = store.get(_RETIRED) or retired_by(releaser_of(project, self.app, "", ""))
        store.set(_RETIRED, version)
        return version

    def _found(self, project: ProjectConfig) -> dict[str, Any]:
        """Return the state of the release. After a gate, note what it has judged."""
        release = releaser_of(project, self.app, "", "").status()
        if self.step == "gate" and release.verdict is not None:
            self._judged(project, release.verdict)
        return result_of_step(self.step, release, self.docs_page)

    def _moved(self, project: ProjectConfig, found: dict[str, Any]) -> None:
        """Record for OpenLineage what a step that computes or publishes has read and written. The step is done in any case."""
        version = found["candidate" if self.step == "reprocess" else "live"]
        try:
            read, written = moved_by_step(project, self.app, version, self.step)
        except StreamsError as error:
            self.log.warning("OpenLineage gets no topics: %s", error.message)
            return
        if written:
            facet = {"app": self.app, "version": version, "step": self.step}
            self.lineage = TopicLineage(project.kafka["bootstrap.servers"], read, written, facet)

    def _judged(self, project: ProjectConfig, verdict: GateVerdict) -> None:
        """Record the page of a verdict, and its lineage for OpenLineage."""
        self.docs_page = next(iter(verdict.pages.values()), "")
        judged = judged_by_topic(verdict.outcomes)
        facet = {"app": self.app, "verdict": verdict.id, "range": verdict.at}
        topics = tuple(topic for topic in judged if topic in published_by(project, self.app))
        self.lineage = TopicLineage(project.kafka["bootstrap.servers"], topics, (), facet, judged)
