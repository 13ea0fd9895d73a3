"""Runs tasks against Kafka: the parts that the worker and the Spark host share.

A host runs an `application`; its function `prepare` creates internal topics. A `claim` fences the
predecessor of a task. `task_start` then starts it in one order (read committed offsets, read the ends of changelogs, restore,
process), and an `active_task` commits. `restoring` brings local state to the committed point, `standby_tasks` follow it,
`inputs` finds where to read, and `ownership` says which host may process. In the
`control_topic`, hosts and commands record a `release`: which version of an application is live. Tasks of running versions pause
at barriers, which a command sets (`barrier_coordinator`) and workers hear of (`barrier_listener`).
"""

from __future__ import annotations
