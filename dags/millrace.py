"""Airflow's DAGs: declared in streams.toml, made by the factory.

Airflow reads only files that name both airflow and dag.
"""

from __future__ import annotations

from pathlib import Path

from millrace_airflow.dag_factory import dags

globals().update(dags(Path(__file__).resolve().parent.parent / "streams.toml"))
