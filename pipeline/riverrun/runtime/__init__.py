"""Tasks: the one place where records meet processors, whichever host runs them.

`layout` derives the tasks of a topology, `generating` builds a sub-topology's operators and `task` runs them; its stores
belong to the `state_manager` in `stores`. `ports` is the interface that a host must supply. The package knows neither the DSL
nor Kafka. It may import operators, topology and lower layers.
"""

from __future__ import annotations
