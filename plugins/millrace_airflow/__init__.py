"""Millrace for Airflow: operators, the DAG factory and the plugin. The only importer of airflow; submits what the shell runs."""

from __future__ import annotations
