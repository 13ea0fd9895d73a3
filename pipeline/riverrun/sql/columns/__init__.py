"""Columns that statements leave to a schema registry: asked once, kept in a file next to the statements, read by each build."""

from __future__ import annotations

from riverrun.sql.columns.requests import Found, Resolver, Wanted, wanted_columns

__all__ = ["Found", "Resolver", "Wanted", "wanted_columns"]
