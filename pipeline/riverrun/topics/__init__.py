"""The records of topics, read and written as text, and dead letters. The worker and the DSL are not needed."""

from __future__ import annotations
