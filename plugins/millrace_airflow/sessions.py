"""Spark sessions of Airflow's tasks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.config import ProjectConfig


def session_for(project: ProjectConfig, master: str | None, packages: Sequence[str] = ()) -> Any:
    """A session as `[spark]` of the project says.

    Args:
        project: The project.
        master: Comes before the project's `spark.master`, if it is not empty.
        packages: Maven coordinates of further Java libraries.

    Raises:
        EngineError: If it does not start.
    """
    from pipeline.spark.engine.java_classes import classes_archive
    from pipeline.spark.session import spark_session

    return spark_session(master or None, project.spark, packages=packages, archive=classes_archive(os.environ))
