"""The page of applications in Airflow's navigation: routes (`page`), what it shows (`overview`), and how (`views`)."""

from __future__ import annotations
