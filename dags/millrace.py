"""Airflow's DAGs: declared in streams.toml, made by the factory.

It may be copied to any folder of DAGs: the connection `millrace_default`, the variable `millrace_project` or MILLRACE_CONFIG in
the environment says where streams.toml is. Airflow reads only files that name both airflow and dag.
"""

from __future__ import annotations

from millrace_airflow.dag_factory import dags

globals().update(dags())
