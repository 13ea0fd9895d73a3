"""Protobuf on a schema registry: the serde, its schemas as text, and the types of fields."""

from __future__ import annotations
