"""Airflow's DAGs: declared in streams.toml, made by the factory.

It may be copied to any folder of DAGs: the connection `riverrun_default`, the variable `riverrun_project` or RIVERRUN_CONFIG in
the environment says where streams.toml is. Airflow reads only files that name both airflow and dag.
"""

from __future__ import annotations

from riverrun_airflow.dag_factory import dags

globals().update(dags())
