"""Riverrun for Airflow: operators, the DAG factory and the plugin. No other package imports airflow."""

from __future__ import annotations
