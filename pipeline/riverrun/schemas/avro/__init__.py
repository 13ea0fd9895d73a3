"""Avro on a schema registry: the serde, with generated readers and writers of types."""

# fastavro parses schemas, and does not read or write values: it changes some, loses branches of unions, and a value nested
# deeply ends its process (tests/unit/schemas/test_avro_library.py). Recursive schemas and errors need the plain functions
# anyway. Generated ones take half the time of its compiled code or less: dicts are read 1.5 to 3.1 times as fast and written
# 1.8 to 4.1 times, objects of types 2.4 and 3.7 to 4.2 times.

from __future__ import annotations
