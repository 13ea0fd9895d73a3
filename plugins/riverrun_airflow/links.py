"""Addresses of the plugin's page, the links from tasks to it, and the descriptions of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from riverrun_airflow.progress import LoggedProgress, spark_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

PAGE = "/riverrun"
"""The path of the page, below Airflow's own address."""

# Methods of operators and sensors whose result may become that of the task.
_RETURNING = ("execute", "resume", "driven", "poke", "result")


class ApplicationLink(BaseOperatorLink):
    """Leads from a task to the page of its application."""

    @property
    def name(self) -> str:
        return "Riverrun"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address of the application's page."""
        return page_of(getattr(operator, "app", ""))


class DocsLink(BaseOperatorLink):
    """Leads from a task that has judged something to the Data Docs of the last check, if there are any."""

    @property
    def name(self) -> str:
        return "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address of the page that the task has built; empty if it has built none."""
        page = getattr(operator, "docs_page", "")
        return f"{docs_of(getattr(operator, 'app', ''))}/{quote(page)}" if page else ""


class SparkLink(BaseOperatorLink):
    """Leads from a task to the web page of its Spark, while that runs."""

    @property
    def name(self) -> str:
        return "Spark"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address of the page of the task's Spark; empty if no Spark was started, or it has no page."""
        return getattr(operator, "spark_page", "") or spark_page()


def logged(task: Any, context: Context) -> LoggedProgress:
    """Return the logger of a task's progress, which also shows its Spark as soon as that has started."""

    def show_spark(page: str) -> None:
        task.spark_page = page
        # Airflow computes links when a task ends. With the XCom, the page can be opened while Spark runs, which is when
        # it exists.
        context["ti"].xcom_push(SparkLink().xcom_key, page)

    return LoggedProgress(task.log, show_spark)


def docs_of(app: str) -> str:
    """Return the base address of an application's Data Docs."""
    return f"{page_of(app)}/docs"


def page_of(app: str) -> str:
    """Return the address of an application's page; for an empty name, of the page of all applications."""
    return f"{base()}{PAGE}/apps/{quote(app)}" if app else f"{base()}{PAGE}/"


def page_of_task(dag: str, run: str, task: str, map_index: int = -1) -> str:
    """Return the address of a task instance in Airflow; `map_index` is -1 if the task is not mapped."""
    mapped = "" if map_index < 0 else f"/mapped/{map_index}"
    return f"{page_of_run(dag, run)}/tasks/{quote(task)}{mapped}"


def page_of_run(dag: str, run: str) -> str:
    """Return the address of a run of a DAG in Airflow."""
    return f"{base()}/dags/{quote(dag)}/runs/{quote(run)}"


def address_of(app: str) -> str:
    """Return the whole address of an application's page, for messages; its path if Airflow has no base URL."""
    return f"{_site()}{page_of(app)}"


def address_of_docs(app: str, page: str) -> str:
    """Return the whole address of a page of an application's Data Docs."""
    return f"{_site()}{docs_of(app)}/{quote(page)}"


def _site() -> str:
    url = urlsplit(conf.get("api", "base_url", fallback="") or "")
    return f"{url.scheme}://{url.netloc}" if url.netloc else ""


def base() -> str:
    """Return the path at which Airflow is served; empty at the root of a host."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def returning_fields(operator: BaseOperator, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return an operator's arguments; other tasks get its result as a whole, and its fields as `task.output["field"]`."""
    # A class of a user's may return what has no fields, and would fail after its work is done.
    methods = (getattr(type(operator), name, None) for name in _RETURNING)
    is_ours = all(method.__module__.startswith(("airflow.", __package__)) for method in methods if method is not None)
    return {"multiple_outputs": is_ours, **documented(operator, kwargs)}


def documented(operator: BaseOperator, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return an operator's arguments, with its class's docstring as the task's description."""
    said = (type(operator).__doc__ or "").partition("    Args:")[0]
    return {"doc_md": "\n".join(line.strip() for line in said.splitlines()).strip(), **kwargs}
