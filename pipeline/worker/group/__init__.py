"""The group of an application: a place in it, and plans for all of it.

`membership` is an instance's place. The member that leads gives the orders (`leadership`), as `assignment` finds them: tasks
are spread (`spreading`, `balance`) and copied (`standbys`) over the `instances`. What these say to each other is in `protocol`.
"""

from __future__ import annotations
