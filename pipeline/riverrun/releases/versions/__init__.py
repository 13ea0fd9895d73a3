"""Versions of an application: their topologies, kinds of outputs and staging topics.

May import the control topic, which says which version is live.
"""

from __future__ import annotations
