"""The group of an application: membership of an instance, and the leader's plans for all instances.

`client` takes part in the group for an instance, and `membership` is its thread. The member that leads sends each an assignment
(`leadership`) by the plans of `assignment`, which spreads tasks and places their copies on the instances. `protocol` has the
messages of members.
"""

from __future__ import annotations
