"""Avro on a schema registry: the serde, with generated readers and writers of types."""

from __future__ import annotations
