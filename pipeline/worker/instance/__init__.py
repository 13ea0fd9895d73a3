"""An instance of an application: one supervisor with its stream threads.

The `supervisor` carries out the orders of its group. `processes` are the stream threads as it sees them, and `deaths` says what
follows the end of one.
"""

from __future__ import annotations
