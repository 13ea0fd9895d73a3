"""Tasks: the one place where records meet processors, whichever host runs them.

`layout` says which tasks a topology has, `compile` builds a sub-topology's operators, `task` runs them, `ports` is what a
host must supply. Knows neither the DSL nor Kafka. May import operators, topology and what lies below.
"""

from __future__ import annotations
