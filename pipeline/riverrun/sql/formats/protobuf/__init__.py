"""Rows of SQL in Protobuf: read and written by generated functions."""

from __future__ import annotations
