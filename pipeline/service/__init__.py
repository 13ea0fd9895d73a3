"""Answers over HTTP: queries of an instance's stores, its health, its metrics.

Above the worker: it asks a `Supervisor`, and other instances for tasks that run there. No other room imports FastAPI, uvicorn
or the Prometheus client.
"""

from __future__ import annotations
