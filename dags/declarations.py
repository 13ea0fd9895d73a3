"""Shows errors of applications in `streams.toml` as the import error of this file, while the DAGs of the others stand.

It may be copied like `applications.py`. It makes no DAG.
"""

from __future__ import annotations

from riverrun_airflow.dag_factory import check_declarations

check_declarations()
