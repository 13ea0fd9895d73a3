"""What an instance answers over HTTP: queries of its stores, its health, its metrics.

Above the worker: it asks a `Supervisor`, and other instances where tasks run there. No other room knows FastAPI, uvicorn or the
Prometheus client.
"""

from __future__ import annotations
