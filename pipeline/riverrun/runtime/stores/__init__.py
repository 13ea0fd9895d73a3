"""The stores of tasks: those that one task owns (`state_manager`), and those that every instance holds (`global_state`)."""

from __future__ import annotations
