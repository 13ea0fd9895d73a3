"""Answers statements about an application: `commands` and `inspection` describe it, `pull_queries` read its stores.

`inserted_values` turns rows of constants into records.
"""

from __future__ import annotations
