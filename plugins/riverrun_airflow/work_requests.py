"""The pieces of work of tasks that compute on Spark, as values: a task does one itself, or passes it to a driver."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from riverrun.spark.options import DEFAULTS, BackfillOptions, RunOptions
from riverrun.transfers.specs import ExportSpec, ImportSpec  # noqa: TC001 - msgspec reads the annotations

PUBLISH, JUDGE, DISCARD = HELD_ACTIONS = ("publish", "judge", "discard")
"""Decisions on the outputs of a run that its gate holds back."""

# Characters of an author's name that the record of runs keeps.
_LONGEST = 300


class RunRequest(msgspec.Struct, frozen=True, tag="run"):
    """A request for a bounded run; empty texts leave a choice to the project.

    `range` is what start and end have been resolved to. Rows from `recompute_from` up to the end are computed again first, as
    `AppRuns.backfill` does with `recompute`; if it is `downstream`, all that follows as well, as `Riverrun.restatement` does.
    """

    app: str
    start: str
    end: str
    version: str = ""
    master: str = ""
    by: str = ""
    range: str = ""
    options: RunOptions = DEFAULTS
    recompute_from: str = ""
    recompute: BackfillOptions = BackfillOptions()
    downstream: bool = False
    without: tuple[str, ...] = ()


class StepRequest(msgspec.Struct, frozen=True, tag="step"):
    """A request for one of `sessions.STEPS`, about a version (`plan`, `start`, `retire`) or a verdict (`approve`)."""

    app: str
    step: str
    about: str = ""
    master: str = ""
    by: str = ""
    carry: bool = False


class CheckRequest(msgspec.Struct, frozen=True, tag="check"):
    """The request for a check of the live version's public topics; an empty `master` leaves Spark's to the project."""

    app: str
    since: str = ""
    master: str = ""
    by: str = ""


class ImportRequest(msgspec.Struct, frozen=True, tag="import"):
    """A request for an import, whose options may contain secrets."""

    spec: ImportSpec
    packages: tuple[str, ...] = ()
    master: str = ""


class ExportRequest(msgspec.Struct, frozen=True, tag="export"):
    """A request for an export, whose options may contain secrets."""

    spec: ExportSpec
    packages: tuple[str, ...] = ()
    master: str = ""


TransferRequest = ImportRequest | ExportRequest
Request = RunRequest | StepRequest | CheckRequest | TransferRequest


def author_of(dag: str, run: str, task: str, map_index: int = -1) -> str:
    """Return the author of a task instance's runs: at most 300 characters. `map_index` is -1 if the task is not mapped.

    >>> author_of("clicks__run", "manual_1", "run"), author_of("own", "manual_1", "run", 2)
    ('airflow:clicks__run.run/manual_1', 'airflow:own.run/manual_1/2')
    >>> len(author_of("own", "x" * 900, "run")), author_of("own", "x" * 900, "run") == author_of("own", "x" * 901, "run")
    (300, False)
    """
    instance = f"{dag}.{task}/{run}" if map_index < 0 else f"{dag}.{task}/{run}/{map_index}"
    found = f"airflow:{instance}"
    # A digest keeps authors apart that are equal in their first characters: retries find their runs by this name.
    return found if len(found) <= _LONGEST else f"{found[: _LONGEST - 17]}~{sha256(instance.encode()).hexdigest()[:16]}"
