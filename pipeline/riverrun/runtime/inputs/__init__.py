"""The inputs of a task: a `queue` for each partition, and the choice of the next record among them (`partition_group`).

`packs` unpacks what bounded runs write, `holding` stops inputs for a mark, and `lateness` measures them.
"""

from __future__ import annotations
