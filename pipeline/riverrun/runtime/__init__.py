"""Tasks: the one place where records meet processors, whichever host runs them.

`layout` derives the tasks of a topology. `compile` builds a sub-topology's operators, many of them as one generated function
(`fusion`), and `task` runs them. `inputs` chooses the next record, `state_manager` owns the stores, and `times` keeps times.
`ports` is the interface that a host must supply. The package knows neither the DSL nor Kafka. It may import operators, topology
and lower layers.
"""

from __future__ import annotations
