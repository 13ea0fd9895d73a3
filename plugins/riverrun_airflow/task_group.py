"""Tasks of an application for DAGs of other authors: chained as in the project's DAGs, or made by a decorated function."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import TaskGroup, TriggerRule
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory
from airflow.sdk.definitions.context import context_merge
from airflow.sdk.exceptions import AirflowFailException

from riverrun.config.checks import nearest
from riverrun.errors import ConfigError
from riverrun_airflow.approval import (
    KEEP,
    RETIRE,
    ROLL_BACK,
    ApprovalOperator,
    HeldRunQuestion,
    SettlementOperator,
    VerdictBranchOperator,
)
from riverrun_airflow.assets import is_template
from riverrun_airflow.hooks import CONNECTION
from riverrun_airflow.operators import BoundedRunOperator, QualityOperator
from riverrun_airflow.pools import pool_of
from riverrun_airflow.releases import ReleaseOperator
from riverrun_airflow.sessions import STEPS as STEPS_OF_RELEASES
from riverrun_airflow.waiting import AwaitOperator, WatchOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.bases.decorator import TaskDecorator

_KINDS: dict[str, Any] = {
    "run": BoundedRunOperator,
    "decide": HeldRunQuestion,
    "judge": QualityOperator,
    **dict.fromkeys((step for step in STEPS_OF_RELEASES if step != "approve"), ReleaseOperator),
    "await": AwaitOperator,
    "verdict": VerdictBranchOperator,
    "approve": ApprovalOperator,
    "watch": WatchOperator,
    "settle": SettlementOperator,
    "keep": EmptyOperator,
}
STEPS = tuple(_KINDS)
"""Steps of task groups; they name the tasks."""
_POOLED = BoundedRunOperator, ReleaseOperator
_ABOUT_A_VERSION = {"plan": "to", "start": "to", "watch": "version"}
"""The parameter of steps that are about the version to release."""
BRANCHES = {RETIRE: "retire", ROLL_BACK: "rollback", KEEP: "keep"}
"""The steps that follow `settle`, by the answer to it."""
# Key of a task's state: what its function has returned.
_ARGUMENTS = "arguments"
_ASKED = tuple(name for name in BoundedRunOperator.template_fields if name not in {"config", "app"})
"""Arguments of a run that a decorated function may return."""
_NOT_OF_A_GROUP = re.compile(r"[^\w-]")


class RiverrunTaskGroup(TaskGroup):
    """The tasks of an application for a DAG of one's own, one after the other, as in the DAGs of its project.

    Args:
        app: The application; it may be a template, or mapped.
        steps: The steps in their order: `run`; `judge`; or those of a release. `decide`, just after `run`, asks what becomes of
            outputs that its gate holds back. `verdict` asks only verdicts with warnings for
            approval, and `settle` is followed by one of `retire`, `rollback` and `keep`, as in the DAG of releases.
        version: The version that a release is about: for `plan`, `start` and `watch`. It may be a template.
        group_id: Id of the group; by default, the application's name.
        operator_args: Arguments of the operators by step: `{"gate": {"retries": 0, "pool": "large"}}`.
        kwargs: Arguments of Airflow's `TaskGroup`: `default_args`, `prefix_group_id`, `tooltip`.

    Raises:
        ConfigError: If a step is unknown, or lacks one that it needs.
    """

    def __init__(
        self,
        app: Any,
        steps: Sequence[str] = ("run",),
        *,
        version: str = "",
        group_id: str = "",
        operator_args: Mapping[str, Mapping[str, Any]] | None = None,
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        tasks = Tasks(app, config, riverrun_conn_id, checked(operator_args or {}, STEPS), version)
        name = "riverrun" if is_template(app) else _NOT_OF_A_GROUP.sub("_", app)
        super().__init__(group_id=group_id or name, **kwargs)
        with self:
            tasks.chain(steps, self.child_id)


@dataclass(frozen=True, slots=True)
class Tasks:
    """Makes tasks of an application.

    Args:
        app: The application; it may be a template, or mapped.
        config: Path of `streams.toml`; empty if tasks are to ask the connection.
        connection: Id of the connection.
        operator_args: Arguments of the operators by step.
        version: The version that a release is about.
    """

    app: Any
    config: str = ""
    connection: str = CONNECTION
    operator_args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: str = ""

    def chain(self, steps: Sequence[str], name: Callable[[str], str] = str) -> dict[str, BaseOperator]:
        """Make a task for each step, one after the other, and return them by step; `name` returns the id of a step's task."""
        _check(steps)
        tasks = {step: self._task(step, self._own(step, steps, name)) for step in steps}
        before: list[BaseOperator] = []
        for step, task in tasks.items():
            if "settle" in tasks and step in BRANCHES.values():
                tasks["settle"] >> task
                continue
            for each in before:
                each >> task
            # The branch: a verdict without warnings goes past `approve`, so what follows depends on both.
            before = [tasks["verdict"], task] if step == "approve" and "verdict" in tasks else [task]
        return tasks

    def _task(self, step: str, own: Mapping[str, Any]) -> BaseOperator:
        kind = _KINDS[step]
        of_all: dict[str, Any] = {"app": self.app, "config": self.config, "riverrun_conn_id": self.connection}
        if kind is EmptyOperator:
            of_all = {}
        elif kind is SettlementOperator:
            of_all = {"app": self.app}
        # Runs of one application must not overlap. The name of a pool cannot be a template, which Airflow fills in too
        # late.
        elif kind in _POOLED and not is_template(self.app):
            of_all["pool"] = pool_of(self.app)
        if kind is ReleaseOperator:
            of_all["step"] = step
        task: BaseOperator = kind(task_id=step, **{**of_all, **own, **self.operator_args.get(step, {})})
        return task

    def _own(self, step: str, steps: Sequence[str], name: Callable[[str], str]) -> dict[str, Any]:
        """Return the arguments that a step has by those around it."""
        own: dict[str, Any] = {}
        if step in _ABOUT_A_VERSION:
            own[_ABOUT_A_VERSION[step]] = self.version
        if step == "judge" and "run" in steps:
            # A skipped run does not skip `judge`, which would then judge again what has passed a check.
            own["skip_if_judged"] = bool(self.operator_args.get("run", {}).get("skip_if_empty"))
        if step in {"verdict", "approve"} and "gate" in steps:
            own["verdict"] = f"{{{{ ti.xcom_pull(task_ids='{name('gate')}')['verdict'] }}}}"
        elif step == "verdict":
            own["verdict"] = ""
        if "verdict" in steps:
            after = steps[steps.index("approve") + 1]
            if step == "verdict":
                own |= {"asking": name("approve"), "clean": name(after)}
            elif step == after:
                # One of the two tasks before it is skipped, and by default a skipped task skips what follows.
                own["trigger_rule"] = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
        if step == "settle":
            own["branches"] = {answer: name(branch) for answer, branch in BRANCHES.items()}
            own["then"] = "ask"
            if "watch" in steps:
                found = f"ti.xcom_pull(task_ids='{name('watch')}')"
                own["found"] = f"{{{{ {found} or '' }}}}"
                own["body"] = f"{{{{ {found} or 'The watch found nothing.' }}}}"
        return own


def checked(operator_args: Mapping[str, Mapping[str, Any]], known: Iterable[str]) -> Mapping[str, Mapping[str, Any]]:
    """Return arguments of operators, after a check that their keys are known."""
    for key in operator_args:
        if key not in known:
            raise ConfigError(f"operator_args has {key!r}, which is not a step", hint=nearest(key, known))
    return operator_args


def _check(steps: Sequence[str]) -> None:
    for step in steps:
        if step not in _KINDS:
            raise ConfigError(f"{step!r} is not a step of an application", hint=nearest(step, STEPS))
    if len({*steps}) < len(steps):
        raise ConfigError(f"The steps {', '.join(steps)} name a step twice", hint="Use a second group.")
    if "decide" in steps and (*steps, "")[(*steps, "").index("decide") - 1] != "run":
        message = "The step decide is about outputs that a run holds back"
        raise ConfigError(message, hint="It comes just after the step run.")
    if "verdict" in steps:
        rest = [*steps[steps.index("verdict") + 1 :], ""]
        if rest[0] != "approve" or not rest[1]:
            message = "The step verdict is followed by approve and a further step"
            raise ConfigError(message, hint="For example gate, verdict, approve, cut.")
    if "settle" in steps and not {*BRANCHES.values()} <= {*steps[steps.index("settle") + 1 :]}:
        message = f"The step settle is followed by {', '.join(BRANCHES.values())}"
        raise ConfigError(message, hint="Leave settle out, or name all of them after it.")


class DecoratedRunOperator(DecoratedOperator, BoundedRunOperator):
    """A bounded run with the arguments that a function returns. `@task.riverrun_run(app=...)` makes such a task.

    The function is called once: retries, and a task that is cleared, have the same arguments.

    Args:
        python_callable: The function. It returns a dictionary with some of `start`, `end`, `version`, `advance_stream_time_to`,
            `dry`, `engine`, `max_records_per_slice`, `wall_clock_punctuation` and `gate`, which may be templates.
        op_args: Its arguments by position.
        op_kwargs: Its arguments by name.
        kwargs: Arguments of `BoundedRunOperator`, which hold where the function returns none.
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *BoundedRunOperator.template_fields)
    custom_operator_name = "@task.riverrun_run"
    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)

    def execute(self, context: Context) -> Any:
        self._ask(context)
        return super().execute(context)

    def driven(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue after a driver has ended, with the same arguments."""
        self._ask(context)
        return super().driven(context, event)

    def _ask(self, context: Context) -> None:
        store: Any = context["task_state_store"]
        # Asked once: a retry with other arguments would process another range than its first attempt.
        asked = store.get(_ARGUMENTS)
        if asked is None:
            context_merge(context, self.op_kwargs)
            asked = self.python_callable(*self.op_args, **self.determine_kwargs(context))
            _require_arguments(asked)
            store.set(_ARGUMENTS, asked)
        for name, value in asked.items():
            setattr(self, name, value)
        self.render_template_fields(context)


def _require_arguments(asked: Any) -> None:
    wrong = [name for name in asked if name not in _ASKED] if isinstance(asked, dict) else [repr(asked)]
    if wrong:
        hint = f"Hint: It returns a dictionary with some of {', '.join(_ASKED)}."
        raise AirflowFailException(f"The function of @task.riverrun_run returned {', '.join(map(str, wrong))}\n{hint}")


def riverrun_run_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Return what Airflow calls for `@task.riverrun_run`: it makes a bounded run of a function that returns its arguments."""
    return task_decorator_factory(
        python_callable=python_callable,
        # The function returns arguments, and the task its result.
        multiple_outputs=True,
        decorated_operator_class=DecoratedRunOperator,
        **kwargs,
    )
