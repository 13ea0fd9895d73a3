"""Answers over HTTP: queries of an instance's stores, its health, its metrics.

Above the worker: it asks a `StreamsInstance`, and other instances for tasks that run there. The console of a project shares
its responses, access and server; no other room imports FastAPI, uvicorn or the Prometheus client.
"""

from __future__ import annotations
