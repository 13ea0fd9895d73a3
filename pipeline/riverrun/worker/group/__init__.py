"""The group of an application: membership of an instance, and the leader's plans for all instances.

`membership` joins the group for an instance. The member that leads sends orders (`leadership`) by the plans of `assignment`,
which spreads tasks and places their copies on the instances. `protocol` has the messages of members.
"""

from __future__ import annotations
