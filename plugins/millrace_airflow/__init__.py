"""Millrace for Airflow: operators, the DAG factory and the plugin. The only importer of airflow."""

from __future__ import annotations
