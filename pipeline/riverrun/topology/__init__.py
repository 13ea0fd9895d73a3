"""The graph that a host receives: nodes, stores, sub-topologies; described, fingerprinted, split into levels.

It knows neither the DSL that wrote it nor the tasks that run it. May import the processor and state contracts, serdes
and values.
"""

from __future__ import annotations
