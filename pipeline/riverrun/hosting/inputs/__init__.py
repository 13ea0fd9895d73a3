"""The inputs of an application: where reading starts, how far it lags, and which records are skipped or deleted."""

from __future__ import annotations
