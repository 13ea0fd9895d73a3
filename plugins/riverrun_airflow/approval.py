"""Asks a user for an approval or a decision, which is bound to the verdict that was shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.providers.standard.operators.hitl import HITLBranchOperator, HITLOperator
from airflow.sdk import TriggerRule
from airflow.sdk.exceptions import AirflowFailException

from riverrun_airflow.acting import acting
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import ApplicationLink, documented
from riverrun_airflow.sessions import held_by, releaser_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow.sdk import Context

    from riverrun.hosting.gated import GateVerdict
    from riverrun.hosting.release import Release
    from riverrun.releases.gated_run import GatedRuns
    from riverrun.releases.releaser import Releaser
    from riverrun.releases.rows import DifferentRow

APPROVE, REJECT = "Approve", "Reject"
RETIRE, ROLL_BACK, KEEP = "Retire the previous version", "Roll back", "Keep both"
PUBLISH_HELD, JUDGE_HELD, DISCARD_HELD = "Publish", "Judge again", "Discard the run"
_SHOWN_VERDICT, _SHOWN_RUN = "verdict", "run"
_SHOWN_ROWS = 20


class ApprovalOperator(HITLOperator):
    """Asks a person whether the warnings of a gate are approved, and approves that verdict alone.

    The person sees which expectations fail, and rows that differ with keys, old and new values. If the verdict needs no
    approval, no person is asked. If another gate judges the candidate before the answer comes, the answer is refused.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        verdict: The id of the verdict; by default, that of the last gate.
        rows: Maximum number of differing rows to show.
    """

    template_fields: Sequence[str] = (
        "subject",
        "body",
        "config",
        "app",
        "verdict",
        "riverrun_conn_id",
    )
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#fdf3d8"

    def __init__(
        self,
        *,
        app: str,
        verdict: str = "",
        config: str = "",
        rows: int = _SHOWN_ROWS,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        kwargs = {"subject": f"Release of {app}", "options": [APPROVE, REJECT], **documented(self, kwargs)}
        super().__init__(**kwargs)
        self.app = app
        self.verdict = verdict
        self.config = config
        self.rows = rows
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> Any:
        """Ask and defer the task, which frees its slot; return at once if nothing is to be approved."""
        verdict = acting(lambda: self._prepare(self._releaser(f"airflow:{self.dag_id}/{context['run_id']}")))
        if not verdict.needs_approval:
            self.log.info("No approval is needed: %s", verdict)
            return verdict.id
        store: Any = context["task_state_store"]
        # Kept before asking: the answer approves what was shown, even if another gate has judged meanwhile (`approve`
        # refuses then).
        store.set(_SHOWN_VERDICT, verdict.id)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Handle the answer: approve the verdict that was shown, or fail."""
        chosen = super().execute_complete(context, event)
        store: Any = context["task_state_store"]
        shown = store.get(_SHOWN_VERDICT)
        name = (event.get("responded_by_user") or {}).get("name") or "nobody"
        if APPROVE not in chosen["chosen_options"]:
            raise AirflowFailException(f"{self.app}: {name} rejects verdict {shown}; the live version stays live")
        by = f"airflow:{name} ({self.dag_id}/{context['run_id']})"
        release = acting(lambda: self._releaser(by).approve(shown))
        self.log.info("%s", release)
        return shown

    def _releaser(self, by: str) -> Releaser:
        return releaser_of(located(self.config, self.riverrun_conn_id).project(), self.app, "", by)

    def _prepare(self, releaser: Releaser) -> GateVerdict:
        """Find the verdict, and prepare its description."""
        release = releaser.status()
        verdict = verdict_of(release, self.verdict)
        self.verdict = verdict.id
        if verdict.needs_approval:
            self.subject = f"{self.app}: should {release.candidate} replace {release.live}?"
            self.body = said_of(verdict, releaser.diff(self.rows))
        return verdict


class VerdictBranchOperator(BaseBranchOperator):
    """Skips the question to a person if a gate has passed without warnings.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        verdict: The id of the gate's verdict.
        clean: The task that follows a verdict that has no warnings, or is approved.
        asking: The task that follows a verdict with warnings.
    """

    template_fields: Sequence[str] = ("config", "app", "verdict", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#f0f0f0"

    def __init__(
        self,
        *,
        app: str,
        verdict: str,
        clean: str,
        asking: str,
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.app = app
        self.verdict = verdict
        self.clean = clean
        self.asking = asking
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id

    def choose_branch(self, context: Context) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the id of the task that follows."""
        found = acting(lambda: verdict_of(release_of(self.config, self.riverrun_conn_id, self.app), self.verdict))
        return self.asking if found.needs_approval else self.clean


class HeldRunQuestion(HITLOperator):
    """Asks a person what becomes of the outputs of a run that its gate holds back, and does it (`riverrun held`).

    It follows the task of a run that has failed. If no outputs are held back, it fails as well, so the DAG's run does too.
    The answer is about the run and the verdict that were shown.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
    """

    template_fields: Sequence[str] = ("subject", "body", "config", "app", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#fdf3d8"

    def __init__(self, *, app: str, config: str = "", riverrun_conn_id: str = CONNECTION, **kwargs: Any) -> None:
        given: dict[str, Any] = {"subject": f"Held outputs of {app}", "trigger_rule": TriggerRule.ONE_FAILED}
        given["options"] = [PUBLISH_HELD, JUDGE_HELD, DISCARD_HELD]
        super().__init__(**{**given, **documented(self, kwargs)})
        self.app = app
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> Any:
        """Ask and defer the task, which frees its slot; fail if nothing is held back."""
        run = acting(lambda: self._held("").status())
        if run is None or run.verdict is None:
            raise AirflowFailException(f"{self.app}: the run has failed, and holds no outputs back: its log says why")
        self.subject = f"{self.app}: what becomes of the outputs of run {run.id}?"
        self.body = said_of(run.verdict, ())
        if run.verdict.critical:
            self.options = [JUDGE_HELD, DISCARD_HELD]
            failed = "\n".join(f"- {_text(name)}: {_text(run.verdict.outcomes[name])}" for name in run.verdict.critical)
            self.body = f"{self.body}\n\nCritical:\n\n{failed}"
        store: Any = context["task_state_store"]
        store.set(_SHOWN_RUN, [run.id, run.verdict.id])
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Handle the answer: publish the outputs, judge them again and publish them if they pass, or discard the run."""
        (chosen,) = super().execute_complete(context, event)["chosen_options"]
        store: Any = context["task_state_store"]
        shown, verdict = store.get(_SHOWN_RUN)
        name = (event.get("responded_by_user") or {}).get("name") or "nobody"
        held = self._held(f"airflow:{name} ({self.dag_id}/{context['run_id']})")
        return acting(lambda: self._decided(held, chosen, shown, verdict))

    def _decided(self, held: GatedRuns, chosen: str, shown: str, verdict: str) -> dict[str, Any]:
        run = held.status()
        if run is None or run.id != shown:
            raise AirflowFailException(f"{self.app}: the outputs of run {shown} are not held back any more")
        told = {"app": self.app, "action": chosen, "run": shown}
        if chosen == DISCARD_HELD:
            held.discard()
            return {**told, "records": 0}
        if chosen == JUDGE_HELD:
            found = held.judge()
            self.log.info("%s", found)
            if found.critical or found.needs_approval:
                message = f"{self.app}: the outputs do not pass: {', '.join([*found.critical, *found.warnings])}"
                raise AirflowFailException(f"{message}\nHint: Clear this task to be asked about verdict {found.id}.")
            verdict = found.id
        return {**told, "records": held.publish(verdict).records}

    def _held(self, by: str) -> GatedRuns:
        return held_by(located(self.config, self.riverrun_conn_id).project(), self.app, by)


class SettlementOperator(HITLBranchOperator):
    """Asks a person what to do with the previous version, once the new one has been watched.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        then: `ask`; or `retire` or `keep`, which ask only if the watch found something.
        found: Findings of the watch; empty if there are none.
        branches: The task of each answer.
    """

    template_fields: Sequence[str] = ("subject", "body", "then", "found")
    ui_color = "#fdf3d8"

    def __init__(self, *, app: str, then: str, branches: dict[str, str], found: str = "", **kwargs: Any) -> None:
        given = {
            "subject": f"{app}: what should happen to the previous version?",
            "options": [RETIRE, ROLL_BACK, KEEP],
            "options_mapping": branches,
            "body": "{{ ti.xcom_pull(task_ids='watch') or 'The watch found nothing.' }}",
        }
        super().__init__(**{**given, **documented(self, kwargs)})
        self.app = app
        self.then = then
        self.found = found

    def execute(self, context: Context) -> Any:
        """Branch at once, or ask and defer the task."""
        answers = {"retire": RETIRE, "keep": KEEP}
        if self.then not in {"ask", *answers}:
            raise AirflowFailException(f"then is {self.then!r}, not one of ask, {', '.join(answers)}")
        if self.then in answers and not self.found:
            return self.do_branch(context, self.options_mapping[answers[self.then]])
        return super().execute(context)


def release_of(config: str, connection: str, app: str) -> Release:
    """Return the state of an application's release."""
    return releaser_of(located(config, connection).project(), app, "", "").status()


def verdict_of(release: Release, wanted: str) -> GateVerdict:
    """Return the verdict of the last gate. Fail if it does not have the id `wanted`; an empty id accepts any."""
    verdict = release.verdict
    if verdict is None or (wanted and verdict.id != wanted):
        last = "no gate has judged the candidate" if verdict is None else f"the last gate's verdict is {verdict.id}"
        raise AirflowFailException(f"{release.app}: verdict {wanted} no longer holds: {last}")
    return verdict


def said_of(verdict: GateVerdict, rows: Iterable[DifferentRow]) -> str:
    """Return the description of a verdict, with rows that differ, as Markdown."""
    lines = [f"Verdict `{verdict.id}`, at `{verdict.at}`", "", "Failing expectations:", ""]
    lines += [f"- {_text(name)}: {_text(verdict.outcomes.get(name, ''))}" for name in verdict.warnings]
    passed = sum(outcome.startswith("passed") for outcome in verdict.outcomes.values())
    lines += ["", f"{passed} other expectations pass.", ""]
    shown = list(rows)
    if not shown:
        return "\n".join([*lines, "No row of a table differs."])
    lines += ["Rows that differ, among them:", "", "| Topic | Change | Key | Old | New |", "|---|---|---|---|---|"]
    for row in shown:
        cells = (row.topic, row.change, " ".join(map(str, row.key.values())), _fields(row.old), _fields(row.new))
        lines.append(f"| {' | '.join(map(_text, cells))} |")
    return "\n".join(lines)


def _fields(value: Any) -> str:
    if not value:
        return "-"
    return ", ".join(f"{name} {each}".strip() for name, each in sorted(value.items()))


def _text(text: Any) -> str:
    """Return a text escaped for table cells."""
    plain = str(text).replace("\n", " ").replace("<", "&lt;")
    # Rows have texts of the application's users: none may end a cell of the table, or add markup.
    return "".join(f"\\{each}" if each in "|\\`*_[]" else each for each in plain)
