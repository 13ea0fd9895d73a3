"""The tasks of a stream thread and their inputs: `task_manager` owns them.

`state_updater` takes tasks over, restores them, and follows tasks that run elsewhere. `task_executor` lets them process, and
commits all of them at once. `alignment` keeps tasks close to each other in event time. `fetching` reads their inputs, and
`known_topics` watches the topics.
"""

from __future__ import annotations
