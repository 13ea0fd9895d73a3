"""Questions to stores while a worker runs.

`queries` are the questions, `answers` finds what a store has to say. Both travel on a `line` between whoever asks (`asking`)
and the process that has the task (`attendance`).
"""

from __future__ import annotations
