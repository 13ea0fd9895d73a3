"""Arguments of operators: their signatures say what the options of commands say, and templates may turn them into text."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from inspect import Parameter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowFailException

from riverrun.spark.options import MAX_RECORDS_PER_SLICE, RunOptions
from riverrun.transfers.specs import ExportSpec, ImportSpec
from riverrun_airflow.archives import ArchiveOperator
from riverrun_airflow.arguments import rendered
from riverrun_airflow.held import HeldRunOperator
from riverrun_airflow.operators import BoundedRunOperator, QualityOperator, _Recomputation
from riverrun_airflow.releases import ReleaseOperator
from riverrun_airflow.transfers import ExportOperator, ImportOperator
from riverrun_airflow.waiting import AwaitOperator, NewRecordsSensor, ProcessedSensor, WatchOperator
from riverrun_airflow.work_requests import ExportRequest, ImportRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = [
    (BoundedRunOperator, RunOptions),
    (BoundedRunOperator, _Recomputation),
    (ImportOperator, ImportSpec),
    (ExportOperator, ExportSpec),
]
OPERATORS = [BoundedRunOperator, QualityOperator, ImportOperator, ExportOperator]
OTHERS = [
    ArchiveOperator,
    AwaitOperator,
    HeldRunOperator,
    NewRecordsSensor,
    ProcessedSensor,
    ReleaseOperator,
    WatchOperator,
]
CASES = [(operator, kind, each.name) for operator, kind in OPTIONS for each in fields(kind)]
# Written otherwise in DAG files: Parquet is the default, and lists and dictionaries are easier to write.
OTHERWISE = {"format", "options", "key", "partition_by"}
OF_ALL = {"config": "", "master": "", "apart": None, "riverrun_conn_id": "riverrun_default"}


def parameters(operator: Any) -> dict[str, Parameter]:
    return dict(inspect.signature(operator.__init__).parameters)


def parts(annotation: Any) -> set[Any]:
    """Return the members of a union, or the type alone."""
    return set(get_args(annotation)) or {annotation}


@pytest.mark.parametrize(("operator", "kind", "name"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_an_operator_has_an_argument_for_each_option(operator: Any, kind: Any, name: str) -> None:
    (option,) = (each for each in fields(kind) if each.name == name)
    found = parameters(operator)[name]
    assert found.kind is Parameter.KEYWORD_ONLY
    if name in OTHERWISE:
        return
    assert found.default == (Parameter.empty if option.default is MISSING else option.default)
    # The text of a template is accepted where another type is meant.
    own = parts(
        get_type_hints(operator.__init__, vars(inspect.getmodule(operator)) | {"Mapping": dict, "Sequence": list})[name]
    )
    declared = parts(get_type_hints(kind)[name])
    assert own in (declared, declared | {str})
    assert (str in own) or name not in operator.template_fields


@pytest.mark.parametrize("operator", OPERATORS)
def test_users_see_where_an_operator_finds_the_project_and_spark(operator: Any) -> None:
    found = parameters(operator)
    assert {name: found[name].default for name in OF_ALL} == OF_ALL
    assert found["kwargs"].kind is Parameter.VAR_KEYWORD


@pytest.mark.parametrize("operator", [*OPERATORS, *OTHERS])
def test_the_docstring_of_an_operator_describes_each_argument(operator: Any) -> None:
    described = inspect.getdoc(operator) or ""
    named = [name for name in parameters(operator) if name not in {"self", "kwargs"}]
    assert [name for name in named if f"    {name}: " not in described] == []


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_keeps_what_it_is_given(operator: Any) -> None:
    own: dict[str, Any] = {"options": {"a": "b"}, "key": ("k",), "partition_by": ("day(at)",), "packages": ("p",)}
    names = [name for name, each in parameters(operator).items() if each.kind is Parameter.KEYWORD_ONLY]
    given = {name: own.get(name, f"a {name}") for name in names}
    made = operator(task_id="one", **given)
    assert {name: getattr(made, name) for name in given} == given


def task_with(**others: Any) -> Any:
    return SimpleNamespace(**{each.name: each.default for each in fields(RunOptions)} | others)


@pytest.mark.parametrize("nothing", [None, "", "None"])
def test_a_template_without_a_value_leaves_the_default(nothing: Any) -> None:
    assert rendered(task_with(**{each.name: nothing for each in fields(RunOptions)}), RunOptions) == RunOptions()


@pytest.mark.parametrize("punctuation", ["refuse", "once", "never"])
def test_templates_give_options_as_text(punctuation: str) -> None:
    task = task_with(max_records_per_slice="500", gate="False", engine="local", wall_clock_punctuation=punctuation)
    assert rendered(task, RunOptions) == RunOptions(
        engine="local", max_records_per_slice=500, gate=False, wall_clock_punctuation=punctuation
    )
    assert rendered(task_with(gate="true"), RunOptions).gate is True
    assert rendered(task_with(max_records_per_slice="0"), RunOptions).max_records_per_slice == MAX_RECORDS_PER_SLICE


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"gate": "perhaps"}, "gate is 'perhaps', which is neither true nor false"),
        ({"max_records_per_slice": "many"}, "max_records_per_slice is 'many', which is not a natural number"),
    ],
)
def test_a_text_that_is_no_option_fails_the_task(others: dict[str, str], message: str) -> None:
    with pytest.raises(AirflowFailException, match=message):
        rendered(task_with(**others), RunOptions)


def test_a_run_gets_the_treatment_of_wall_clock_punctuation() -> None:
    run = BoundedRunOperator(task_id="run", app="clicks", wall_clock_punctuation="once")
    assert "wall_clock_punctuation" in run.template_fields
    assert rendered(run, RunOptions) == RunOptions(wall_clock_punctuation="once")


def transfers(**others: Any) -> Iterator[Any]:
    yield ImportOperator(task_id="there", source="in", topic="t", **others)
    yield ExportOperator(task_id="back", topic="t", target="out", **others)


@pytest.mark.parametrize("name", [None, ""])
def test_a_transfer_without_a_name_has_that_of_its_topic(name: Any) -> None:
    there, back = (each._request() for each in transfers(name=name, apart=True))
    assert there == ImportRequest(ImportSpec("t", "in", "parquet"))
    assert back == ExportRequest(ExportSpec("t", "out", "parquet"))
    assert (there.spec.id, back.spec.id) == ("t", "t")


@pytest.mark.parametrize(
    "wrong",
    [{"schema": 5}, {"name": 5}, {"format": None}, {"topic": None}, {"key": (1,)}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_arguments_of_a_wrong_type_fail_the_task_before_it_works(wrong: dict[str, Any]) -> None:
    for task in transfers():
        for name, value in wrong.items():
            setattr(task, name, value)
        with pytest.raises(
            AirflowFailException, match=rf"Arguments of task {task.task_id} do not fit: .*\$\.{next(iter(wrong))}"
        ):
            task._request()


@pytest.mark.parametrize("wrong", [Path("in"), np.int64(3), b"in", object()], ids=lambda wrong: type(wrong).__name__)
def test_an_argument_of_any_wrong_type_is_named(wrong: Any) -> None:
    for task, kind in zip(transfers(), (ImportSpec, ExportSpec), strict=True):
        given = [each.name for each in fields(kind) if each.name != "options"]
        for name in given:
            before = getattr(task, name)
            setattr(task, name, wrong)
            with pytest.raises(AirflowFailException, match=rf"do not fit: .*\$\.{name}"):
                task._request()
            setattr(task, name, before)


@pytest.mark.parametrize("value", [True, 5, None, Path("a"), np.int64(3)], ids=lambda value: type(value).__name__)
def test_an_option_that_is_no_text_is_named(value: Any) -> None:
    for task in transfers(options={"header": value}):
        with pytest.raises(AirflowFailException, match=r"do not fit: option header is of type \w+; write it as text"):
            task._request()
