"""Records of the control topic: the live version of each application, its release's state, verdicts and history.

Imports no other room of releases.
"""

from __future__ import annotations
