"""The command `riverrun`: arguments, output and exit codes. It has no logic; commands import engines on demand."""

from __future__ import annotations
