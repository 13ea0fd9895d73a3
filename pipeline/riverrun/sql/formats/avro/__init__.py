"""Rows of SQL in Avro: read and written by generated functions."""

from __future__ import annotations
