"""The inputs of an application: where reading starts, how far it is behind, and records that are skipped or gone."""

from __future__ import annotations
